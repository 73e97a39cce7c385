package main

import (
	"syscall"
	"time"
)

// nap sleeps for less than a millisecond, which the runtime's timers round up
// to one when nothing else runs.
func nap(d time.Duration) {
	if d > 0 {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // a signal may cut it short
	}
}
