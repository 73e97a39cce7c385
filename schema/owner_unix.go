//go:build unix

package schema

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// ownedByUs tells whether only root and the current user can have put the file
// or directory there. A number that belongs to no account counts as well: an
// archive that root unpacks keeps the numbers of its maker.
func ownedByUs(path string) bool {
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm()&0o002 != 0 {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	if sys.Uid == 0 || int(sys.Uid) == os.Geteuid() {
		return true
	}
	_, err = user.LookupId(strconv.Itoa(int(sys.Uid)))
	var unknown user.UnknownUserIdError
	return errors.As(err, &unknown)
}
