package pgserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who the servers run as. PostgreSQL refuses to run as root, so root
// uses the account "postgres", which it creates if there is none; everybody
// else runs servers as themselves.
type account struct {
	uid, gid uint32
	switched bool // we are root and the servers are not
}

const accountName = "postgres"

func findAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return &account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}, nil
	}
	u, err := user.Lookup(accountName)
	if err != nil {
		u, err = createAccount()
	}
	if err != nil {
		return nil, fmt.Errorf("servers can't run as root and need an account %q: %w", accountName, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &account{uid: uint32(uid), gid: uint32(gid), switched: true}, nil
}

func createAccount() (*user.User, error) {
	l, err := lock("account")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if u, err := user.Lookup(accountName); err == nil {
		return u, nil
	}
	out, err := exec.Command("useradd", "--system", "--user-group", "--no-create-home",
		"--shell", "/usr/sbin/nologin", accountName).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("useradd: %w: %s", err, out)
	}
	return user.Lookup(accountName)
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if !a.switched {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// canReach checks that the account can pass every directory down to path.
func (a *account) canReach(path string) error {
	if !a.switched {
		return nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for d := path; ; d = filepath.Dir(d) {
		st, err := os.Stat(d)
		if err != nil {
			return err
		}
		if st.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("the account %q can't pass the directory %s: set MILLRACE_RIG to a place that it can reach", accountName, d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// credential makes cmd run as the account.
func (a *account) credential(attr *syscall.SysProcAttr) {
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

// run runs one program as the account and returns what it printed if it fails.
func (a *account) run(bin, prog string, args ...string) error {
	cmd := exec.Command(filepath.Join(bin, prog), args...)
	cmd.Env = serverEnv(bin)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	a.credential(cmd.SysProcAttr)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", prog, err, out)
	}
	return nil
}

// serverEnv is the environment of servers: nothing of ours but the path, so
// that no PG* variable or locale of the user's changes what a test sees.
func serverEnv(bin string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C.UTF-8", "TZ=UTC"}
	if l := libraryPath(bin); l != "" {
		env = append(env, l)
	}
	return env
}
