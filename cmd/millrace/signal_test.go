package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
)

// patience is for a machine that is busy with everything else, and busy what that
// may add to a time that is promised.
const (
	patience = 60 * time.Second
	busy     = 5 * time.Second
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
	rig.Eventually(t, patience, func() bool {
		got, err := target.TryQuery("shop", "SELECT state FROM millrace.job")
		return err == nil && got == "streaming"
	}, "it streams")
	target.Pause(t)
	t.Cleanup(func() { target.Continue(t) })
	source.SQL(t, "INSERT INTO t VALUES (1)")
	// It is on its way once the stream has passed it on. Others move the server's
	// position on, so that it is read once.
	committed := source.Query(t, "SELECT pg_current_wal_lsn()")
	rig.Eventually(t, patience, func() bool {
		return source.Query(t, "SELECT sent_lsn >= '"+committed+"' FROM pg_stat_replication WHERE application_name LIKE 'millrace:"+source.Name+":%'") == "t"
	}, "the change is sent")
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
	if d := time.Since(began); d > 10*time.Second+busy {
		t.Errorf("it took %v", d)
	}
	if code := exitOf(err); code != 0 {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

// A signal that comes while the program still reads its configuration is a stop
// as well, and not the death of the process.
func TestSignalAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "url"), filepath.Join(dir, "shop.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	yaml := fmt.Sprintf("job: shop\nsource: {postgres: {url: \"postgres://127.0.0.1:1/a\"}}\ndestination: {postgres: {url: \"${file:%s}\"}}\n"+
		"http: {listen: \"127.0.0.1:0\"}\n", fifo)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("millrace", "run", "-c", file)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, as a rule
	signalled := false
	for {
		// Opening waits for the program to open it for reading; each connection
		// reads the address anew.
		f, err := openFIFO(fifo)
		if err == nil {
			if !signalled {
				signalled = true
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := f.WriteString("postgres://127.0.0.1:1/b"); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		select {
		case err := <-ended:
			if code := exitOf(err); code != 0 || !signalled {
				t.Errorf("exit code %d: %v\n%s", code, err, &log)
			}
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// openFIFO opens it for writing if somebody reads.
func openFIFO(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
}

// A second signal ends it at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	cmd, log := stalled(t)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	rig.Eventually(t, patience, func() bool {
		select {
		case err = <-ended:
			return true
		// A process that gets no time sees two signals as one.
		case <-time.After(4 * sameSignal):
			_ = cmd.Process.Signal(syscall.SIGINT) // it may have ended just now
			return false
		}
	}, "it ends")
	// Otherwise it would have ended by itself, with code 0.
	if code := exitOf(err); code != 1 {
		t.Errorf("exit code %d\n%s", code, log)
	}
}
