package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// caseFile is one file of testdata; its README describes the form.
type caseFile struct {
	name     string
	head     map[string]string
	sections []section
}

type section struct {
	kind, text string
}

var (
	markers  = []string{"-- setup", "-- target", "-- change", "-- expect", "-- literal"}
	headLine = regexp.MustCompile(`^-- ([\w-]+): (.*)$`)
	noteLine = regexp.MustCompile(`^\s*-- note: (ddl[\w-]*)`)
)

func readCases(t *testing.T) []*caseFile {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no case files: %v", err)
	}
	var cases []*caseFile
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseCase(strings.TrimSuffix(filepath.Base(f), ".sql"), string(text))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		cases = append(cases, c)
	}
	return cases
}

func parseCase(name, text string) (*caseFile, error) {
	c := &caseFile{name: name, head: map[string]string{}}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		// Text inside a section is data, its line ends too.
		case slices.Contains(markers, strings.TrimRight(line, "\r")):
			c.sections = append(c.sections, section{kind: strings.TrimPrefix(strings.TrimRight(line, "\r"), "-- ")})
		case len(c.sections) > 0:
			c.sections[len(c.sections)-1].text += line + "\n"
		default:
			if m := headLine.FindStringSubmatch(line); m != nil {
				c.head[m[1]] = m[2]
			}
		}
	}
	for _, kind := range []string{"setup", "change", "expect"} {
		if len(c.all(kind)) == 0 {
			return nil, fmt.Errorf("no section %q", kind)
		}
	}
	if !slices.Contains([]string{"no", "yes", "mixed"}, c.head["ddl"]) {
		return nil, fmt.Errorf("ddl: %q", c.head["ddl"])
	}
	return c, nil
}

func (c *caseFile) all(kind string) []string {
	var texts []string
	for _, s := range c.sections {
		if s.kind == kind {
			texts = append(texts, s.text)
		}
	}
	return texts
}

// mayRefuse tells whether stopping with a hint is as good as following.
func (c *caseFile) mayRefuse() bool { return c.head["ddl"] != "no" }

// inKafka is what the case says of the way through Kafka: the target's tables have to be
// made by hand, since topics don't hold all that they need; or it is refused, with these
// words.
func (c *caseFile) inKafka() (existing bool, refused string) {
	refused, _ = strings.CutPrefix(c.head["kafka"], "refused: ")
	existing = refused == "existing"
	if existing {
		refused = ""
	}
	return existing, refused
}

// minMajor is the oldest version on which the case means something.
func (c *caseFile) minMajor() int {
	n, err := strconv.Atoi(strings.Trim(c.head["min-pg"], " +"))
	if err != nil {
		return 15
	}
	return n
}

// literal is what the first expect section prints on the source, "" if the
// case does not say.
func (c *caseFile) literal() string {
	var b strings.Builder
	for _, text := range c.all("literal") {
		for line := range strings.SplitSeq(text, "\n") {
			if l, ok := strings.CutPrefix(line, "-- | "); ok {
				b.WriteString(l + "\n")
			} else if line == "-- |" {
				b.WriteString("\n")
			}
		}
	}
	return b.String()
}

// noteOf is the remark at the head of a change section.
func noteOf(change string) string {
	if m := noteLine.FindStringSubmatch(change); m != nil {
		return m[1]
	}
	return ""
}
