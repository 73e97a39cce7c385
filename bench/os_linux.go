package main

import (
	"syscall"
	"time"
)

// childAttr keeps Ctrl-C at the terminal from the child, which is ended in
// order, and has the kernel end it when this process dies.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// nap sleeps for less than a millisecond, which the runtime's timers round up
// to one when nothing else runs.
func nap(d time.Duration) {
	if d > 0 {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // a signal may cut it short
	}
}
