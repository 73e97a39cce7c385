package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestKillsOfTableVerbs kills the program at random moments while a table is added, and
// while tables are read again, with clients that write. In the end both sides are
// equal. It is for the soak: TestResumesAfterKills and TestReadsAgainUnderWrites are
// the short form.
func TestKillsOfTableVerbs(t *testing.T) {
	t.Parallel()
	if !full() {
		t.Skip("MILLRACE_SOAK is not set")
	}
	for _, major := range []int{16, 17, 18} {
		t.Run(strconv.Itoa(major), func(t *testing.T) {
			t.Parallel()
			killTables(t, major, 20)
		})
	}
}

func killTables(t *testing.T, major, kills int) {
	const rows = 10_000
	p := newPair(t, plan{source: rig.Shared(t, major), schema: fmt.Sprintf(killedSchema, rows), options: func(o *blackbox.Options, _ *pair) {
		o.Tables = []string{"public.a"}
		o.Extra += "snapshot: {rate: 3000000, parallel: 2}\n"
	}})
	p.source.SQL(t, "DROP PUBLICATION "+p.slotName())
	p.Start(t, "--bootstrap", "--create-publication")
	p.sync(t)
	stop := churn(t, p, rows)
	rng := rand.New(rand.NewPCG(2, uint64(major)))
	loading := func() bool {
		return p.target.Query(t, "SELECT count(*) > 0 FROM millrace.job_table WHERE NOT copied") == "t"
	}
	added, again, inLoad := 0, 0, 0
	for n := range kills {
		if n%4 == 3 { // time for another verb
			rig.Eventually(t, patience, func() bool { return !loading() }, "the tables are loaded")
		}
		if !loading() {
			switch {
			case p.record(t, "tables") == "{public.a}":
				added++
				p.tableVerb(t, "add", "public.b")
			case rng.IntN(4) == 0:
				added++
				p.tableVerb(t, "drop", "public.b")
				p.target.SQL(t, "SET session_replication_role = replica; DROP TABLE b")
				p.tableVerb(t, "add", "public.b")
			default:
				again++
				table := []string{"a", "b"}[rng.IntN(2)]
				p.target.SQL(t, "SET session_replication_role = replica; UPDATE "+table+" SET n = -1 WHERE n = 1")
				p.tableVerb(t, "resnapshot", "public."+table)
			}
		}
		rig.Linger(t, time.Duration(rng.IntN(2500))*time.Millisecond, "a random moment of the load")
		if !p.Running() {
			t.Fatalf("the program ended with code %d\n%s", p.ExitCode(), p.Log(20))
		}
		if loading() {
			inLoad++
		}
		p.Kill(t)
		p.Start(t)
	}
	t.Attr("kills", strconv.Itoa(kills))
	t.Logf("%d kills, %d of them in a load; %d tables added, %d read again", kills, inLoad, added, again)
	p.loaded(t, "a b")
	stop()
	p.sync(t)
	for _, table := range []string{"a", "b"} {
		sum := fmt.Sprintf(`SELECT count(*) || ' ' || md5(string_agg(x::text, ',' ORDER BY x::text COLLATE "C")) FROM %s x`, table)
		if want, got := p.source.Query(t, sum), p.target.Query(t, sum); got != want {
			t.Errorf("table %s: the source has %s, the target %s", table, want, got)
		}
	}
	rig.Eventually(t, patience, func() bool {
		return p.target.Query(t, "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND convalidated") == "1"
	}, "the foreign key is there")
	if n := p.target.Query(t, "SELECT (SELECT count(*) FROM millrace.chunk) + (SELECT count(*) FROM pg_class WHERE relname LIKE 'redo%')"); n != "0" {
		t.Errorf("%s marks and staging tables are left", n)
	}
}

func (p *pair) tableVerb(t *testing.T, args ...string) {
	t.Helper()
	if r := p.Run(t, "table", args...); r.Code != blackbox.Done {
		t.Fatalf("table %v: exit code %d\n%s", args, r.Code, r.Stderr)
	}
}
