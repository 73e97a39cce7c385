package soak

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// load runs pgbench until ctx ends. A crash of the source ends pgbench; it is
// started again until it can connect.
func (s *soak) load(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		out := &strings.Builder{}
		// -n: otherwise it begins with a TRUNCATE of the history.
		args := []string{"-n", "-c", "8", "-j", "2", "-T", fmt.Sprintf("%.0f", s.length.Seconds()+60)}
		if s.rate > 0 {
			args = append(args, "-R", strconv.Itoa(s.rate))
		}
		cmd := exec.Command(s.source.Bin("pgbench"), append(args, s.sourceDB.URL())...)
		cmd.Stdout, cmd.Stderr = out, out
		p, err := child.Start(cmd, syscall.SIGKILL)
		if err != nil {
			t.Error(err)
			return
		}
		select {
		case <-p.Done():
			if s.faults[crashSource] == 0 {
				t.Errorf("pgbench ended: %v\n%s", p.Wait(), out)
				return
			}
			pause(ctx, 50*time.Millisecond)
		case <-ctx.Done():
			_ = p.Signal(syscall.SIGTERM) // may have ended just now
			<-p.Done()
		}
	}
}
