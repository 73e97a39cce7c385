package main

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/relay"
)

// TestExplain: what a lag waits for follows from what was seen, and nothing is
// said where nothing was.
func TestExplain(t *testing.T) {
	apply, stream, nothing := relay.WaitsForApply, relay.WaitsForStream, relay.WaitsForNothing
	holder := &catalog.Backend{PID: 9, Application: "psql", State: "idle in transaction", Open: 3 * time.Minute}
	for name, c := range map[string]struct {
		engine string
		facts  facts
		word   string
		detail string
		pid    int32
	}{
		"unknown":        {"", facts{}, "", "", 0},
		"caught up":      {nothing, facts{}, waitsForNothing, "", 0},
		"applying":       {apply, facts{}, waitsForTarget, "", 0},
		"executing":      {apply, facts{applier: &catalog.Applier{PID: 4, State: "active"}}, waitsForTarget, "pid 4 executes", 0},
		"disk":           {apply, facts{applier: &catalog.Applier{PID: 4, State: "active", WaitType: "IO", Wait: "DataFileRead"}}, waitsForTarget, "IO DataFileRead", 0},
		"lock":           {apply, facts{applier: &catalog.Applier{PID: 4, State: "active", WaitType: "Lock", Blocker: holder, Table: "public.orders"}}, waitsForLock, "pid 9 (psql, idle in transaction, for 3m0s) holds a lock on public.orders that pid 4 needs", 9},
		"prepared":       {apply, facts{applier: &catalog.Applier{PID: 4, WaitType: "Lock", Blocker: &catalog.Backend{}}}, waitsForLock, "a prepared transaction (pg_prepared_xacts) holds a lock that", 0},
		"preparing":      {apply, facts{applier: &catalog.Applier{PID: 4, State: "idle in transaction", WaitType: "Client", Wait: "ClientRead"}}, waitsForQueue, "prepared", 0},
		"no walsender":   {stream, facts{}, "", "", 0},
		"not allowed":    {stream, facts{sender: &catalog.Sender{PID: 5}}, "", "", 0},
		"decoding":       {stream, facts{sender: &catalog.Sender{PID: 5, Visible: true}}, waitsForDecoding, "pid 5", 0},
		"reading WAL":    {stream, facts{sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "IO", Wait: "WALRead"}}, waitsForDecoding, "pid 5", 0},
		"spilling":       {stream, facts{spilled: true, sender: &catalog.Sender{PID: 5, Visible: true}}, waitsForSpill, "logical_decoding_work_mem", 0},
		"reading spills": {stream, facts{sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "IO", Wait: "ReorderBufferRead"}}, waitsForSpill, "", 0},
		"network":        {stream, facts{sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "Client", Wait: "WalSenderWriteData"}}, waitsForNetwork, "pid 5", 0},
		"back pressure":  {stream, facts{applier: &catalog.Applier{PID: 4, State: "active"}, sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "Client", Wait: "WalSenderWriteData"}}, waitsForTarget, "pid 4 executes", 0},
		"lock in a part": {stream, facts{applier: &catalog.Applier{PID: 4, Blocker: holder}, sender: &catalog.Sender{PID: 5, Visible: true}}, waitsForLock, "pid 9", 9},
		"transaction":    {stream, facts{sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "Lock", Wait: "transactionid", BlockedBy: 7}}, waitsForTransaction, "the transaction of pid 7", 7},
		"idle":           {stream, facts{position: 100, sender: &catalog.Sender{PID: 5, Visible: true, WaitType: "Activity", Wait: "WalSenderMain", Sent: 100}}, waitsForIdle, "nothing is left", 0},
	} {
		var lag relay.Lag
		if c.engine != "" {
			lag.WaitsFor = &c.engine
		}
		word, detail, pid := explain(lag, c.facts)
		if word != c.word || pid != c.pid || !strings.Contains(detail, c.detail) {
			t.Errorf("%s: %q %q %d, want %q %q %d", name, word, detail, pid, c.word, c.detail, c.pid)
		}
	}
}

// TestWALHeldBy: a long transaction at the source is told from our lag.
func TestWALHeldBy(t *testing.T) {
	oldest := &catalog.Backend{PID: 7, Open: time.Hour}
	for _, c := range []struct {
		restart, confirmed, position int64
		oldest                       *catalog.Backend
		want                         string
	}{
		{100 << 20, 110 << 20, 120 << 20, oldest, ""}, // little
		{0, 900 << 20, 1000 << 20, oldest, "source_transaction"},
		{0, 900 << 20, 1000 << 20, nil, ""}, // it has just ended
		{0, 100 << 20, 1000 << 20, oldest, "lag"},
		{0, 100 << 20, 1000 << 20, nil, "lag"},
	} {
		s := &catalog.Slot{Restart: millrace.LSN(c.restart), ConfirmedFlush: millrace.LSN(c.confirmed), RetainedBytes: c.position - c.restart}
		if got := walHeldBy(s, c.oldest); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if s := backendStatus(oldest); s.PID != 7 || *s.Seconds != 3600 || s.Application != nil {
		t.Errorf("%+v", s)
	}
}
