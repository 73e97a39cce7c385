package millrace_test

import (
	"testing"

	"github.com/millrace/millrace"
)

// TestLoosen: what holds behind a change is all of a row only where all of it was sent.
func TestLoosen(t *testing.T) {
	sent, unsent, old := millrace.Value{Kind: millrace.Text}, millrace.Value{Kind: millrace.Unchanged}, millrace.Value{Kind: millrace.Binary}
	for _, c := range []struct {
		change millrace.Change
		want   millrace.Op
		value  millrace.ValueKind
	}{
		{millrace.Change{Op: millrace.Insert, New: millrace.Row{sent}}, millrace.Put, sent.Kind},
		{millrace.Change{Op: millrace.Read, New: millrace.Row{sent}}, millrace.Put, sent.Kind},
		{millrace.Change{Op: millrace.Insert, New: millrace.Row{unsent}}, millrace.Amend, unsent.Kind},
		{millrace.Change{Op: millrace.Read, New: millrace.Row{unsent}}, millrace.Amend, unsent.Kind},
		{millrace.Change{Op: millrace.Update, New: millrace.Row{sent}}, millrace.Put, sent.Kind},
		{millrace.Change{Op: millrace.Update, New: millrace.Row{unsent}}, millrace.Amend, unsent.Kind},
		{millrace.Change{Op: millrace.Update, New: millrace.Row{unsent}, Old: millrace.Row{old}, OldFull: true}, millrace.Put, old.Kind},
	} {
		got := c.change
		got.Loosen()
		if got.Op != c.want || got.New[0].Kind != c.value {
			t.Errorf("%v of %c: %v of %c, want %v of %c", c.change.Op, c.change.New[0].Kind, got.Op, got.New[0].Kind, c.want, c.value)
		}
	}
}
