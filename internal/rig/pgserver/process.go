package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/rig/child"
)

// launch starts the postmaster and waits until it takes connections.
func (s *Server) launch(ctx context.Context) error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.DataDir())
	cmd.Env = serverEnv(s.bin)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	s.acc.credential(cmd.SysProcAttr)
	p, err := child.Start(cmd, syscall.SIGQUIT) // an immediate shutdown when we die
	if err != nil {
		return fmt.Errorf("start PostgreSQL %d: %w", s.major, err)
	}
	s.mu.Lock()
	s.run = p
	s.mu.Unlock()
	return s.awaitReady(ctx, p)
}

// startTimeout is for crash recovery of what a test has written, on a machine
// that is busy with other tests.
const startTimeout = 90 * time.Second

func (s *Server) awaitReady(ctx context.Context, p *child.Process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.ready(p) {
		select {
		case <-p.Done():
			return fmt.Errorf("PostgreSQL %d ended while it started:\n%s", s.major, s.Log(20))
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL %d is not ready: %w\n%s", s.major, ctx.Err(), s.Log(20))
		case <-tick.C:
		}
	}
	return nil
}

// ready reads what pg_ctl reads: the last line of postmaster.pid, which the
// postmaster keeps up to date.
func (s *Server) ready(p *child.Process) bool {
	b, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(b), "\n")
	const status = 7 // LOCK_FILE_LINE_PM_STATUS, counted from 0
	return len(lines) > status && lines[0] == strconv.Itoa(p.PID()) &&
		(strings.TrimSpace(lines[status]) == "ready" || strings.TrimSpace(lines[status]) == "standby")
}

// Running tells whether the server's process is there.
func (s *Server) Running() bool { return s.current() != nil }

func (s *Server) current() *child.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || !s.run.Alive() {
		return nil
	}
	return s.run
}

// PID is the postmaster's process number, 0 when it does not run.
func (s *Server) PID() int {
	if p := s.current(); p != nil {
		return p.PID()
	}
	return 0
}

func (s *Server) signal(sig syscall.Signal) error {
	p := s.current()
	if p == nil {
		return errors.New("the server does not run")
	}
	return p.Signal(sig)
}

// Stop is a fast shutdown: sessions are cut, then a checkpoint is written.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

// Crash is an immediate shutdown: nothing is written, and the next start goes
// through recovery. What the server had handed to the operating system stays,
// so that fsync=off loses nothing: this is a crash of the server, not of the
// machine.
func (s *Server) Crash() error { return s.end(syscall.SIGQUIT) }

// Kill ends the postmaster and all its children with SIGKILL.
func (s *Server) Kill() error {
	p := s.current()
	if p == nil {
		return nil
	}
	// The postmaster is stopped first so that it starts no child meanwhile.
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	kids := children(p.PID())
	if err := s.end(syscall.SIGKILL); err != nil {
		return err
	}
	for _, pid := range kids {
		_ = syscall.Kill(pid, syscall.SIGKILL) // may be gone already
	}
	return s.awaitGone(kids)
}

// awaitGone waits until none of the processes works in the data directory any
// more: a server can't start while one still has the shared memory.
func (s *Server) awaitGone(pids []int) error {
	for range 1000 {
		left := 0
		for _, pid := range pids {
			if worksIn(pid, s.DataDir()) {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("processes of the killed server do not end")
}

// stopTimeout is how long a shutdown may take before it is forced.
const stopTimeout = 60 * time.Second

func (s *Server) end(sig syscall.Signal) error {
	p := s.current()
	if p == nil {
		return nil
	}
	if err := s.Continue(); err != nil {
		return err
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(stopTimeout):
	}
	_ = p.Signal(syscall.SIGKILL) // it is an error all the same
	<-p.Done()
	return fmt.Errorf("PostgreSQL %d did not stop on %v and was killed", s.major, sig)
}

// Restart starts a stopped, crashed or killed server again on the same port; a
// running one is stopped first.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.launch(ctx)
}

// Pause stops all processes of the server with SIGSTOP: connections stay open
// and nobody answers.
func (s *Server) Pause() error {
	p := s.current()
	if p == nil {
		return errors.New("the server does not run")
	}
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = append(children(p.PID()), p.PID())
	for _, pid := range s.paused {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // may be gone already
	}
	return nil
}

// Continue undoes Pause.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range s.paused {
		_ = syscall.Kill(pid, syscall.SIGCONT) // may be gone already
	}
	s.paused = nil
	return nil
}

// Close stops the server at once and removes its files.
func (s *Server) Close() error {
	var errs []error
	if s.Running() {
		errs = append(errs, s.Crash())
	}
	if s.home != nil {
		errs = append(errs, s.home.remove())
		s.home = nil
	}
	if s.portLock != nil {
		errs = append(errs, s.portLock.Close())
		s.portLock = nil
	}
	return errors.Join(errs...)
}
