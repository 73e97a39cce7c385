package connector

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/rig"
)

var update = flag.Bool("update", false, "write the transcripts in testdata anew")

const storyHead = `# What the connector writes as the source changes: TestStory makes this file of
# story.sql (go test ./internal/connector -run TestStory -update). What differs
# from run to run is in angle brackets, long values are cut, LOG messages are left
# out, and of STATE messages without a record between them only the last is here.
# Behind the first two syncs there are only the records and the last state of each.
`

// TestStory compares the messages of a few syncs with testdata/story.txt.
func TestStory(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("testdata/story.sql")
	if err != nil {
		t.Fatal(err)
	}
	p := newPlatform(t, rig.Shared(t, rig.Newest), "")
	out := bytes.NewBufferString(storyHead)
	var before map[string]string // the states that the last sync began with
	for i, step := range strings.Split("\n"+string(sql), "\n-- ")[1:] {
		var whole bool
		kind, text, _ := strings.Cut(step, ": ")
		title, script, _ := strings.Cut(text, "\n")
		fmt.Fprintf(out, "\n== %s\n", title)
		if script = strings.TrimSpace(script); script != "" {
			p.source.Script(t, script)
			fmt.Fprintf(out, "%s\n", script)
		}
		if whole = kind == "sync"; !whole && len(p.streams) > 1 {
			p.streams = slices.DeleteFunc(p.streams, func(s map[string]any) bool { return s["sync_mode"] == "full_refresh" })
		}
		if i == 0 {
			p.makeSlot(t)
			p.discover(t)
			p.transcribe(t, out, true, "discover")
		}
		if kind == "again" {
			p.states = before
		}
		before = maps.Clone(p.states)
		for _, s := range p.streams {
			if s["sync_mode"] == "full_refresh" {
				s["generation_id"] = i // as the platform does where it overwrites
			}
		}
		for _, m := range parse(t, p.transcribe(t, out, whole, "read", p.readArgs(t)...)) {
			p.commit(m)
		}
	}
	compareFile(t, "testdata/story.txt", out.Bytes())
}

// transcribe runs a verb, appends what it writes in a form that is always the
// same, and gives it as it is. If it is not to be whole, TRACE messages are left
// out, and all states but the last: how many there are depends on the time it takes.
func (p *platform) transcribe(t *testing.T, out *bytes.Buffer, whole bool, verb string, args ...string) []byte {
	t.Helper()
	args = append([]string{"connector", verb, "--config", p.file(t, "config.json", p.config)}, args...)
	cmd := exec.CommandContext(t.Context(), p.binary, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(errors.Join(err, errors.New(stdout.String()+stderr.String())))
	}
	fmt.Fprintf(out, "$ source-postgres-millrace %s\n", verb)
	lines := bufio.NewScanner(bytes.NewReader(stdout.Bytes()))
	lines.Buffer(nil, 64<<20)
	state, counted := "", 0
	put := func() {
		if state != "" {
			fmt.Fprintln(out, recordCount.ReplaceAllString(state, `"recordCount":`+strconv.Itoa(counted)+`.0`))
		}
		state, counted = "", 0
	}
	seen := map[string]int{} // the records' positions
	for lines.Scan() {
		line := steady(lines.Text(), seen)
		switch {
		case strings.HasPrefix(line, `{"type":"LOG"`):
		case strings.HasPrefix(line, `{"type":"STATE"`):
			var n float64
			if err := json.Unmarshal([]byte(recordCount.FindStringSubmatch(line)[1]), &n); err != nil {
				t.Fatal(err)
			}
			state, counted = line, counted+int(n)
		case !whole && strings.HasPrefix(line, `{"type":"TRACE"`):
		default:
			if whole {
				put()
			}
			fmt.Fprintln(out, line)
		}
	}
	put()
	return stdout.Bytes()
}

var (
	recordCount = regexp.MustCompile(`"recordCount":([0-9.]+)`)
	unsteady    = regexp.MustCompile(`"(emitted_at|_ab_cdc_lsn|_ab_cdc_cursor|cursor|_ab_cdc_updated_at|_ab_cdc_deleted_at|lsn|system_id|timeline|oid|filenode|shape|row_estimate|byte_estimate)":("[^"]*"|[0-9]+)`)
	longValue   = regexp.MustCompile(`"[^"\\]{200,}"`)
)

// steady takes out of a message what differs from run to run. Positions and cursors
// of records are numbered: the positions of one transaction are the same.
func steady(line string, seen map[string]int) string {
	line = unsteady.ReplaceAllStringFunc(line, func(member string) string {
		name, value, _ := strings.Cut(member, ":")
		switch what := strings.Trim(name, `"`); what {
		case "emitted_at", "_ab_cdc_updated_at", "_ab_cdc_deleted_at":
			return name + ":<time>"
		case "_ab_cdc_lsn", "_ab_cdc_cursor":
			what = strings.TrimPrefix(what, "_ab_cdc_")
			if seen[what+value] == 0 {
				seen[what]++
				seen[what+value] = seen[what]
			}
			return fmt.Sprintf("%s:<%s %d>", name, what, seen[what+value])
		default:
			return name + ":<" + what + ">"
		}
	})
	return longValue.ReplaceAllStringFunc(line, func(value string) string {
		return fmt.Sprintf(`"%.15s… (%d characters)"`, value[1:], utf8.RuneCountInString(value)-2)
	})
}
