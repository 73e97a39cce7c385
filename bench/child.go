package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a client process whose CPU time and memory are measured.
type child struct {
	cmd  *exec.Cmd
	out  tail
	done chan struct{} // closed when it has ended
	err  error         // valid then
}

// startChild starts a program. It is ended with ctx, and by the kernel when
// this process dies: that is tied to the thread that forks, so a goroutine
// keeps its thread until the child has ended.
func startChild(ctx context.Context, program string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, program, args...), done: make(chan struct{})}
	c.cmd.Env = cleanEnv()
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.SysProcAttr = childAttr()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
			close(c.done)
		}
	}()
	return c, <-started
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// wait waits for its own end and gives the CPU time it took.
func (c *child) wait() (time.Duration, error) {
	<-c.done
	if c.err != nil {
		return 0, c.failure("")
	}
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime(), nil
}

// terminate asks it to end, and insists after a while.
func (c *child) terminate() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		<-c.done
		return c.failure("ended early")
	}
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill() // reported below either way
		<-c.done
		return c.failure("did not end on SIGTERM")
	}
	if c.err != nil {
		return c.failure("")
	}
	return nil
}

func (c *child) failure(what string) error {
	name := filepath.Base(c.cmd.Path)
	err := c.err
	if what != "" {
		err = errors.Join(errors.New(what), c.err)
	}
	return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(c.out.String()))
}

// tail keeps the end of what a child prints.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b.Len() > 64<<10 {
		t.b.Reset()
	}
	return t.b.Write(p)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 2000
	b := t.b.Bytes()
	return string(b[max(0, len(b)-most):])
}
