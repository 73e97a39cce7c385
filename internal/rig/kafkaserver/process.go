package kafkaserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/rig/child"
)

// Bounds of waiting for a node, on a machine that is busy with other tests.
const (
	startTimeout = 240 * time.Second
	stopTimeout  = 60 * time.Second
)

func (c *Cluster) launchAll(ctx context.Context) error {
	marks := make([]int64, len(c.nodes))
	for i, n := range c.nodes {
		var err error
		if marks[i], err = n.launch(c.jvm()); err != nil {
			return err
		}
	}
	for i, n := range c.nodes {
		if err := n.awaitReady(ctx, marks[i]); err != nil {
			return fmt.Errorf("%w\nlogs of all nodes:\n%s", err, c.Log(10))
		}
	}
	return nil
}

func (c *Cluster) jvm() []string {
	if c.opt.JVM != nil {
		return c.opt.JVM
	}
	return jvm
}

// launch starts the node and gives the length that its log had before.
func (n *node) launch(jvm []string) (int64, error) {
	log, err := os.OpenFile(n.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil {
		return 0, err
	}
	cmd := java(jvm, "kafka.Kafka", n.propertiesPath())
	cmd.Dir = n.dir
	cmd.Stdout, cmd.Stderr = log, log
	p, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return 0, fmt.Errorf("start Kafka node %d: %w", n.id, err)
	}
	n.mu.Lock()
	n.run = p
	n.mu.Unlock()
	return st.Size(), nil
}

func (n *node) logPath() string { return filepath.Join(n.dir, "log") }

func (n *node) awaitReady(ctx context.Context, mark int64) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	p := n.current()
	for {
		b, err := os.ReadFile(n.logPath())
		if err != nil {
			return err
		}
		if strings.Contains(string(b[min(mark, int64(len(b))):]), readyLine) {
			return nil
		}
		if p == nil || !p.Alive() {
			return fmt.Errorf("node %d of Kafka ended while it started:\n%s", n.id, n.log(30))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %d of Kafka is not ready: %w\n%s", n.id, ctx.Err(), n.log(30))
		case <-tick.C:
		}
	}
}

func (n *node) current() *child.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run == nil || !n.run.Alive() {
		return nil
	}
	return n.run
}

func (n *node) end(sig syscall.Signal) error {
	p := n.current()
	if p == nil {
		return nil
	}
	n.mu.Lock()
	paused := n.paused
	n.paused = false
	n.mu.Unlock()
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if paused {
		_ = p.Signal(syscall.SIGCONT) // it may have ended
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(stopTimeout):
	}
	_ = p.Signal(syscall.SIGKILL) // it is an error all the same
	<-p.Done()
	return fmt.Errorf("node %d of Kafka did not stop on %v and was killed", n.id, sig)
}

func (c *Cluster) node(id int) (*node, error) {
	if id < 1 || id > len(c.nodes) {
		return nil, fmt.Errorf("no node %d: the cluster has %d", id, len(c.nodes))
	}
	return c.nodes[id-1], nil
}

// Kill ends a node with SIGKILL.
func (c *Cluster) Kill(id int) error { return c.end(id, syscall.SIGKILL) }

// Stop is an orderly shutdown of a node.
func (c *Cluster) Stop(id int) error { return c.end(id, syscall.SIGTERM) }

func (c *Cluster) end(id int, sig syscall.Signal) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	return n.end(sig)
}

// Restart starts a killed or stopped node again on the same ports; a running
// one is stopped first.
func (c *Cluster) Restart(ctx context.Context, id int) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	if err := n.end(syscall.SIGTERM); err != nil {
		return err
	}
	mark, err := n.launch(c.jvm())
	if err != nil {
		return err
	}
	return n.awaitReady(ctx, mark)
}

// Pause stops a node's process: connections stay open and nobody answers.
func (c *Cluster) Pause(id int) error { return c.pause(id, syscall.SIGSTOP, true) }

// Continue undoes Pause.
func (c *Cluster) Continue(id int) error { return c.pause(id, syscall.SIGCONT, false) }

func (c *Cluster) pause(id int, sig syscall.Signal, paused bool) error {
	n, err := c.node(id)
	if err != nil {
		return err
	}
	p := n.current()
	if p == nil {
		return fmt.Errorf("node %d of Kafka does not run", id)
	}
	n.mu.Lock()
	n.paused = paused
	n.mu.Unlock()
	return p.Signal(sig)
}

// PID is a node's process number, 0 when it does not run.
func (c *Cluster) PID(id int) int {
	n, err := c.node(id)
	if err != nil {
		return 0
	}
	if p := n.current(); p != nil {
		return p.PID()
	}
	return 0
}

// Log gives the last lines of every node's log.
func (c *Cluster) Log(lines int) string {
	var b strings.Builder
	for _, n := range c.nodes {
		fmt.Fprintf(&b, "node %d:\n%s\n", n.id, n.log(lines))
	}
	return b.String()
}

func (n *node) log(count int) string {
	b, err := os.ReadFile(n.logPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}
