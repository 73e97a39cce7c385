package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/backfill"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/web"
)

// meterOver is the time over which the rate of loads beside the stream is taken.
const meterOver = 20 * time.Second

// meter knows how fast loads beside the stream read. It is shown what they have
// read at each look at the status, which the web server takes once a second.
type meter struct {
	mu    sync.Mutex
	looks []look // the oldest first, no more than one a second
}

type look struct {
	at          time.Time
	rows, bytes int64
}

// rate takes note of what has been read so far, and gives rows and bytes a second;
// ok is false while that is not known. What begins anew begins anew here.
func (m *meter) rate(now time.Time, rows, bytes int64) (perRow, perByte float64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.looks); n > 0 && rows < m.looks[n-1].rows {
		m.looks = nil
	}
	if n := len(m.looks); n == 0 || now.Sub(m.looks[n-1].at) >= time.Second {
		m.looks = append(m.looks, look{now, rows, bytes})
	}
	for len(m.looks) > 1 && now.Sub(m.looks[1].at) >= meterOver {
		m.looks = m.looks[1:]
	}
	first := m.looks[0]
	over := now.Sub(first.at).Seconds()
	if over < 3 {
		return 0, 0, false
	}
	return float64(rows-first.rows) / over, float64(bytes-first.bytes) / over, true
}

// showLoads adds what is loaded beside the stream to the tables of a status; with
// the time since when that rests, if it does.
func (e *engine) showLoads(st *web.Status, resting time.Time) {
	if e.backfill == nil {
		return
	}
	at := map[string]int{}
	for i := range st.Tables {
		at[st.Tables[i].Table] = i
	}
	all := e.backfill.Progress()
	n := 0
	for i := range all {
		p := &all[i]
		row, ok := at[p.Name.String()]
		if !ok {
			continue
		}
		n++
		t := &st.Tables[row]
		t.State, t.RowsCopied, t.BytesCopied = "copying", &p.Rows, &p.Bytes
		if p.Estimated >= 0 {
			t.RowsEstimated = &p.Estimated
		}
		if !resting.IsZero() {
			t.State, st.LoadPaused = "paused", web.KnownTime(resting)
		}
	}
	if n > 0 {
		st.Load = e.loadBeside(all, len(st.Tables)-n, resting)
	}
	if n > 0 && st.Destination.ConsistentFrom == nil {
		st.LoadRows = web.Known(int64(0))
		for i := range st.Tables {
			if rows := st.Tables[i].RowsCopied; rows != nil {
				*st.LoadRows += *rows
			}
		}
		if l := st.Load; l.EstimatedBytes != nil {
			st.LoadRest = web.Known(*l.EstimatedBytes - l.Bytes)
		}
	}
	if n > 0 && st.State == string(record.CatchingUp) && st.Reason == besideTheStream {
		st.Reason = fmt.Sprintf("%s: %d of %d tables are left", besideTheStream, n, len(st.Tables))
	}
}

// loadBeside sums up what is loaded beside the stream. What is left is told from the
// estimated rows of the tables that are not through, at the present rate.
func (e *engine) loadBeside(all []backfill.TableProgress, done int, resting time.Time) *web.Load {
	l := &web.Load{Phase: "reading in chunks", TablesDone: done}
	var left int64
	for i := range all {
		l.Rows += all[i].Rows
		l.Bytes += all[i].Bytes
		if all[i].Estimated < 0 && !all[i].Read {
			left = -1
		}
		if left >= 0 && !all[i].Read {
			left += max(all[i].Estimated-all[i].Rows, 0)
		}
	}
	if left >= 0 && l.Rows > 0 {
		l.EstimatedBytes = web.Known(l.Bytes + int64(float64(left)*float64(l.Bytes)/float64(l.Rows)))
	}
	rows, bytes, ok := e.meter.rate(time.Now(), l.Rows, l.Bytes)
	if !resting.IsZero() {
		l.Phase, ok = "resting", false
	}
	if ok {
		l.BytesPerSecond = &bytes
	}
	if ok && left > 0 && rows > 0 {
		l.ETASeconds = web.Known(float64(left) / rows)
	}
	return l
}
