package apply

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// BenchmarkInsertForm compares COPY with one INSERT for groups of several sizes
// and widths, by the target's processor time: what copyRows and copyBytes rest on.
//
//	go test ./apply -run '^$' -bench InsertForm -benchtime 1x
func BenchmarkInsertForm(b *testing.B) {
	for _, shape := range []struct {
		columns, bytes, total int
	}{{4, 60, 400000}, {30, 450, 80000}, {6, 1500, 30000}, {3, 7000, 4000}} {
		for _, rows := range []int{25, 100, 400, 2000, 4000, 8000} {
			if rows > shape.total/5 {
				continue
			}
			for _, form := range []struct {
				name  string
				limit int
			}{{"insert", 1 << 30}, {"copy", 1}} {
				b.Run(fmt.Sprintf("columns=%d/bytes=%d/rows=%d/%s", shape.columns, shape.bytes, rows, form.name), func(b *testing.B) {
					benchInsertForm(b, shape.columns, shape.bytes, rows, min(shape.total, rows*1000), form.limit)
				})
			}
		}
	}
}

func benchInsertForm(b *testing.B, columns, bytes, rows, total, limit int) {
	var ddl strings.Builder
	ddl.WriteString("CREATE TABLE t (id int PRIMARY KEY")
	cols := []millrace.Column{int4Column("id")}
	for c := 1; c < columns; c++ {
		fmt.Fprintf(&ddl, ", c%d text STORAGE EXTERNAL", c)
		cols = append(cols, textColumn(fmt.Sprintf("c%d", c)))
	}
	ddl.WriteString(")")
	rel := table("t", cols...)
	value := strings.Repeat("v", bytes/(columns-1))
	for b.Loop() {
		b.StopTimer()
		p := newBenchPair(b, ddl.String())
		s := p.open(b)
		x := s.w.Load().exec
		x.copyRows, x.copyBytes = limit, limit
		m := &maker{lsn: p.point + 1000}
		pid := p.dst.Query(b, "SELECT pid FROM pg_stat_activity WHERE application_name = 'millrace:shop:apply' AND datname = current_database()")
		b.StartTimer()
		client, target := cpu(b, pid)
		for from := 0; from < total; from += rows {
			b.StopTimer()
			changes := make([]millrace.Change, rows)
			for i := range changes {
				row := m.row(columns)
				row[0] = m.int4(from + i)
				for c := 1; c < columns; c++ {
					row[c] = m.text(value)
				}
				changes[i] = millrace.Change{Op: millrace.Insert, Rel: rel, New: row}
			}
			t := m.txn(changes...)
			b.StartTimer()
			end := t.End
			if err := s.Write(context.Background(), t); err != nil {
				b.Fatal(err)
			}
			s.Flush()
			if _, err := s.Visible(context.Background(), end-1); err != nil {
				b.Fatal(err)
			}
		}
		c, t := cpu(b, pid)
		b.ReportMetric((c-client)*1e6/float64(total), "client-us/row")
		b.ReportMetric((t-target)*1e6/float64(total), "target-us/row")
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Error(err)
		}
		b.StartTimer()
	}
}
