//go:build unix

package session

import (
	"os"
	"syscall"
	"testing"
)

// owner tells to whom a file belongs.
func owner(t *testing.T, path string) (uid, gid int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	return int(stat.Uid), int(stat.Gid)
}
