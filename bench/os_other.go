//go:build !linux

package main

import (
	"syscall"
	"time"
)

// childAttr keeps Ctrl-C at the terminal from the child, which is ended in
// order. Without /proc there are times but no CPU and memory figures.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// nap sleeps as exactly as the runtime can.
func nap(d time.Duration) { <-time.After(d) }
