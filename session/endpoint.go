// Package session opens connections to PostgreSQL in the one way that every
// other package relies on: under the TLS rule of the configuration, with all
// settings pinned that could change what is read or written, straight to a
// server and not through a pooler. It also sorts errors by what they ask for.
//
// The invariant it owns: the same value has the same text and the same bytes
// on every session of a job, whatever a role or a database has set.
package session

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
)

// Role is what a connection is for. It stands in application_name, as the last
// part of millrace:<job>:<role>.
type Role string

// The roles.
const (
	Stream Role = "stream"
	Copy   Role = "copy"
	Apply  Role = "apply"
	Watch  Role = "watch"
	Check  Role = "check"
)

// defaultTimeout bounds a connection attempt where nothing else is configured.
const defaultTimeout = 10 * time.Second

// Endpoint is a database and the way to connect to it. Its methods may be
// called from several goroutines.
type Endpoint struct {
	Peer millrace.Peer
	// Conn gives a URL or a libpq keyword string. It is called for each
	// connection, so that a rotated password is found.
	Conn func() (string, error)
	Job  string
	TLS  TLSPolicy
	// Certificates, if they are set, take the place of those in files.
	Certificates *Certificates
	// Timeout bounds one connection attempt; a connect_timeout in the string
	// takes precedence. Zero means 10 seconds.
	Timeout time.Duration
	Log     *slog.Logger // may be nil

	// validate takes the place of what target_session_attrs asks for.
	validate pgconn.ValidateConnectFunc
}

// Primary is the same database at the host of the connection string that is a
// primary, and Standby at one that is a standby, whatever target_session_attrs
// says. They make sense only if there are several [Endpoint.Hosts].
func (e *Endpoint) Primary() *Endpoint {
	p := *e
	p.validate = pgconn.ValidateConnectTargetSessionAttrsPrimary
	return &p
}

// Standby is the counterpart of Primary.
func (e *Endpoint) Standby() *Endpoint {
	s := *e
	s.validate = pgconn.ValidateConnectTargetSessionAttrsStandby
	return &s
}

// Selective tells whether the connection string says which of its hosts is
// wanted, with target_session_attrs.
func (e *Endpoint) Selective() bool {
	cfg, err := e.Config()
	return err == nil && cfg.ValidateConnect != nil
}

// Hosts is how many addresses the connection string names; 0 if it is invalid.
func (e *Endpoint) Hosts() int {
	cfg, err := e.Config()
	if err != nil {
		return 0
	}
	return len(addresses(cfg))
}

// Static is an Endpoint with a fixed connection string and without the TLS
// rule.
func Static(peer millrace.Peer, conn, job string) *Endpoint {
	return &Endpoint{
		Peer: peer,
		Conn: func() (string, error) { return conn, nil },
		Job:  job,
	}
}

// ApplicationName gives the application_name of a role's connections.
func (e *Endpoint) ApplicationName(role Role) string {
	return "millrace:" + e.Job + ":" + string(role)
}

// Config reads the connection string and applies the TLS rule. Its errors are
// of KindConfig and never quote the string, which may hold a password.
func (e *Endpoint) Config() (*pgx.ConnConfig, error) {
	conn, err := e.Conn()
	if err != nil {
		return nil, e.configError(err, "")
	}
	cfg, err := parse(conn)
	if err != nil {
		return nil, e.configError(err, "use postgres://user@host:5432/database or libpq's keyword=value form")
	}
	if err := dropLibpqOnly(cfg); err != nil {
		return nil, e.configError(err, "remove it from the connection string")
	}
	if err := e.TLS.apply(conn, cfg); err != nil {
		return nil, e.configError(err, tlsHint)
	}
	if err := e.Certificates.apply(cfg); err != nil {
		return nil, e.configError(err, "paste the whole PEM text, from -----BEGIN to the end of its last line")
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = e.timeout()
	}
	return cfg, nil
}

func (e *Endpoint) timeout() time.Duration {
	if e.Timeout > 0 {
		return e.Timeout
	}
	return defaultTimeout
}

func (e *Endpoint) configError(err error, hint string) error {
	return &millrace.Error{
		Kind: millrace.KindConfig,
		Op:   string(e.Peer) + " connection",
		Peer: e.Peer,
		Err:  err,
		Hint: hint,
	}
}

// Redacted names the database as host:port/database, without user and
// password. Several hosts are separated by commas.
func (e *Endpoint) Redacted() string {
	cfg, err := e.Config()
	if err != nil {
		return "invalid connection string"
	}
	return redacted(cfg)
}

// addresses lists host:port, each once.
func addresses(cfg *pgx.ConnConfig) []string {
	var hosts []string
	add := func(host string, port uint16) {
		h := host + ":" + strconv.Itoa(int(port))
		if !strings.HasPrefix(host, "/") {
			h = net.JoinHostPort(host, strconv.Itoa(int(port)))
		}
		if !slices.Contains(hosts, h) { // sslmode=prefer lists a host twice
			hosts = append(hosts, h)
		}
	}
	add(cfg.Host, cfg.Port)
	for _, f := range cfg.Fallbacks {
		add(f.Host, f.Port)
	}
	return hosts
}

func redacted(cfg *pgx.ConnConfig) string {
	database := cfg.Database
	if database == "" {
		database = cfg.User // as the server does
	}
	return strings.Join(addresses(cfg), ",") + "/" + database
}

// parse is pgx.ParseConfig with errors that are safe to print. The originals
// hold the whole string, and their texts may quote a piece of a password that
// was not escaped.
func parse(conn string) (*pgx.ConnConfig, error) {
	if spillsPassword(conn) {
		return nil, fmt.Errorf("an @ where none can be: a password's @ and / must be percent-encoded (%%40 and %%2F)")
	}
	cfg, err := pgx.ParseConfig(conn)
	if err == nil {
		return cfg, nil
	}
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 {
		text = text[i+len("`: "):]
	}
	if strings.HasPrefix(text, "failed to parse as ") {
		return nil, fmt.Errorf("not a valid connection string")
	}
	return nil, fmt.Errorf("%s", text)
}

// spillsPassword tells whether a URL has an @ behind its host. The password
// then holds a / that was not encoded, and pieces of it would be taken, and
// shown, for host, port or database.
func spillsPassword(conn string) bool {
	scheme, rest, isURL := strings.Cut(conn, "://")
	if !isURL || (scheme != "postgres" && scheme != "postgresql") {
		return false
	}
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' { // user and password end here, as in libpq
		rest = rest[i+1:]
	}
	_, rest, _ = strings.Cut(rest, "/")
	path, query, _ := strings.Cut(rest, "?")
	key, _, _ := strings.Cut(query, "=") // a value may hold one: user=me@example
	return strings.Contains(path, "@") || strings.Contains(key, "@")
}

// libpqOnly lists libpq's parameters that pgx would hand to the server as
// settings, where they fail. The value says whether it is safe to leave the
// parameter out; the others restrict the connection in a way that would be
// lost.
var libpqOnly = map[string]bool{
	"client_encoding":           true, // always UTF8 here
	"fallback_application_name": true, // application_name is ours
	"keepalives":                true, // always on
	"keepalives_idle":           true,
	"keepalives_interval":       true,
	"keepalives_count":          true,
	"tcp_user_timeout":          true,
	"load_balance_hosts":        true, // hosts are tried in their order
	"gsslib":                    true,
	"gssdelegation":             true,
	"sslcompression":            true, // there is none
	"gssencmode":                false,
	"hostaddr":                  false,
	"requirepeer":               false,
	"requiressl":                false,
	"sslcrl":                    false,
	"sslcrldir":                 false,
	"ssl_min_protocol_version":  false,
	"ssl_max_protocol_version":  false,
}

func dropLibpqOnly(cfg *pgx.ConnConfig) error {
	for name, value := range cfg.RuntimeParams {
		droppable, known := libpqOnly[name]
		if name == "gssencmode" && value != "require" {
			droppable = true // GSS encryption is never tried
		}
		switch {
		case !known:
		case droppable:
			delete(cfg.RuntimeParams, name)
		default:
			return fmt.Errorf("parameter %s is not supported", name)
		}
	}
	return nil
}
