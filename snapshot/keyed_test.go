package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/internal/rig"
)

// TestKeyedMark: parts that are taken one after the other and become complete in any
// order, by some readers at once, cover all slots once, and the mark has what is
// complete in a few ranges.
func TestKeyedMark(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "cuts")
		table := &Table{Source: &catalog.Table{Name: millrace.TableName{Schema: "s", Name: "t"}, Bytes: 1 << 30}}
		var cuts []Cut
		for i := range n {
			cuts = append(cuts, Cut{Key: []byte{byte(i)}, literal: fmt.Sprint(i)})
		}
		k := newKeyed(table, &ChunkTable{Key: IntKey("id", 0)}, cuts, 7)
		readers := rapid.IntRange(1, 4).Draw(t, "readers")
		var mark []byte
		var busy []*Part
		covered := make([]int, n+1)
		for {
			for len(busy) < readers {
				p := k.take()
				if p == nil {
					break
				}
				busy = append(busy, p)
			}
			if len(busy) == 0 {
				break
			}
			i := rapid.IntRange(0, len(busy)-1).Draw(t, "complete")
			p := busy[i]
			busy = append(busy[:i], busy[i+1:]...)
			if has, err := k.has(mark, p); has || err != nil {
				t.Fatal("it is there already", err)
			}
			var err error
			if mark, err = k.with(mark, p); err != nil {
				t.Fatal(err)
			}
			if has, err := k.has(mark, p); !has || err != nil {
				t.Fatal("it is not there", err)
			}
			for s := p.Number; s < p.Number+p.Span; s++ {
				covered[s]++
			}
			var m Mark
			if err := json.Unmarshal(mark, &m); err != nil {
				t.Fatal(err)
			}
			if len(m.Ranges) > 2*readers+1 || m.Ranges[len(m.Ranges)-1].Upto != "" || m.File != 7 {
				t.Fatalf("mark %s", mark)
			}
			k.span = rapid.IntRange(1, 9).Draw(t, "span")
		}
		for s, times := range covered {
			if times != 1 {
				t.Fatalf("slot %d was copied %d times", s, times)
			}
		}
	})
}

// TestLostConnectionsOfRanges is TestLostConnections for a table that is copied by
// ranges of its key: a transaction whose outcome is not known may have added to the mark
// while others write it.
func TestLostConnectionsOfRanges(t *testing.T) {
	const ddl = `CREATE TABLE t (id numeric PRIMARY KEY, v text)`
	b := newBed(t, rig.Newest, rig.Newest, ddl+`; INSERT INTO t SELECT i / 2.0, repeat('x', 1000) FROM generate_series(1, 12000) i; ANALYZE t`,
		ddl+`; CREATE TABLE marks (table_oid oid PRIMARY KEY, mark text NOT NULL DEFAULT '', rows bigint NOT NULL DEFAULT 0, complete int NOT NULL DEFAULT 0)`)
	h := b.hold(t, 2)
	commits := 0
	var rows int64
	err := b.copy(t, h, Options{Replica: true, MinKeyed: 1 << 20,
		LockMark: func(ctx context.Context, tx pgx.Tx, oid uint32) (m millrace.Mark, err error) {
			var text string
			err = tx.QueryRow(ctx, `INSERT INTO public.marks VALUES ($1) ON CONFLICT (table_oid) DO UPDATE SET rows = marks.rows RETURNING mark, rows`, oid).Scan(&text, &m.Rows)
			m.State = []byte(text)
			return m, err
		},
		Mark: func(ctx context.Context, tx pgx.Tx, c Copied) error {
			if !c.Part.Keyed {
				t.Error("the table is not copied by ranges of its key")
			}
			done := 0
			if c.TableDone {
				done, rows = 1, c.TableRows
			}
			if _, err := tx.Exec(ctx, `UPDATE public.marks SET mark = $1, rows = $2, complete = complete + $3`, string(c.Mark), c.TableRows, done); err != nil {
				return err
			}
			if commits++; commits%3 == 1 || c.TableDone { // under the lock of the table's state
				if _, err := tx.Exec(ctx, `COMMIT`); err != nil {
					return err
				}
				return &millrace.Error{Kind: millrace.KindRetry, Op: "commit", Err: errors.New("the answer is lost")}
			}
			return nil
		},
		Marked: func(ctx context.Context, conn *pgx.Conn, p *Part) (found Marked, err error) {
			var text string
			err = conn.QueryRow(ctx, `SELECT mark, rows, complete > 0 FROM public.marks`).Scan(&text, &found.Rows, &found.Table)
			found.Mark, found.Done = []byte(text), found.Table
			return found, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.dst.Query(t, `SELECT count(*), count(DISTINCT id), (SELECT complete FROM marks) FROM t`); got != "12000|12000|1" {
		t.Error(got)
	}
	if rows != 12000 {
		t.Errorf("the table is recorded with %d rows", rows)
	}
	if commits < 6 {
		t.Errorf("only %d parts", commits)
	}
}
