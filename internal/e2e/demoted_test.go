package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

// TestDemotedTarget: a target that comes back as a standby takes no rows. It is
// waited for, as the new primary of a failover is, and the job goes on.
func TestDemotedTarget(t *testing.T) {
	t.Parallel()
	p := newPair(t, plan{target: rig.Start(t, rig.Newest), schema: eventsSchema})
	p.Start(t, "--bootstrap")
	p.sync(t)
	p.get(t, "/healthz", nil) // its address is in the record
	p.target.Server.Stop(t)
	// Without a primary it replays nothing and waits.
	if err := os.WriteFile(filepath.Join(p.target.Server.DataDir(), "standby.signal"), nil, 0o644); err != nil { //nolint:gosec // another account's server reads it
		t.Fatal(err)
	}
	p.target.Server.Restart(t)
	p.source.SQL(t, "INSERT INTO events SELECT i, 'meanwhile' FROM generate_series(1, 100) i; UPDATE t SET v = v + 1")
	rig.Eventually(t, patience, func() bool {
		_, body := p.get(t, "/status", nil)
		return contains(body, `"condition":"destination_unreachable"`, "read-only transaction")
	}, "the standby is waited for, with the reason")
	p.target.Server.Promote(t)
	p.finish(t)
}
