package session

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
)

// pins are the settings of every session: what can change how a value is
// written or read, what a name means, or how long a session may live. They are
// sent in the startup packet, which overrides role, database and options=.
// Each is written as the server shows it, since they are read back.
var pins = map[string]string{
	// Values.
	"client_encoding":             "UTF8",
	"datestyle":                   "ISO, MDY",
	"intervalstyle":               "postgres",
	"timezone":                    "UTC",
	"bytea_output":                "hex",
	"extra_float_digits":          "3", // above 0: shortest text that reads back exactly
	"array_nulls":                 "on",
	"xmloption":                   "content",
	"lc_monetary":                 "C",
	"standard_conforming_strings": "on",
	// Meaning.
	"search_path":           "pg_catalog",
	"quote_all_identifiers": "off",
	"row_security":          "off", // an error instead of fewer rows
	"jit":                   "off",
	// Transactions and their life. transaction_timeout is pinned in
	// verify: servers before 17 refuse a startup packet that names it.
	"default_transaction_isolation":       "read committed",
	"default_transaction_read_only":       "off",
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",
}

// pinned is the order in which the settings are read back.
var pinned = slices.Sorted(maps.Keys(pins))

// keepalive lets a session that rests for hours, such as the holder of an
// exported snapshot, outlive the idle limits of firewalls, and notices within
// a minute that the other machine is gone.
var keepalive = net.KeepAliveConfig{
	Enable:   true,
	Idle:     30 * time.Second,
	Interval: 10 * time.Second,
	Count:    3,
}

// dial opens a connection to a server.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: keepalive}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return prompt(conn), nil
}

const poolerHint = "connect to the server itself, not through a connection pooler such as PgBouncer"

// Connect opens a session with all settings pinned. Statements are not cached:
// a definition that changes under a session must not break it.
func (e *Endpoint) Connect(ctx context.Context, role Role) (*pgx.Conn, error) {
	cfg, err := e.prepare(role)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, e.wrapConnect(cfg, err)
	}
	if err := e.accept(ctx, conn.PgConn(), cfg, role); err != nil {
		return nil, err
	}
	return conn, nil
}

// ConnectReplication opens a walsender session in the configured database,
// with the same settings, so that decoded values have the same text as those
// read by Connect. It takes replication commands and, in the simple protocol
// only, SQL.
func (e *Endpoint) ConnectReplication(ctx context.Context, role Role) (*pgconn.PgConn, error) {
	cfg, err := e.prepare(role)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, &cfg.Config)
	if err != nil {
		return nil, e.wrapConnect(cfg, err)
	}
	if err := e.accept(ctx, conn, cfg, role); err != nil {
		return nil, err
	}
	return conn, nil
}

// Loopback tells whether a session stays on this machine.
func Loopback(conn *pgx.Conn) bool {
	switch a := conn.PgConn().Conn().RemoteAddr().(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	}
	return false
}

// prepare gives the configuration of one connection of a role.
func (e *Endpoint) prepare(role Role) (*pgx.ConnConfig, error) {
	cfg, err := e.Config()
	if err != nil {
		return nil, err
	}
	cfg.DialFunc = dial
	if e.validate != nil {
		cfg.ValidateConnect = e.validate
	}

	// Names are not case sensitive, but the map is: PGTZ arrives as timezone.
	for name := range cfg.RuntimeParams {
		if _, ok := pins[strings.ToLower(name)]; ok || strings.EqualFold(name, "replication") {
			delete(cfg.RuntimeParams, name)
		}
	}
	maps.Copy(cfg.RuntimeParams, pins)
	cfg.RuntimeParams["application_name"] = e.ApplicationName(role)
	return cfg, nil
}

// accept verifies a new session and closes it if it is not what it should be.
func (e *Endpoint) accept(ctx context.Context, conn *pgconn.PgConn, cfg *pgx.ConnConfig, role Role) error {
	ctx, cancel := context.WithTimeout(ctx, e.timeout())
	defer cancel()
	if err := verify(ctx, conn); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // the first error is the one that matters
		return e.wrapConnect(cfg, err)
	}
	if e.Log != nil {
		e.Log.Debug("connected", "peer", e.Peer, "role", role, "server", redacted(cfg),
			"version", conn.ParameterStatus("server_version"), "backend_pid", conn.PID())
	}
	return nil
}

// verify finishes the pinning and proves that both of its statements ran in one
// backend and that the settings hold there. Poolers fail one or the other: they
// share backends, and drop or keep settings.
func verify(ctx context.Context, conn *pgconn.PgConn) error {
	first, err := queryRow(ctx, conn, `SELECT pg_catalog.pg_backend_pid(),
		CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
		     THEN pg_catalog.set_config('transaction_timeout', '0', false) END`)
	if err != nil {
		return fmt.Errorf("pin settings: %w", err)
	}
	var b strings.Builder
	b.WriteString("SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('transaction_timeout', true)")
	for _, name := range pinned {
		fmt.Fprintf(&b, ", pg_catalog.current_setting('%s')", name)
	}
	second, err := queryRow(ctx, conn, b.String())
	if err != nil {
		return fmt.Errorf("read settings back: %w", err)
	}
	if string(first[0]) != string(second[0]) {
		return pooled("two statements ran in different backends (%s and %s)", first[0], second[0])
	}
	if second[1] != nil && string(second[1]) != "0" {
		return pooled("setting transaction_timeout is %q and not 0", second[1])
	}
	for i, name := range pinned {
		if got := string(second[i+2]); got != pins[name] {
			return pooled("setting %s is %q and not %q", name, got, pins[name])
		}
	}
	return nil
}

// queryRow runs a statement that gives one row, in the simple protocol, which
// a walsender takes as well.
func queryRow(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]byte, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, fmt.Errorf("want one row")
	}
	return results[0].Rows[0], nil
}

func pooled(format string, args ...any) error {
	return &millrace.Error{
		Kind: millrace.KindPreflight,
		Op:   "verify the session",
		Err:  fmt.Errorf(format, args...),
		Hint: poolerHint,
	}
}
