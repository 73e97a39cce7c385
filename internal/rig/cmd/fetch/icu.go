package main

import (
	"archive/tar"
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
	"github.com/millrace/millrace/internal/rig/pgserver"
)

// fetchICU gets a server that was built with ICU: a jar with an archive of its programs
// and libraries in it. The machine needs tar and xz to unpack that.
func fetchICU(ctx context.Context) error {
	arch := map[string]string{"amd64": "amd64", "arm64": "arm64v8"}[runtime.GOARCH]
	if runtime.GOOS != "linux" || arch == "" {
		return fmt.Errorf("there is none for %s on %s", runtime.GOOS, runtime.GOARCH)
	}
	artifact := "io.zonky.test.postgres:embedded-postgres-binaries-linux-" + arch + ":" + releases[pgserver.ICUMajor]
	fmt.Printf("fetching PostgreSQL %s with ICU\n", releases[pgserver.ICUMajor])
	base := filepath.Join(pgserver.Dir(), "pg")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(base, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := kafkaserver.FetchJars(ctx, filepath.Join(tmp, "jars"), artifact); err != nil {
		return err
	}
	jars, err := filepath.Glob(filepath.Join(tmp, "jars", "*binaries*.jar"))
	if err != nil || len(jars) != 1 {
		return errors.Join(err, fmt.Errorf("%d jars came for %s, want one", len(jars), artifact))
	}
	tree := filepath.Join(tmp, "tree")
	if err := unpackTxz(ctx, jars[0], tree); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(jars[0]), err)
	}
	if err := os.RemoveAll(pgserver.ICUDir()); err != nil { // incomplete, or HaveICU would have found it
		return err
	}
	if err := os.Rename(tree, pgserver.ICUDir()); err != nil {
		return err
	}
	if !pgserver.HaveICU() {
		return errors.New("the programs are not what was expected, or PostgreSQL " + strconv.Itoa(pgserver.ICUMajor) + " is not there")
	}
	return nil
}

// unpackTxz puts the tree of the one .txz inside the jar at dest.
func unpackTxz(ctx context.Context, jar, dest string) (err error) {
	z, err := zip.OpenReader(jar)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, z.Close()) }()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".txz") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "xz", "-dc")
		cmd.Stdin = r
		out, err := cmd.StdoutPipe()
		if err != nil {
			return errors.Join(err, r.Close())
		}
		if err := cmd.Start(); err != nil {
			return errors.Join(err, r.Close())
		}
		err = untar(tar.NewReader(out), dest, func(name string) string { return name })
		return errors.Join(err, cmd.Wait(), r.Close())
	}
	return errors.New("no .txz in it")
}
