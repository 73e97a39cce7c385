package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/rig/child"
)

// client is a process whose CPU time and memory are measured.
type client struct {
	*child.Process
	cmd *exec.Cmd
	out tail
}

// startClient starts a program that ends with ctx, or with this process.
func startClient(ctx context.Context, program string, args ...string) (*client, error) {
	c := &client{cmd: exec.CommandContext(ctx, program, args...)}
	c.cmd.Env = cleanEnv()
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	var err error
	c.Process, err = child.Start(c.cmd, syscall.SIGKILL)
	return c, err
}

// finish waits for its own end and gives the CPU time it took.
func (c *client) finish() (time.Duration, error) {
	if err := c.Wait(); err != nil {
		return 0, c.failure(err)
	}
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime(), nil
}

// terminate asks it to end, and insists after a while.
func (c *client) terminate() error {
	if err := c.Signal(syscall.SIGTERM); err != nil {
		return c.failure(errors.Join(errStopped, c.Wait()))
	}
	select {
	case <-c.Done():
	case <-time.After(20 * time.Second):
		_ = c.Signal(syscall.SIGKILL) // reported either way
		return c.failure(errors.Join(errors.New("did not end on SIGTERM"), c.Wait()))
	}
	if err := c.Wait(); err != nil {
		return c.failure(err)
	}
	return nil
}

var errStopped = errors.New("ended before the backlog was drained")

func (c *client) failure(err error) error {
	return fmt.Errorf("%s: %w: %s", filepath.Base(c.cmd.Path), err, strings.TrimSpace(c.out.String()))
}

// tail keeps the end of what a client prints.
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
