package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

// settings are those of both servers, beside the rig's own (fsync=off among
// them): nothing but replication should happen while it is timed.
var settings = []string{
	"shared_buffers=1GB",
	"max_wal_size=16GB",
	"checkpoint_timeout=1h",
	"autovacuum=off",
}

// major is the PostgreSQL version on both sides.
const major = 18

// server is the source or the target.
type server struct {
	*pgserver.Server
}

func startServer(ctx context.Context, name string) (*server, error) {
	s, err := pgserver.Start(ctx, pgserver.Options{Major: major, Name: "-bench-" + name, Settings: settings})
	if err != nil {
		return nil, err
	}
	return &server{s}, nil
}

// connect opens a connection whose statements are prepared once.
func (s *server) connect(ctx context.Context, db string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, s.URL(db))
}

// exec runs statements one after another, each a transaction of its own.
func (s *server) exec(ctx context.Context, db string, statements ...string) error {
	conn, err := s.connect(ctx, db)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		// The simple protocol: procedures may commit.
		if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// value gives the first column of the first row as text, "" for none or null.
func (s *server) value(ctx context.Context, db, sql string) (string, error) {
	conn, err := s.connect(ctx, db)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", fmt.Errorf("%s: %w", sql, err)
	}
	if len(results) == 0 || len(results[0].Rows) == 0 {
		return "", nil
	}
	return string(results[0].Rows[0][0]), nil
}

// script runs a psql script with the variable n.
func (s *server) script(ctx context.Context, db, sql string, n int) error {
	cmd := exec.CommandContext(ctx, s.Bin("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-v", fmt.Sprintf("n=%d", n), "-d", s.URL(db), "-f", "-")
	cmd.Env = cleanEnv()
	cmd.Stdin = strings.NewReader(sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("psql: %w: %s", err, out)
	}
	return nil
}

// cleanEnv is the environment without the user's PG* variables, which would
// change what clients do.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") {
			env = append(env, kv)
		}
	}
	return env
}

// recreate makes a database, from a template unless that is "".
func (s *server) recreate(ctx context.Context, db, template string) error {
	create := "CREATE DATABASE " + db
	if template != "" {
		create += " TEMPLATE " + template + " STRATEGY file_copy"
	}
	return s.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+db+" WITH (FORCE)", create)
}

// dropSlot removes a slot that may not exist; a walsender that still holds it
// is ended first.
func (s *server) dropSlot(ctx context.Context, slot string) error {
	return s.exec(ctx, "postgres",
		"SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE active_pid IS NOT NULL AND slot_name = '"+slot+"'",
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '"+slot+"'")
}

// copySlot gives a run its own slot at the position of another.
func (s *server) copySlot(ctx context.Context, from, to string) error {
	if err := s.dropSlot(ctx, to); err != nil {
		return err
	}
	return s.exec(ctx, sourceDB, fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", from, to))
}
