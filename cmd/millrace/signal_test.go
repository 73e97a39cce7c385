package main

import (
	"bytes"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
)

// stalled is a millrace run whose target does not answer any more, with a
// transaction on its way there.
func stalled(t *testing.T) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	source, target := rig.Shared(t, sourceMajor).NewDB(t), rig.Start(t, targetMajor)
	target.SQL(t, "postgres", "CREATE DATABASE shop")
	source.SQL(t, "CREATE TABLE t (id int PRIMARY KEY)")
	args := []string{"--job", source.Name, "--from", source.URL(), "--to", target.URL("shop"), "--table", "public.*"}
	boot := exec.Command("millrace", append([]string{"bootstrap", "--create-publication", "--pg-dump", source.Server.Bin("pg_dump")}, args...)...)
	if out, err := boot.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command("millrace", append([]string{"run"}, args...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Kill(); err == nil {
			t.Error("it still ran")
			_ = cmd.Wait() // killed
		}
	})
	rig.Eventually(t, 20*time.Second, func() bool {
		got, err := target.TryQuery("shop", "SELECT state FROM millrace.job")
		return err == nil && got == "streaming"
	})
	target.Pause(t)
	t.Cleanup(func() { target.Continue(t) })
	source.SQL(t, "INSERT INTO t VALUES (1)")
	// It is on its way once the stream has passed it on.
	rig.Eventually(t, 10*time.Second, func() bool {
		return source.Query(t, "SELECT pg_wal_lsn_diff(sent_lsn, pg_current_wal_insert_lsn()) >= 0 FROM pg_stat_replication WHERE application_name LIKE 'millrace:"+source.Name+":%'") == "t"
	})
	return cmd, &log
}

func exitOf(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// A target that does not answer can't hold up a stop for more than 10 s.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	cmd, log := stalled(t)
	began := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	if code := exitOf(err); code != 0 {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

// A second signal ends it at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	cmd, log := stalled(t)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	<-time.After(4 * sameSignal)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatalf("it ended after the first one: %v\n%s", err, log)
	}
	err := cmd.Wait()
	if d := time.Since(began); d > 3*time.Second {
		t.Errorf("it took %v", d)
	}
	if code := exitOf(err); code != 1 {
		t.Errorf("exit code %d\n%s", code, log)
	}
}
