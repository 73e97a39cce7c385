package millrace

import (
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/millrace/millrace"

// layers says which packages of the module each package imports. Imports point
// down only; the root may be imported by all and imports nothing. A package
// that is not listed fails: where it belongs is a decision (docs/adr/0002).
var layers = map[string]string{
	".":           "",
	"pgoutput":    ".",
	"replication": ".",
	"session":     ".",
	"relay":       ".",
	"config":      ".",
	"spool":       ".",
	"datum":       ". datum/tuple",
	"datum/tuple": "",
	"catalog":     ". session datum",
	"record":      ". session",
	"hooks":       "",
	"schema":      ". session catalog",
	"snapshot":    ". session catalog datum/tuple",
	"apply":       ". session catalog record internal/crash",
	"capture":     ". session catalog datum pgoutput replication spool",
	"backfill":    ". session catalog snapshot",
	"airbyte":     ". catalog datum",
	"docs":        "",
	"web":         ". relay docs",
	"kafka":       ". record spool kafka/record",
	"bootstrap":   ". session catalog datum record schema snapshot replication kafka kafka/record internal/crash",
	"check":       ". session catalog record schema snapshot replication",
	"cmd/millrace": ". session catalog record schema snapshot apply backfill capture relay web docs hooks config bootstrap check replication spool airbyte datum kafka kafka/record " +
		"internal/rig/pgserver internal/rig/kafkaserver internal/crash",

	"kafka/record": ". datum catalog",

	// Machinery of tests, benchmarks and the demo.
	"bench":                    ". session catalog capture internal/rig/pgserver internal/rig/kafkaserver internal/rig/child",
	"internal/crash":           "",
	"internal/rig":             "internal/rig/pgserver internal/rig/kafkaserver",
	"internal/rig/pgserver":    "internal/rig/child",
	"internal/rig/child":       "",
	"internal/rig/kafkaserver": "internal/rig/pgserver internal/rig/child",
	"internal/rig/cmd/fetch":   "internal/rig/pgserver internal/rig/kafkaserver",
	"internal/testsummary":     "",
	"internal/blackbox":        "internal/rig internal/rig/child",
	"internal/cases":           "",
	"internal/e2e":             "",
	"internal/soak":            "",
	"internal/connector":       "",
	"internal/kcheck":          "",
}

// thirdParty says which modules each package uses outside tests, by the
// beginning of the import path. The reasons are in docs/adr/0005.
var thirdParty = map[string]string{
	"replication":        "github.com/jackc/pgx/v5",
	"session":            "github.com/jackc/pgx/v5",
	"catalog":            "github.com/jackc/pgx/v5",
	"record":             "github.com/jackc/pgx/v5",
	"schema":             "github.com/jackc/pgx/v5 golang.org/x/sync",
	"snapshot":           "github.com/jackc/pgx/v5 golang.org/x/sync",
	"apply":              "github.com/jackc/pgx/v5 golang.org/x/sync",
	"capture":            "github.com/jackc/pgx/v5 golang.org/x/sync",
	"backfill":           "github.com/jackc/pgx/v5",
	"airbyte":            "google.golang.org/protobuf",
	"internal/connector": "google.golang.org/protobuf",
	"relay":              "golang.org/x/sync",
	"kafka/record":       "github.com/twmb/franz-go",
	"web":                "github.com/prometheus/client_golang",
	"kafka":              "github.com/twmb/franz-go github.com/pierrec/lz4",
	"config":             "github.com/goccy/go-yaml",
	"spool":              "github.com/klauspost/compress",
	"bootstrap":          "github.com/jackc/pgx/v5 golang.org/x/sync",
	"check":              "github.com/jackc/pgx/v5 golang.org/x/sync",
	"cmd/millrace":       "github.com/jackc/pgx/v5 github.com/spf13/cobra github.com/schollz/progressbar/v3 golang.org/x/sync golang.org/x/term",
	"bench":              "github.com/jackc/pgx/v5 golang.org/x/sync github.com/twmb/franz-go",
	"internal/rig":       "github.com/jackc/pgx/v5",
	"internal/blackbox":  "github.com/jackc/pgx/v5",
	"internal/kcheck":    "github.com/jackc/pgx/v5 github.com/twmb/franz-go",
}

// testsOnly are modules that tests of any package may use beside those of the
// list above.
const testsOnly = "github.com/jackc/pgx/v5 github.com/twmb/franz-go github.com/jackc/pglogrepl github.com/google/go-cmp " +
	"github.com/rogpeppe/go-internal pgregory.net/rapid go.uber.org/goleak golang.org/x/sync github.com/hamba/avro/v2 " +
	"github.com/chromedp"

func TestLayers(t *testing.T) {
	listed := maps.Clone(layers)
	for file, imports := range goImports(t) {
		pkg := path.Dir(file)
		allowed, ok := layers[pkg]
		if !ok {
			t.Errorf("%s: package %s is not in the table of layers_test.go", file, pkg)
			continue
		}
		delete(listed, pkg)
		isTest := strings.HasSuffix(file, "_test.go")
		for _, imp := range imports {
			checkImport(t, file, imp, pkg, strings.Fields(allowed), isTest)
		}
	}
}

func checkImport(t *testing.T, file, imp, pkg string, allowed []string, isTest bool) {
	t.Helper()
	own, isOwn := ownPackage(imp)
	switch {
	case isOwn && isTest:
		// A test may bring any two packages together, except that only the
		// command knows what the command does.
		if strings.HasPrefix(own, "cmd/") {
			t.Errorf("%s imports %s", file, imp)
		}
	case isOwn:
		if own != pkg && !slices.Contains(allowed, own) {
			t.Errorf("%s imports %s: package %s may import %q", file, imp, pkg, allowed)
		}
	case imp == "testing" && !isTest && pkg != "internal/rig" && pkg != "internal/blackbox":
		t.Errorf("%s imports testing: nothing that is shipped does", file)
	case !strings.Contains(strings.Split(imp, "/")[0], "."): // standard library
	default:
		list := thirdParty[pkg]
		if isTest {
			list += " " + testsOnly
		}
		for _, mod := range strings.Fields(list) {
			if imp == mod || strings.HasPrefix(imp, mod+"/") {
				return
			}
		}
		t.Errorf("%s imports %s: package %s may use %q", file, imp, pkg, strings.Fields(list))
	}
}

func ownPackage(imp string) (string, bool) {
	if imp == module {
		return ".", true
	}
	return strings.CutPrefix(imp, module+"/")
}

// goImports gives the imports of every Go file, by its path.
func goImports(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	walkSources(t, func(file string) {
		if !strings.HasSuffix(file, ".go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Error(err)
			return
		}
		imports := []string{}
		for _, spec := range f.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Error(err)
			}
			imports = append(imports, p)
		}
		all[filepath.ToSlash(file)] = imports
	})
	return all
}

// walkSources visits the files of the module, without what is generated, hidden
// or data.
func walkSources(t *testing.T, visit func(file string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" || d.Name() == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		visit(p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
