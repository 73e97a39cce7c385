// Package child starts processes that end with the one that started them,
// however that one ends.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a running or ended child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts cmd as a process group of its own, so that Ctrl-C at the
// terminal reaches us and not the child. On Linux the kernel sends it the
// signal when we die; elsewhere it outlives a killed parent.
//
// The kernel's signal comes when the thread that forked ends, not the process,
// and the runtime ends threads that it has no use for. So a goroutine keeps its
// thread until the child has ended.
func Start(cmd *exec.Cmd, onDeath syscall.Signal) (*Process, error) {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	setDeathSignal(cmd.SysProcAttr, onDeath)
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive tells whether the child runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// PID is the process number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal; the child may have ended already.
func (p *Process) Signal(sig syscall.Signal) error { return p.cmd.Process.Signal(sig) }

// Wait waits for the end and says how it was, as (*exec.Cmd).Wait does.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// ExitCode is that of an ended child, -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}
