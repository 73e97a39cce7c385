package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/snapshot"
	"github.com/millrace/millrace/web"
)

// A load over 35 s, reported four times a second.
func report(l *load) {
	p := snapshot.Progress{Phase: snapshot.PhaseSlot}
	l.Report(p)
	p.Phase, p.EstimatedBytes = snapshot.PhaseRows, 1400
	p.Tables = []snapshot.TableProgress{
		{Name: millrace.TableName{Schema: "public", Name: "a"}, EstimatedRows: 10, Rows: 10, Bytes: 700, Done: true},
		{Name: millrace.TableName{Schema: "public", Name: "b"}, EstimatedRows: -1},
	}
	for range 140 {
		p.Rows++
		p.Bytes += 10
		p.TablesDone = 1
		l.Report(p)
		<-time.After(250 * time.Millisecond)
	}
}

func TestLoadLinesAndBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		phases := 0
		l := newLoad(&app{stderr: &out}, log, func() { phases++ })
		report(l)
		l.close()
		if n := strings.Count(out.String(), "msg=\"first load\""); n != 5 || phases != 2 {
			t.Errorf("%d lines, %d phases, want one per phase and one every 10 s:\n%s", n, phases, &out)
		}
		st := &web.Status{State: "bootstrapping"}
		l.show(st)
		if len(st.Tables) != 2 || st.Tables[0].State != "copied" || st.Tables[1].State != "waiting" ||
			st.Tables[1].RowsEstimated != nil || *st.LoadRows != 140 || *st.LoadRest != 0 {
			t.Errorf("status %+v", st)
		}

		out.Reset()
		l = newLoad(&app{stderr: &out, terminal: true}, log, func() {})
		report(l)
		l.close()
		if s := out.String(); strings.Count(s, "msg=\"first load\"") != 2 || !strings.Contains(s, "1/2 tables, 139 rows") {
			t.Errorf("on a terminal:\n%s", s)
		}

		out.Reset()
		l = newLoad(&app{stderr: &out, terminal: true, quiet: true}, log, func() {})
		report(l)
		l.close()
		if out.Len() != 0 {
			t.Errorf("quiet:\n%s", &out)
		}
	})
}
