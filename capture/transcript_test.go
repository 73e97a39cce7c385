package capture_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/internal/rig"
)

// TestTranscripts runs each testdata/*.sql and compares what comes out with the
// file of the same name, whole, on every version and in both forms of values.
// What precedes the line "-- stream" is there before the slot is.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".sql"), func(t *testing.T) { transcript(t, pg, file) })
		}
	}, versions...)
}

// TestTranscriptsOfOpenTransactions has the server send every change at once,
// long before the commit: what comes out is the same.
func TestTranscriptsOfOpenTransactions(t *testing.T) {
	if *update {
		t.Skip("the other test writes the files")
	}
	files, err := filepath.Glob("testdata/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".sql"), func(t *testing.T) { transcript(t, pg, file, early(t)) })
		}
	}, withImmediate...)
}

func transcript(t *testing.T, pg *rig.Postgres, file string, change ...func(*capture.Options)) {
	noLeaks(t)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(b), "-- stream\n")
	if !ok {
		t.Fatal("no line '-- stream'")
	}
	db := pg.NewDB(t)
	if len(change) > 0 {
		sendEarly(t, db)
	}
	s := prepare(t, db, before, change...)
	s.UseText()
	s.start(t)
	s.db.Script(t, after)
	end := s.insertPosition(t)
	got := story(t, s, end)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	golden := strings.TrimSuffix(file, ".sql") + ".txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
	if held := s.Stats().Held; held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
	if n := s.Stats().Streamed; (n > 0) != (len(change) > 0) {
		t.Errorf("%d transactions came before their commit", n)
	}
}

// story writes down what comes until the position is passed, without what is
// different in each run.
func story(t *testing.T, s *source, end millrace.LSN) string {
	var b strings.Builder
	var commit, reached millrace.LSN
	for reached < end {
		s.RequestPosition()
		txn, err := s.next(t)
		if err != nil {
			fmt.Fprintf(&b, "stop: %s\nhint: %s\n", clean(err), millrace.HintOf(err))
			return b.String()
		}
		if txn.Idle() {
			reached = max(reached, txn.End)
			txn.Release()
			continue
		}
		if txn.Commit < commit || txn.Commit == commit && txn.Part == 0 || txn.Last && txn.End <= txn.Commit || *txn.From != s.cp.History {
			t.Errorf("transaction %+v out of order after %v", txn, commit)
		}
		commit = txn.Commit
		writeTxn(&b, txn)
		if txn.Last {
			reached = max(reached, txn.End)
		}
		txn.Release()
	}
	return b.String()
}

// clean drops the positions of an error.
func clean(err error) string {
	text := err.Error()
	if i := strings.Index(text, "transaction at "); i >= 0 {
		rest := text[i+len("transaction at "):]
		text = text[:i] + "transaction at LSN" + rest[strings.IndexByte(rest, ':'):]
	}
	return text
}

func writeTxn(b *strings.Builder, txn *millrace.Txn) {
	fmt.Fprintf(b, "transaction")
	if txn.Origin != "" {
		fmt.Fprintf(b, " from %q at %s", txn.Origin, txn.Time.Format("2006-01-02T15:04:05.000000Z"))
	}
	if txn.Part > 0 || !txn.Last {
		fmt.Fprintf(b, " part %d last %t", txn.Part, txn.Last)
	}
	fmt.Fprintln(b)
	for i := range txn.Changes {
		c := &txn.Changes[i]
		fmt.Fprintf(b, "  %d %v", c.Seq, c.Op)
		if c.Op == millrace.Truncate {
			for _, rel := range c.Truncated.Rels {
				fmt.Fprintf(b, " %v", rel.Name)
			}
			fmt.Fprintf(b, " restart identity %t\n", c.Truncated.RestartIdentity)
			continue
		}
		fmt.Fprintf(b, " %v %v", c.Rel.Name, c.Rel.Identity)
		if c.Old != nil && c.OldFull {
			writeRow(b, " old", c.Rel, c.Old, nil)
		} else if c.Old != nil {
			writeRow(b, " key", c.Rel, c.Old, c.Rel.Key)
		}
		if c.New != nil {
			writeRow(b, " new", c.Rel, c.New, nil)
		}
		fmt.Fprintln(b)
	}
}

// writeRow writes the columns with these indexes, or all.
func writeRow(b *strings.Builder, what string, rel *millrace.Relation, row millrace.Row, only []int) {
	fmt.Fprintf(b, "%s (", what)
	sep := ""
	show := func(i int) {
		c := rel.Columns[i]
		fmt.Fprintf(b, "%s%s", sep, c.Name)
		sep = ", "
		if c.TypeName != "" {
			fmt.Fprintf(b, " %s/%c", c.TypeName, c.TypeKind)
		}
		switch v := row[i]; {
		case v.Kind == millrace.Text && len(v.Raw) > 40:
			fmt.Fprintf(b, "=%q…%d", v.Raw[:4], len(v.Raw))
		case v.Kind == millrace.Text:
			fmt.Fprintf(b, "=%q", v.Raw)
		default:
			fmt.Fprintf(b, " %c", v.Kind)
		}
	}
	if only != nil {
		for _, i := range only {
			show(i)
		}
	} else {
		for i := range row {
			show(i)
		}
	}
	fmt.Fprint(b, ")")
}
