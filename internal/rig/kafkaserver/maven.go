package kafkaserver

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// FetchJars has Maven copy artifacts (group:artifact:version) and all that they
// need into dest, which appears only when it is complete. One that is there is
// taken to be so.
func FetchJars(ctx context.Context, dest string, artifacts ...string) error {
	if _, err := os.Stat(dest); err == nil {
		return nil
	}
	for _, prog := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(prog); err != nil {
			return fmt.Errorf("%s is needed: install a Java runtime (17 or newer) and Maven", prog)
		}
	}
	base := filepath.Dir(dest)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(base, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	p := pom{NS: "http://maven.apache.org/POM/4.0.0", ModelVersion: "4.0.0", Group: "rig", Artifact: "jars", Version: "1", Packaging: "pom"}
	for _, a := range artifacts {
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
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime",
		"-DoutputDirectory="+filepath.Join(tmp, "libs"))
	cmd.Dir = tmp
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, out)
	}
	return os.Rename(filepath.Join(tmp, "libs"), dest)
}
