package soak

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/child"
)

// initialize fills the source with pgbench's tables and foreign keys.
func (s *soak) initialize(t *testing.T) {
	t.Helper()
	cmd := exec.Command(s.source.Bin("pgbench"), "-i", "-q", "--foreign-keys", "-s", strconv.Itoa(s.scale), s.sourceDB.URL())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pgbench -i: %v\n%s", err, out)
	}
}

// bulkScript is a transaction so large that it is carried in parts. It keeps the
// totals equal, as pgbench's own does, and takes its locks in the same order.
const bulkScript = `
\set aid random(1, 100000 * :scale - 9999)
\set tid random(1, 10 * :scale)
\set bid random(1, :scale)
\set delta random(-100, 100)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid BETWEEN :aid AND :aid + 9999;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta * 10000 WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta * 10000 WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta * 10000, CURRENT_TIMESTAMP);
END;
`

// load runs pgbench until ctx ends. A crash of the source ends pgbench; it is
// started again until it can connect.
func (s *soak) load(ctx context.Context, t *testing.T) {
	bulk := filepath.Join(t.TempDir(), "bulk.sql")
	if err := os.WriteFile(bulk, []byte(bulkScript), 0o600); err != nil {
		t.Error(err)
		return
	}
	// -n: otherwise it begins with a TRUNCATE of the history.
	args := []string{"-n", "-c", "8", "-j", "2", "-T", fmt.Sprintf("%.0f", 5*s.length.Seconds()+120),
		"-b", "tpcb-like@1000", "-f", bulk + "@1", "--max-tries=100"}
	if s.rate > 0 {
		args = append(args, "-R", strconv.Itoa(s.rate))
	}
	for ctx.Err() == nil {
		if err := pgbench(ctx, s.sourceDB, args...); err != nil && s.faults[crashSource] == 0 {
			t.Error(err)
			return
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// pgbench runs until ctx ends; it is an error if it ends before.
func pgbench(ctx context.Context, db *rig.DB, args ...string) error {
	out := &strings.Builder{}
	cmd := exec.Command(db.Server.Bin("pgbench"), append(args, db.URL())...)
	cmd.Stdout, cmd.Stderr = out, out
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return fmt.Errorf("pgbench ended: %w\n%s", p.Wait(), out)
	case <-ctx.Done():
		_ = p.Signal(syscall.SIGTERM) // may have ended just now
		<-p.Done()
		return nil
	}
}
