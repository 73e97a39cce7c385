package main

import (
	"testing"
	"time"

	"github.com/millrace/millrace/backfill"
)

// TestMeter: the rate is that of the last seconds, unknown before there are some,
// and begins anew with another load.
func TestMeter(t *testing.T) {
	var m meter
	now := time.Unix(1_000_000, 0)
	for s := range 100 {
		rows := int64(100 * s)
		if s > 50 {
			rows += int64(900 * (s - 50))
		}
		perRow, perByte, ok := m.rate(now.Add(time.Duration(s)*time.Second), rows, 10*rows)
		switch {
		case ok != (s >= 3):
			t.Fatalf("after %d s: known %v", s, ok)
		case s == 40 && (perRow != 100 || perByte != 1000):
			t.Errorf("%v rows/s, %v bytes/s", perRow, perByte)
		case s == 90 && (perRow != 1000 || perByte != 10000):
			t.Errorf("%v rows/s, %v bytes/s after it became faster", perRow, perByte)
		}
	}
	if n := len(m.looks); n > 25 {
		t.Errorf("%d looks are kept", n)
	}
	if _, _, ok := m.rate(now.Add(101*time.Second), 5, 50); ok {
		t.Error("the rate of another load is known at once")
	}
}

// TestLoadBeside: what is left comes from the tables that are not through; where one
// of them has no estimate it is unknown, and while the load rests so is the end.
func TestLoadBeside(t *testing.T) {
	var e engine
	all := []backfill.TableProgress{{Rows: 100, Bytes: 1000, Estimated: 300}, {Rows: 50, Bytes: 500, Estimated: 40, Read: true}}
	l := e.loadBeside(all, 3, time.Time{})
	if l.TablesDone != 3 || l.Rows != 150 || l.Bytes != 1500 || l.EstimatedBytes == nil || *l.EstimatedBytes != 3500 || l.ETASeconds != nil {
		t.Errorf("%+v", l)
	}
	e.meter.looks = []look{{time.Now().Add(-10 * time.Second), 50, 500}}
	if l = e.loadBeside(all, 3, time.Time{}); l.ETASeconds == nil || *l.ETASeconds < 15 || *l.ETASeconds > 25 {
		t.Errorf("200 rows at 10 a second: %v", l.ETASeconds)
	}
	if l = e.loadBeside(all, 3, time.Now()); l.ETASeconds != nil || l.BytesPerSecond != nil || l.Phase != "resting" {
		t.Errorf("while it rests: %+v", l)
	}
	all[0].Estimated = -1
	if l = e.loadBeside(all, 3, time.Time{}); l.EstimatedBytes != nil || l.ETASeconds != nil {
		t.Errorf("without an estimate: %+v", l)
	}
}
