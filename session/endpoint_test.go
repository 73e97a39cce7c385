package session

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// clean takes the machine's own libpq settings away from a test.
func clean(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	for _, name := range []string{
		"PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGSSLMODE",
		"PGSERVICE", "PGTZ", "PGOPTIONS", "PGSSLROOTCERT",
	} {
		t.Setenv(name, "")
	}
}

func TestTLSPolicy(t *testing.T) {
	clean(t)
	// What each attempt does, in order: full and ca verify the certificate, any
	// encrypts only, off does not.
	for _, c := range []struct {
		conn   string
		policy TLSPolicy
		want   string
	}{
		{"host=db.example user=a", TLSPolicy{}, "db.example any, db.example off"},
		{"host=db.example user=a", TLSPolicy{Require: true}, "db.example full"},
		{"postgres://a@db.example/x", TLSPolicy{Require: true}, "db.example full"},
		{"postgres://a@db.example/x?connect_timeout=3", TLSPolicy{Require: true}, "db.example full"},
		{"postgres://a:what?ever@db.example/x", TLSPolicy{Require: true}, "db.example full"},
		{"postgres://a@192.0.2.1/x", TLSPolicy{Require: true}, "192.0.2.1 full"},
		{"host=db.example sslmode=verify-ca", TLSPolicy{Require: true}, "db.example ca"},
		{"host=db.example sslmode=verify-full", TLSPolicy{Require: true}, "db.example full"},
		{"host=db.example sslmode=require", TLSPolicy{Require: true}, "only sslmode=verify-full"},
		{"host=db.example sslmode=prefer", TLSPolicy{Require: true}, "only sslmode=verify-full"},
		{"host=db.example sslmode=allow", TLSPolicy{Require: true}, "only sslmode=verify-full"},
		{"host=db.example sslmode=disable", TLSPolicy{Require: true}, "only sslmode=verify-full"},
		{"postgres://a@db.example/x?ssl=true", TLSPolicy{Require: true}, "only sslmode=verify-full"},
		// A key that is spelled so that it is not seen is verified nevertheless.
		{"postgres://a@db.example/x?ssl%6dode=disable", TLSPolicy{Require: true}, "db.example full"},

		{"host=localhost", TLSPolicy{Require: true}, "localhost any, localhost off"},
		{"host=127.0.0.2 sslmode=disable", TLSPolicy{Require: true}, "127.0.0.2 off"},
		{"host=::1 sslmode=require", TLSPolicy{Require: true}, "::1 any"},
		{"host=/run/postgresql", TLSPolicy{Require: true}, "/run/postgresql off"},
		{"host=localhost.example", TLSPolicy{Require: true}, "localhost.example full"},
		{"host=127.0.0.1.example", TLSPolicy{Require: true}, "127.0.0.1.example full"},

		{"host=127.0.0.1,db.example", TLSPolicy{Require: true}, "127.0.0.1 any, 127.0.0.1 off, db.example full"},
		{"host=db.example,127.0.0.1 port=1,2", TLSPolicy{Require: true}, "db.example full, 127.0.0.1 any, 127.0.0.1 off"},
		{"postgres://a@one.example:1,two.example:2/x", TLSPolicy{Require: true}, "one.example full, two.example full"},

		{"host=127.0.0.1 sslmode=verify-full", TLSPolicy{Require: true, InsecureSkipVerify: true}, "127.0.0.1 any"},
		{"host=127.0.0.1 sslmode=verify-ca", TLSPolicy{Require: true, InsecureSkipVerify: true}, "127.0.0.1 any"},
		{"host=db.example", TLSPolicy{InsecureSkipVerify: true}, "is for loopback only"},
		{"host=127.0.0.1,db.example", TLSPolicy{Require: true, InsecureSkipVerify: true}, "is for loopback only"},
	} {
		e := Static(millrace.PeerSource, c.conn, "j")
		e.TLS = c.policy
		cfg, err := e.Config()
		var got string
		if err != nil {
			got = err.Error()
			if millrace.KindOf(err) != millrace.KindConfig || millrace.HintOf(err) == "" {
				t.Errorf("%q: kind %v, hint %q", c.conn, millrace.KindOf(err), millrace.HintOf(err))
			}
		} else {
			var attempts []string
			for _, h := range hostsOf(cfg) {
				mode := "off"
				switch {
				case h.TLSConfig == nil:
				case !h.TLSConfig.InsecureSkipVerify && h.TLSConfig.ServerName == h.Host,
					// Go verifies an address that stands for the server's name.
					!h.TLSConfig.InsecureSkipVerify && h.TLSConfig.ServerName != "":
					mode = "full"
				case h.TLSConfig.VerifyPeerCertificate != nil:
					mode = "ca"
				default:
					mode = "any"
				}
				attempts = append(attempts, h.Host+" "+mode)
			}
			got = strings.Join(attempts, ", ")
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%q %+v: got %s, want %s", c.conn, c.policy, got, c.want)
		}
	}
}

func TestEnvironmentNamesSSLMode(t *testing.T) {
	clean(t)
	t.Setenv("PGSSLMODE", "require")
	e := Static(millrace.PeerSource, "host=db.example", "j")
	e.TLS.Require = true
	if _, err := e.Config(); err == nil {
		t.Error("PGSSLMODE=require was accepted for a remote host")
	}
}

func TestService(t *testing.T) {
	clean(t)
	file := filepath.Join(os.Getenv("HOME"), ".pg_service.conf")
	text := "[shop]\nhost=db.example\nport=5433\ndbname=shop\nuser=app\nsslmode=prefer\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e := Static(millrace.PeerSource, "service=shop", "j")
	e.TLS.Require = true
	cfg, err := e.Config()
	if err != nil {
		t.Fatal(err)
	}
	if got := redacted(cfg); got != "db.example:5433/shop" || cfg.User != "app" {
		t.Errorf("got %s as %s", got, cfg.User)
	}
	if !verifies(cfg.TLSConfig) || len(cfg.Fallbacks) != 0 {
		t.Error("the weak sslmode of a service file was taken")
	}
}

func TestPasswordFile(t *testing.T) {
	clean(t)
	file := filepath.Join(os.Getenv("HOME"), ".pgpass")
	if err := os.WriteFile(file, []byte("localhost:*:shop:app:from-pgpass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Static(millrace.PeerSource, "postgres://app@localhost/shop", "j").Config()
	if err != nil || cfg.Password != "from-pgpass" {
		t.Error(cfg.Password, err)
	}
}

func TestRedacted(t *testing.T) {
	clean(t)
	for conn, want := range map[string]string{
		"postgres://a:pw@db.example/shop":                    "db.example:5432/shop",
		"postgres://a:pw@one:1,two:2/shop":                   "one:1,two:2/shop",
		"host=::1 user=a password=pw":                        "[::1]:5432/a",
		"host=/run/postgresql dbname=shop password='p w'":    "/run/postgresql:5432/shop",
		"postgres://a:pw@db.example/shop?sslmode=verify-all": "invalid connection string",
	} {
		if got := Static("", conn, "j").Redacted(); got != want {
			t.Errorf("%q: got %s, want %s", conn, got, want)
		}
	}
}

func TestLibpqOnlyParameters(t *testing.T) {
	clean(t)
	conn := "host=localhost keepalives=1 keepalives_idle=3 gssencmode=disable client_encoding=LATIN1 " +
		"fallback_application_name=x tcp_user_timeout=5 work_mem=64MB"
	cfg, err := Static("", conn, "j").Config()
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.RuntimeParams) != 1 || cfg.RuntimeParams["work_mem"] != "64MB" {
		t.Errorf("sent to the server: %v", cfg.RuntimeParams)
	}
	for _, p := range []string{"gssencmode=require", "sslcrl=/x", "requirepeer=postgres", "hostaddr=127.0.0.1"} {
		_, err := Static("", "host=localhost "+p, "j").Config()
		if err == nil || !strings.Contains(err.Error(), "not supported") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// TestPasswordsStayHidden tries malformed strings, whose parts a parser takes
// for something else than a password.
func TestPasswordsStayHidden(t *testing.T) {
	clean(t)
	const secret = "geheim"
	for _, conn := range []string{
		"postgres://u:geheim@127.0.0.1:1/x",
		"postgres://u:geheim@127.0.0.1:notaport/x",
		"postgres://u:ge/geheim@127.0.0.1:1/x",
		"postgres://u:p?geheim@127.0.0.1:1/x?y=@",
		"postgres://u:%zzgeheim@127.0.0.1:1/x",
		"postgres://u:geheim%@127.0.0.1:1/x",
		"postgres://127.0.0.1:1/x?password=geheim",
		"postgres://127.0.0.1:1/x?password=geheim&sslmode=no",
		"postgres://127.0.0.1:1/x?pass%77ord=geheim&target_session_attrs=no",
		"host=127.0.0.1 port=1 password=geheim",
		"host=127.0.0.1 port=1 password=my geheim",
		"host=127.0.0.1 port=1 password='geheim",
		"host=127.0.0.1 port=1 password=a geheim more=words",
		"password=geheim host=127.0.0.1 port=x",
		"mysql://u:geheim@127.0.0.1/x",
	} {
		e := Static(millrace.PeerSource, conn, "j")
		e.TLS.Require = true
		_, err := e.Connect(t.Context(), Check)
		if err == nil {
			t.Fatalf("%q: connected", conn)
		}
		shown := e.Redacted()
		for ; err != nil; err = errors.Unwrap(err) {
			var own *millrace.Error
			if shown += fmt.Sprintf("%v %+v %q", err, err, err); errors.As(err, &own) {
				shown += own.Hint
			}
			if _, ours := err.(*cause); ours { //nolint:errorlint // what is behind it is not for printing
				break
			}
		}
		if strings.Contains(shown, secret) {
			t.Errorf("%q: %s", conn, shown)
		}
	}
}

func TestConnIsAskedEachTime(t *testing.T) {
	clean(t)
	n := 0
	e := &Endpoint{Conn: func() (string, error) {
		n++
		return fmt.Sprintf("host=localhost dbname=db%d", n), nil
	}}
	if a, b := e.Redacted(), e.Redacted(); a != "localhost:5432/db1" || b != "localhost:5432/db2" {
		t.Error(a, b)
	}
	e.Conn = func() (string, error) { return "", errors.New("environment variable X is not set") }
	_, err := e.Connect(t.Context(), Check)
	if millrace.KindOf(err) != millrace.KindConfig || !strings.Contains(err.Error(), "X is not set") {
		t.Error(err)
	}
}

// A password that was not encoded must not be taken, and shown, for a host.
func TestPasswordThatSpills(t *testing.T) {
	clean(t)
	for conn, refused := range map[string]bool{
		"postgres://me:ge@heim/x@db.example/shop":          true,
		"postgres://me:12/geheim@db.example/shop":          true,
		"postgres://me:12?geheim@db.example/shop":          false,
		"postgres://me:ge%40heim%2Fx@db.example/shop":      false,
		"postgres:///shop?host=db.example&user=me@example": false,
		"host=db.example password=ge@heim/x user=me":       false,
	} {
		_, err := Static(millrace.PeerSource, conn, "j").Config()
		if (err != nil) != refused {
			t.Errorf("%s: %v", conn, err)
		}
		if err != nil && (strings.Contains(err.Error(), "heim") || millrace.HintOf(err) == "") {
			t.Errorf("%s: %v", conn, err)
		}
	}
}

func TestHosts(t *testing.T) {
	for conn, want := range map[string]string{
		"postgres://a/d":       "1 false",
		"postgres://a:1,b:2/d": "2 false",
		"postgres://a:1,b:2/d?target_session_attrs=read-write":   "2 true",
		"host=a,b port=1,1 dbname=d target_session_attrs=any":    "2 false",
		"postgres://a:1,a:1/d?target_session_attrs=standby":      "1 true",
		"postgres://a/d?target_session_attrs=perhaps":            "0 false",
		"postgres://a,b,c/d?target_session_attrs=prefer-standby": "3 true",
	} {
		e := Static(millrace.PeerSource, conn, "j")
		if got := fmt.Sprint(e.Hosts(), e.Selective()); got != want {
			t.Errorf("%s: %s, want %s", conn, got, want)
		}
	}
}
