package airbyte

import (
	"bytes"
	"log/slog"
	"testing"
)

// TestLog: a line for people begins with what it says.
func TestLog(t *testing.T) {
	var out bytes.Buffer
	logger := NewLogger(NewWriter(&out), slog.LevelInfo)
	logger.Info("created the slot", "slot", "s")
	logger.Debug("unseen")
	logger.Warn("odd")
	want := `{"type":"LOG","log":{"level":"INFO","message":"created the slot slot=s"}}` + "\n" +
		`{"type":"LOG","log":{"level":"WARN","message":"odd"}}` + "\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
