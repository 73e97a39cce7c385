//go:build !linux

package main

import "time"

// nap sleeps as exactly as the runtime can.
func nap(d time.Duration) { <-time.After(d) }
