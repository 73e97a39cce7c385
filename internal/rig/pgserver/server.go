package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/millrace/millrace/internal/rig/child"
)

const superuser = "postgres"

// Options say what server to start.
type Options struct {
	Major int
	// ICU asks for the build of ICUMajor that has ICU.
	ICU bool
	// Settings are lines for postgresql.conf, "name=value" with a bare value;
	// they come after the rig's own and win.
	Settings []string
	// Name is part of the directory's name, for whoever looks at it.
	Name string
	// Standby, when set, makes the server a hot standby of this one, with a
	// physical slot there.
	Standby *Server
}

// Server is one PostgreSQL server. Its methods may be called from several
// goroutines, but only one of them at a time should start and stop it.
type Server struct {
	major    int
	bin      string // its own programs; those of clients are in BinDir
	port     int
	acc      *account
	home     *home
	portLock *os.File

	mu     sync.Mutex
	run    *child.Process // the last one started, nil before
	paused []int          // processes that Pause stopped
}

// defaults are for speed and for room: many databases and slots on one server.
var defaults = []string{
	"listen_addresses=127.0.0.1",
	"wal_level=logical",
	"max_wal_senders=60",
	"max_replication_slots=100",
	"max_connections=200",
	"max_prepared_transactions=50",
	"max_worker_processes=40",
	"max_logical_replication_workers=30",
	"fsync=off",
	"shared_buffers=64MB",
	"lc_messages=C",
	"timezone=UTC",
	"log_timezone=UTC",
	"log_line_prefix=%m [%p] %q%d %a: ",
	"log_min_messages=warning",
}

// Start makes a fresh cluster and starts a server on it. It returns once the
// server takes connections.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if !Have(o.Major) || o.ICU && (o.Major != ICUMajor || !HaveICU()) {
		return nil, fmt.Errorf("no PostgreSQL %d in %s: run `make rig`", o.Major, BinDir(o.Major))
	}
	acc, err := findAccount()
	if err != nil {
		return nil, err
	}
	if err := makeDirs(acc); err != nil {
		return nil, err
	}
	if err := sweepOnce(); err != nil {
		return nil, fmt.Errorf("remove what a dead process left: %w", err)
	}
	s := &Server{major: o.Major, bin: BinDir(o.Major), acc: acc}
	if o.ICU {
		s.bin = filepath.Join(ICUDir(), "bin")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.home, err = newHome(acc, strconv.Itoa(o.Major)+o.Name); err != nil {
		return nil, err
	}
	if err := s.populate(o); err != nil {
		return nil, err
	}
	return s, s.firstLaunch(ctx)
}

// firstLaunch finds a port that nobody listens on. Between trying a port out
// and using it somebody outside the rig may take it; then it takes another.
func (s *Server) firstLaunch(ctx context.Context) error {
	for range 5 {
		var err error
		if s.port, s.portLock, err = takePort(); err != nil {
			return err
		}
		if err := s.Configure("port=" + strconv.Itoa(s.port)); err != nil {
			return err
		}
		err = s.launch(ctx)
		if err == nil || !strings.Contains(s.Log(20), "could not bind") {
			return err
		}
		if err := s.portLock.Close(); err != nil {
			return err
		}
	}
	return errors.New("every port was taken by somebody else meanwhile")
}

// populate fills the data directory.
func (s *Server) populate(o Options) error {
	if o.Standby != nil {
		if err := s.baseBackup(o.Standby); err != nil {
			return err
		}
		return s.Configure(o.Settings...)
	}
	if err := cloneCluster(s.acc, s.bin, s.DataDir()); err != nil {
		return err
	}
	settings := slices.Clone(defaults)
	// The path of a Unix socket is limited to 107 bytes.
	if sock := filepath.Join(s.home.dir, ".s.PGSQL.99999"); len(sock) < 107 {
		settings = append(settings, "unix_socket_directories="+s.home.dir)
	} else {
		settings = append(settings, "unix_socket_directories=")
	}
	if o.Major >= 18 {
		settings = append(settings, "max_active_replication_origins=100")
	}
	return s.Configure(append(settings, o.Settings...)...)
}

// Configure appends "name=value" settings to postgresql.conf. They hold from
// the next start on, or from the next [Server.Reload] for those that can change
// without one.
func (s *Server) Configure(settings ...string) error {
	var b strings.Builder
	for _, kv := range settings {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			return fmt.Errorf("setting %q: want name=value", kv)
		}
		fmt.Fprintf(&b, "%s = '%s'\n", strings.TrimSpace(name), strings.ReplaceAll(value, "'", "''"))
	}
	return appendFile(filepath.Join(s.DataDir(), "postgresql.conf"), b.String())
}

// HBA puts lines in front of pg_hba.conf, which otherwise trusts everybody on
// the loopback interface, and reloads it.
func (s *Server) HBA(lines ...string) error {
	path := filepath.Join(s.DataDir(), "pg_hba.conf")
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text := strings.Join(lines, "\n") + "\n" + string(old)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return s.Reload()
}

// Reload makes a running server read its configuration files again. That it
// has done so can be seen in pg_settings a moment later.
func (s *Server) Reload() error { return s.signal(syscall.SIGHUP) }

func appendFile(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// Major is the major version.
func (s *Server) Major() int { return s.major }

// ICU tells whether the server is the build with ICU.
func (s *Server) ICU() bool { return s.bin != BinDir(s.major) }

// Port is the TCP port on 127.0.0.1. It stays the same over restarts.
func (s *Server) Port() int { return s.port }

// Dir is the directory that holds the Unix socket, the log and the data.
func (s *Server) Dir() string { return s.home.dir }

// DataDir is the data directory.
func (s *Server) DataDir() string { return filepath.Join(s.home.dir, "data") }

// Addr is host and port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is the address of a database for the superuser.
func (s *Server) URL(db string) string { return URL(s.Addr(), db) }

// URL is the address of a database for the superuser on a server, or on a proxy
// in front of one.
func URL(addr, db string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: addr, Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// URLs is the address of a database on several servers, in the order in which
// they are tried, of which attrs (target_session_attrs) are wanted.
func URLs(db, attrs string, servers ...*Server) string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: strings.Join(addrs, ","), Path: "/" + db,
		RawQuery: "sslmode=disable&target_session_attrs=" + attrs}
	return u.String()
}

// URLAs is the address of a database for another role.
func (s *Server) URLAs(role, password, db string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: s.Addr(), Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// Bin is the path of a program of the server's version, such as psql.
func (s *Server) Bin(prog string) string { return filepath.Join(BinDir(s.major), prog) }

// Log gives the last n lines of the server's log.
func (s *Server) Log(n int) string {
	b, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (s *Server) logPath() string { return filepath.Join(s.home.dir, "log") }
