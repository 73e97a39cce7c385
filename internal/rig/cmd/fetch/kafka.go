package main

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

// pom is a Maven project that has nothing but dependencies.
type pom struct {
	XMLName      xml.Name     `xml:"project"`
	NS           string       `xml:"xmlns,attr"`
	ModelVersion string       `xml:"modelVersion"`
	Group        string       `xml:"groupId"`
	Artifact     string       `xml:"artifactId"`
	Version      string       `xml:"version"`
	Packaging    string       `xml:"packaging"`
	Dependencies []dependency `xml:"dependencies>dependency"`
}

type dependency struct {
	Group    string `xml:"groupId"`
	Artifact string `xml:"artifactId"`
	Version  string `xml:"version"`
}

// fetchKafka has Maven copy the broker's jars. The directory appears only when
// it is complete.
func fetchKafka(ctx context.Context) error {
	for _, prog := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(prog); err != nil {
			return fmt.Errorf("%s is needed for Kafka: install a Java runtime (17 or newer) and Maven", prog)
		}
	}
	dest := kafkaserver.LibDir()
	base := filepath.Dir(dest)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(base, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	p := pom{NS: "http://maven.apache.org/POM/4.0.0", ModelVersion: "4.0.0", Group: "rig", Artifact: "kafka", Version: "1", Packaging: "pom"}
	for _, a := range kafkaserver.Artifacts {
		parts := strings.Split(a, ":")
		p.Dependencies = append(p.Dependencies, dependency{parts[0], parts[1], parts[2]})
	}
	text, err := xml.Marshal(p)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "pom.xml"), text, 0o644); err != nil {
		return err
	}
	fmt.Printf("fetching Kafka %s\n", kafkaserver.Version)
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime",
		"-DoutputDirectory="+filepath.Join(tmp, "libs"))
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, out)
	}
	if err := os.RemoveAll(dest); err != nil { // incomplete, or Have would have found it
		return err
	}
	if err := os.Rename(filepath.Join(tmp, "libs"), dest); err != nil {
		return err
	}
	if !kafkaserver.Have() {
		return errors.New("the jars are not what was expected")
	}
	return nil
}
