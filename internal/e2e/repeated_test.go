package e2e

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/datum/tuple"
	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// What a kill costs is counted from outside. The source's own log has every chunk that
// was asked for, with the key that it begins behind; the mark at the destination has
// the ranges that are still unread. A chunk that begins in one of those is read again.

// repeats counts the chunks of tables with one integer key that a load has to read
// again after kills.
type repeats struct {
	db      *rig.DB
	lines   int // of the log that were looked at
	kills   int
	chunks  int // read again, of all kills
	most    int // after one kill
	ranges  int // unread ones of a table, at most
	begun   int // chunks that were asked for
	pieces  int // parts of a copy under one snapshot that are read again
	readers int
}

// mostRepeated is how many chunks may be read again after a kill, for each of the readers, who
// have a range each: the one that the destination was at work with, and the one that
// was being read.
const mostRepeated = 2

// countRepeats has the source log what sessions that begin from now on ask it for.
func countRepeats(t *testing.T, db *rig.DB, readers int) *repeats {
	t.Helper()
	db.SQL(t, "ALTER DATABASE "+db.Name+" SET log_statement = 'all'")
	return &repeats{db: db, readers: readers}
}

// markRange is a range of a mark: keys behind the range before, up to and with upto.
type markRange struct {
	upto   int64
	unread bool
}

// rangesOf reads a mark of a table with one integer key.
func rangesOf(t *testing.T, mark string) []markRange {
	t.Helper()
	if mark == "" {
		return []markRange{{math.MaxInt64, true}}
	}
	var m struct {
		Ranges []struct{ Upto, State string }
	}
	if err := json.Unmarshal([]byte(mark), &m); err != nil {
		t.Fatalf("%v: %s", err, mark)
	}
	ranges := make([]markRange, len(m.Ranges))
	for i, r := range m.Ranges {
		ranges[i] = markRange{math.MaxInt64, r.State == "unread"}
		if r.Upto == "" {
			continue
		}
		key, err := hex.DecodeString(r.Upto)
		if err == nil {
			ranges[i].upto, _, err = tuple.CutInt(key)
		}
		if err != nil {
			t.Fatalf("key %q: %v", r.Upto, err)
		}
	}
	return ranges
}

var (
	chunkStatement = regexp.MustCompile(`LOG:  execute <unnamed>: SELECT .* FROM ONLY "public"\."(\w+)" AS x.* ORDER BY x\."\w+" (?:LIMIT|FETCH)`)
	chunkBehind    = regexp.MustCompile(`WHERE ROW\(x\."\w+"\) > ROW\(\$1::`)
	firstParameter = regexp.MustCompile(`\$1 = '(-?\d+)'`)
	pieceStatement = regexp.MustCompile(`LOG:  statement: COPY \(SELECT .* FROM ONLY "public"\."(\w+)" WHERE (ROW\(.*)\) TO STDOUT`)
)

// asked gives the keys that chunks begin behind which were asked for since the last
// call, by table, and the conditions of the ranges that were copied under one snapshot.
func (r *repeats) asked(t *testing.T) (begins map[string]map[int64]bool, pieces map[string][]string) {
	t.Helper()
	all := strings.Split(r.db.Server.Log(math.MaxInt32), "\n")
	begins, pieces = map[string]map[int64]bool{}, map[string][]string{}
	for i := r.lines; i < len(all); i++ {
		line := all[i]
		if !strings.Contains(line, " "+r.db.Name+" ") {
			continue
		}
		if m := pieceStatement.FindStringSubmatch(line); m != nil {
			pieces[m[1]] = append(pieces[m[1]], m[2])
		}
		m := chunkStatement.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		behind := int64(math.MinInt64)
		if chunkBehind.MatchString(line) {
			if i+1 == len(all) {
				t.Fatal("the log ends inside of an entry")
			}
			p := firstParameter.FindStringSubmatch(all[i+1])
			if p == nil {
				t.Fatalf("no key in the log: %s\n%s", line, all[i+1])
			}
			var err error
			if behind, err = strconv.ParseInt(p[1], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		if begins[m[1]] == nil {
			begins[m[1]] = map[int64]bool{}
		}
		begins[m[1]][behind] = true
	}
	r.lines = len(all) - 1 // the last one is empty, or not complete
	return begins, pieces
}

// asking tells how many chunks were asked for since asked was called.
func (r *repeats) asking() int {
	n := 0
	for _, line := range strings.Split(r.db.Server.Log(math.MaxInt32), "\n")[r.lines:] {
		if strings.Contains(line, " "+r.db.Name+" ") && chunkStatement.MatchString(line) {
			n++
		}
	}
	return n
}

// killed counts what a kill costs. marks are those of tables that are not complete; of
// all others nothing is read again.
func (r *repeats) killed(t *testing.T, marks map[string]string) {
	t.Helper()
	r.kills++
	begins, _ := r.asked(t)
	repeated := 0
	for table, at := range begins {
		r.begun += len(at)
		mark, incomplete := marks[table]
		if !incomplete {
			continue
		}
		unread, low := 0, int64(math.MinInt64)
		for _, g := range rangesOf(t, mark) {
			for behind := range at {
				if g.unread && low <= behind && (behind < g.upto || g.upto == math.MaxInt64) {
					repeated++
				}
			}
			low = g.upto
			if g.unread {
				unread++
			}
		}
		r.ranges = max(r.ranges, unread)
	}
	r.chunks += repeated
	r.most = max(r.most, repeated)
	if repeated > mostRepeated*r.readers {
		t.Errorf("after kill %d, %d chunks are read again, by %d readers: they began behind %v, and the marks are %v", r.kills, repeated, r.readers, begins, marks)
	}
}

// pieceKilled counts what the kill of a copy under one snapshot costs, of tables that
// are copied by ranges of their keys: the parts of which target holds nothing.
func (r *repeats) pieceKilled(t *testing.T, target *rig.DB) {
	t.Helper()
	r.kills++
	_, pieces := r.asked(t)
	for table, conditions := range pieces {
		lost := 0
		for _, where := range conditions {
			if target.Query(t, fmt.Sprintf("SELECT EXISTS (SELECT FROM %s WHERE %s)", table, where)) == "f" {
				lost++
			}
		}
		r.pieces += lost
		if lost > r.readers || lost == len(conditions) {
			t.Errorf("%d of %d parts of table %s are read again, by %d readers", lost, len(conditions), table, r.readers)
		}
	}
}

// report prints what was counted.
func (r *repeats) report(t *testing.T) {
	t.Helper()
	text := fmt.Sprintf("%d kills, %d chunks repeated of %d that were read (at most %d after a kill, of %d readers; up to %d unread ranges of a table)",
		r.kills, r.chunks, r.begun, r.most, r.readers, r.ranges)
	if r.pieces > 0 {
		text += fmt.Sprintf(", %d parts of the copy under one snapshot", r.pieces)
	}
	t.Logf("kills: %s", text)
	t.Attr("kills", text)
}

// gone waits until nothing of a killed job is at work on a server any more.
func gone(t *testing.T, job *blackbox.Job, db *rig.DB) {
	t.Helper()
	rig.Eventually(t, patience, func() bool {
		n, err := db.Server.TryQuery(db.Name, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'millrace:"+job.Name+":%'")
		return err == nil && n == "0"
	}, "the sessions of the killed job end")
}

// marks gives the marks of the tables at the target that are not complete.
func (p *pair) marks(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	rows := p.target.Query(t, `SELECT t.table_name, c.mark FROM millrace.job_table t LEFT JOIN millrace.chunk c ON c.job = t.job AND c.oid = t.oid AND c.part = -1 WHERE NOT t.copied`)
	for _, line := range lines(rows) {
		if table, mark, ok := strings.Cut(line, "|"); ok {
			found[table] = mark
		}
	}
	return found
}
