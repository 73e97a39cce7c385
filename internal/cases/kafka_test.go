package cases

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// unbottling is two jobs: one that writes the source into Kafka, and one that makes a
// database of that again.
type unbottling struct {
	in, out *blackbox.Job
	source  *rig.DB
}

func newUnbottling(t *testing.T, r *run, existing bool) job {
	t.Helper()
	k := rig.SharedKafka(t)
	prefix := strings.ReplaceAll(r.source.Name, "_", "-")
	topics := fmt.Sprintf("brokers: [%q], prefix: %s", k.Brokers()[0], prefix)
	return unbottling{
		in: blackbox.NewJob(t, blackbox.Options{Name: r.source.Name, Source: r.source, Kafka: "{" + topics + ", partitions: 2}", Extra: r.extra}),
		out: blackbox.NewJob(t, blackbox.Options{Name: "out_" + r.source.Name, Source: r.source, Target: r.target, Existing: existing,
			From: "{" + topics + "}", Extra: r.extra}),
		source: r.source,
	}
}

func (u unbottling) Start(t testing.TB) {
	t.Helper()
	u.in.Start(t, "--bootstrap")
	u.out.Start(t, "--bootstrap")
}

// Wait awaits a message behind everything that is committed: the position of an idle
// source goes into a topic every ten seconds only.
func (u unbottling) Wait(timeout time.Duration) error {
	at, err := u.source.Server.TryQuery(u.source.Name, "SELECT pg_logical_emit_message(true, 'wait', '')")
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(timeout); ; {
		err = u.out.WaitFor(at, time.Second)
		switch {
		case err == nil || time.Now().After(deadline) || !u.out.Running():
			return err
		case !u.in.Running():
			return errors.Join(err, fmt.Errorf("the job that writes to Kafka has ended with code %d", u.in.ExitCode()))
		}
	}
}

// Refusal asks the one that refused.
func (u unbottling) Refusal(t testing.TB) (string, error) {
	t.Helper()
	if u.in.Running() {
		return u.out.Refusal(t)
	}
	if code := u.in.ExitCode(); code != blackbox.Stuck {
		return "", fmt.Errorf("exit code %d, want %d", code, blackbox.Stuck)
	}
	var st struct{ State, Reason, Hint string }
	if err := json.Unmarshal([]byte(u.in.Run(t, "status", "--json").Stdout), &st); err != nil || st.Reason == "" || st.Hint == "" {
		return "", fmt.Errorf("the record says %+v: want a state, a reason and a hint; %w", st, err)
	}
	// A first load that was refused says why where it was started, and not in the record.
	var printed string
	for line := range strings.Lines(u.in.Log(20)) {
		if strings.HasPrefix(line, "error: ") {
			printed = " (" + strings.TrimSpace(line) + ")"
		}
	}
	return st.State + ": " + st.Reason + printed, nil
}
