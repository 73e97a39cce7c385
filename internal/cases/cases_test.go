// Package cases runs inputs that broke other systems (testdata/README.md)
// through the built program, from one PostgreSQL to another.
package cases

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

func TestMain(m *testing.M) { blackbox.Main(m) }

// way is when the job starts.
type way string

const (
	stream   way = "stream"   // after setup: all changes are streamed
	snapshot way = "snapshot" // after all changes: all are copied
	during   way = "during"   // while the changes run
	// early is stream from a source that sends every change before its
	// transaction is committed.
	early way = "early"
	// incremental is snapshot, read in chunks beside the stream.
	incremental way = "incremental"
	// kafka is stream, through Kafka.
	kafka way = "kafka"
)

type pair struct{ from, to int }

func (p pair) String() string { return fmt.Sprintf("%dto%d", p.from, p.to) }

// full tells whether everything is to be run; it takes an hour.
func full() bool { return os.Getenv("MILLRACE_SOAK") != "" }

func native() bool { return os.Getenv("MILLRACE_CASES_NATIVE") != "" }

func ways() []way {
	if full() {
		return []way{stream, snapshot, during, early, incremental, kafka}
	}
	return []way{stream, snapshot, early, incremental, kafka}
}

// runs tells whether the case is run this way: in the short form only those
// about transactions and definitions come early, and only those about keys and
// odd tables in chunks.
func (c *caseFile) runs(w way) bool {
	switch {
	case full():
		return true
	case w == early:
		return c.name >= "067" && c.name < "094"
	case w == kafka:
		return slices.Contains(throughKafka, c.name[:3])
	case w == incremental:
		return c.name >= "036" && c.name < "067" || c.name >= "100"
	}
	return true
}

// throughKafka are the cases of the short form: kinds of values, keys and transactions
// that records and descriptions have to carry.
var throughKafka = []string{"020", "025", "040", "043", "050", "072", "092", "096", "099"}

func pairs() []pair {
	if full() {
		return []pair{{18, 18}, {16, 16}, {17, 17}, {16, 18}, {17, 18}, {18, 17}, {18, 16}, {15, 18}, {15, 16}}
	}
	return []pair{{18, 18}}
}

func TestCases(t *testing.T) {
	cases := readCases(t)
	for _, p := range pairs() {
		for _, w := range ways() {
			for _, c := range cases {
				if !c.runs(w) {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s/%s", p, w, c.name), func(t *testing.T) {
					t.Parallel()
					if c.minMajor() > min(p.from, p.to) {
						t.Skipf("only from PostgreSQL %d on", c.minMajor())
					}
					newRun(t, c, w, p).run(t)
				})
			}
		}
	}
}

// run is one case in one way on one pair of servers.
type run struct {
	*caseFile
	way            way
	major          int // of the source
	source, target *rig.DB
	extra          string // of the configuration
	throughKafka   bool
	job            job
}

// job is what replicates: the program, or PostgreSQL's own subscription.
type job interface {
	Start(t testing.TB)
	// Wait waits until the target holds what the source has committed.
	Wait(timeout time.Duration) error
	// Refusal says why the job ended, or how its end was not as it should be.
	Refusal(t testing.TB) (string, error)
}

func newRun(t *testing.T, c *caseFile, w way, p pair) *run {
	t.Helper()
	r := &run{
		caseFile: c, way: w, major: p.from,
		// The least memory for decoding that the server takes, so that
		// transactions of a few hundred rows are spilled there.
		source: rig.Shared(t, p.from, append(oddSettings(), "logical_decoding_work_mem=64kB")...).NewDB(t),
		target: rig.Shared(t, p.to, oddSettings()...).NewDB(t),
	}
	if w == early {
		r.way = stream
		// Older ones send what outgrows the memory, and so does one with a huge
		// transaction: for a change at a time it would take minutes.
		if p.from >= 16 && !strings.Contains(c.name, "huge") {
			r.source.SQL(t, "ALTER DATABASE "+r.source.Name+" SET debug_logical_replication_streaming = immediate")
		}
	}
	if w == incremental {
		r.way, r.extra = snapshot, "snapshot: {mode: incremental}\n"
	}
	if w == kafka {
		r.way, r.throughKafka = stream, true
	}
	r.source.Script(t, fmt.Sprintf("CREATE PUBLICATION millrace_%s FOR ALL TABLES", r.source.Name))
	return r
}

// oddSettings are defaults of a server that change what text looks like and
// what a session may do, unless the session pins its own. PostgreSQL's own
// subscription pins fewer than we do.
func oddSettings() []string {
	if native() {
		return nil
	}
	return []string{
		"datestyle=German, DMY", "intervalstyle=sql_standard", "timezone=Asia/Kathmandu", "bytea_output=escape",
		"extra_float_digits=-5", "array_nulls=off", "xmloption=document", "quote_all_identifiers=on", "search_path=nowhere",
		"standard_conforming_strings=off", "backslash_quote=on", "escape_string_warning=off", "default_transaction_read_only=on",
		"default_transaction_isolation=serializable", "synchronous_commit=off", "statement_timeout=5s", "lock_timeout=5s",
		"idle_in_transaction_session_timeout=5s", "row_security=off", "check_function_bodies=on", "client_min_messages=warning",
	}
}

// patience is for a machine that is busy with everything else.
const patience = 90 * time.Second

func (r *run) run(t *testing.T) {
	for _, sql := range r.all("setup") {
		r.source.Script(t, sql)
	}
	if r.way == snapshot {
		for _, sql := range r.all("change") {
			r.source.Script(t, sql)
		}
	}
	byHand, _ := r.inKafka()
	existing := native() || len(r.all("target")) > 0 || r.throughKafka && byHand
	if existing {
		r.createTarget(t)
	}
	r.job = r.newJob(t, existing)
	r.judge(t, r.replicate(t))
}

// createTarget does what the program does with `schema: create`.
func (r *run) createTarget(t *testing.T) {
	t.Helper()
	dump, err := exec.Command(r.source.Server.Bin("pg_dump"), "-s", "--no-publications", "--no-subscriptions", r.source.URL()).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	lines := strings.Split(string(dump), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool {
		return l == "CREATE SCHEMA public;" || strings.HasPrefix(l, "SET transaction_timeout")
	})
	r.target.Script(t, strings.Join(lines, "\n"))
	for _, sql := range r.all("target") {
		r.target.Script(t, sql)
	}
}

func (r *run) newJob(t *testing.T, existing bool) job {
	t.Helper()
	if native() {
		return newSubscription(t, r.source, r.target)
	}
	if r.throughKafka {
		return newUnbottling(t, r, existing)
	}
	j := blackbox.NewJob(t, blackbox.Options{Name: r.source.Name, Source: r.source, Target: r.target, Existing: existing, Extra: r.extra})
	return program{j}
}

// program is the job of the built program.
type program struct{ *blackbox.Job }

func (p program) Start(t testing.TB) { t.Helper(); p.Job.Start(t, "--bootstrap") }

// replicate runs the job and the changes and says whether, at the end, the
// target had caught up.
func (r *run) replicate(t *testing.T) error {
	t.Helper()
	switch r.way {
	case snapshot:
		r.job.Start(t)
		return r.job.Wait(patience)
	case during:
		done := make(chan error, 1)
		go func() { done <- r.changes() }()
		r.job.Start(t)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return r.job.Wait(patience)
	}
	r.job.Start(t)
	if err := r.job.Wait(patience); err != nil {
		return err
	}
	if err := r.changes(); err != nil {
		t.Fatal(err)
	}
	return r.job.Wait(patience)
}

// changes runs the change sections on the source. DDL is applied to the target
// as well, as its operator would, where the job waits for it.
func (r *run) changes() error {
	for i, sql := range r.all("change") {
		if r.way == stream && i > 0 {
			// A job that has refused by now is judged at the end.
			_ = r.job.Wait(patience)
		}
		if _, err := r.source.Server.TryScript(r.source.Name, sql); err != nil {
			return err
		}
		if r.way == stream && noteOf(sql) == "ddl" {
			_ = r.job.Wait(patience) // as above
			// What the target can't follow shows as a difference or a refusal.
			_, _ = r.target.Server.TryScript(r.target.Name, sql)
		}
	}
	return nil
}

// judge compares the two sides, or looks at how the job refused.
func (r *run) judge(t *testing.T, behind error) {
	t.Helper()
	_, refused := r.inKafka()
	must := r.throughKafka && refused != ""
	if behind != nil && (r.mayRefuse() || must) && !native() {
		reason, err := r.job.Refusal(t)
		if err != nil {
			t.Fatal(errors.Join(behind, err))
		}
		if must && !strings.Contains(reason, refused) {
			t.Errorf("refused with %q, want %q", reason, refused)
		}
		t.Attr("refused", reason)
		return
	}
	if must {
		t.Errorf("Kafka took what the case says it refuses: %s", refused)
	}
	if behind != nil {
		r.fail(t, behind)
		return
	}
	for i, sql := range r.all("expect") {
		want := r.source.Script(t, sql)
		got, err := r.target.Server.TryScript(r.target.Name, sql)
		if d := cmp.Diff(want, got); d != "" || err != nil {
			r.fail(t, errors.Join(err, fmt.Errorf("the target differs (-source +target):\n%s", d)))
		}
		if l := r.literal(); i == 0 && l != "" && r.major == 18 && l != want {
			t.Errorf("the source itself is not as the case says (-case +source):\n%s", cmp.Diff(l, want))
		}
	}
}

// fail fails the test, unless the case says that native replication fails and
// native replication it is.
func (r *run) fail(t *testing.T, err error) {
	t.Helper()
	if native() && !strings.Contains(r.head["native"], "target equals source") {
		t.Skipf("as known (%s): %v", r.head["native"], err)
	}
	t.Error(err)
}
