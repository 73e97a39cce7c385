//go:build !linux

package replication

// setLowWater does nothing: other systems honour SO_RCVLOWAT for blocking reads
// only, or not at all.
func setLowWater(uintptr, int) {}

// peek does not know, so a connection with TLS is not paced.
func peek(uintptr) bool { return true }
