package rig

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// sessionSettings are those of every session of the rig's own, so that text is
// the same wherever it comes from. The product pins its own.
var sessionSettings = map[string]string{
	"client_encoding":               "UTF8",
	"datestyle":                     "ISO",
	"intervalstyle":                 "postgres",
	"extra_float_digits":            "1",
	"bytea_output":                  "hex",
	"timezone":                      "UTC",
	"lc_monetary":                   "C",
	"lc_messages":                   "C",
	"search_path":                   "public",
	"standard_conforming_strings":   "on",
	"quote_all_identifiers":         "off",
	"array_nulls":                   "on",
	"xmloption":                     "content",
	"default_transaction_read_only": "off",
	"statement_timeout":             "0",
	"lock_timeout":                  "0",
	"application_name":              "rig",
}

// DB is a database that belongs to one test.
type DB struct {
	Server *Postgres
	Name   string
}

// NewDB creates an empty database for the test, with more options of CREATE DATABASE if there are any.
// At the test's end it is dropped, with the sessions, slots and subscriptions that are still there.
func (p *Postgres) NewDB(t testing.TB, options ...string) *DB {
	t.Helper()
	d := &DB{Server: p, Name: dbName(t)}
	// template0 has nobody connected to it, ever.
	p.SQL(t, "postgres", "CREATE DATABASE "+d.Name+" TEMPLATE template0 "+strings.Join(options, " "))
	t.Cleanup(func() {
		if p.Running() {
			d.drop(t)
		}
	})
	return d
}

// dbName is short enough to be used as the name of a job, and different for
// every test of the binary; the hash tells apart what shortening makes equal.
func dbName(t testing.TB) string {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, t.Name(), time.Now().UnixNano()) // never fails
	n := strings.Trim(notName.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "_"), "_")
	return fmt.Sprintf("t_%s_%08x", n[:min(len(n), 30)], h.Sum32())
}

// dropSlots frees what DROP DATABASE … WITH (FORCE) does not.
const dropSlots = `
	SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = '%[1]s' AND active_pid IS NOT NULL;
	SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '%[1]s'`

const dropSubscriptions = `
	DO $$ DECLARE s name; BEGIN
		FOR s IN SELECT subname FROM pg_subscription WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database()) LOOP
			EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', s);
			EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', s);
			EXECUTE format('DROP SUBSCRIPTION %I', s);
		END LOOP;
	END $$`

func (d *DB) drop(t testing.TB) {
	t.Helper()
	if d.Server.Query(t, "postgres", "SELECT 1 FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = '"+d.Name+"' LIMIT 1") != "" {
		d.SQL(t, dropSubscriptions)
	}
	// A walsender that is just starting can take the slot again meanwhile.
	var err error
	Eventually(t, 20*time.Second, func() bool {
		if _, err = d.Server.exec("postgres", fmt.Sprintf(dropSlots, d.Name)); err != nil {
			return false
		}
		_, err = d.Server.exec("postgres", "DROP DATABASE IF EXISTS "+d.Name+" WITH (FORCE)")
		return err == nil
	}, "drop the database", d.Name, &err)
}

// URL is the database's address for the superuser.
func (d *DB) URL() string { return d.Server.URL(d.Name) }

// SQL runs statements in the database: see [Postgres.SQL].
func (d *DB) SQL(t testing.TB, sql string) { t.Helper(); d.Server.SQL(t, d.Name, sql) }

// Query gives the result as text: see [Postgres.Query].
func (d *DB) Query(t testing.TB, sql string) string {
	t.Helper()
	return d.Server.Query(t, d.Name, sql)
}

// Script runs a psql script: see [Postgres.Script].
func (d *DB) Script(t testing.TB, sql string) string {
	t.Helper()
	return d.Server.Script(t, d.Name, sql)
}

// SQL runs statements. Several in one string are one transaction, unless they
// contain BEGIN and COMMIT.
func (p *Postgres) SQL(t testing.TB, db, sql string) {
	t.Helper()
	if _, err := p.exec(db, sql); err != nil {
		t.Fatalf("PostgreSQL %d, database %s: %v\n%s", p.Major(), db, err, excerpt(sql))
	}
}

// Query runs statements and gives the rows as psql -XAt does: columns parted by
// |, nulls empty, no newline at the end.
func (p *Postgres) Query(t testing.TB, db, sql string) string {
	t.Helper()
	out, err := p.exec(db, sql)
	if err != nil {
		t.Fatalf("PostgreSQL %d, database %s: %v\n%s", p.Major(), db, err, excerpt(sql))
	}
	return out
}

// TryQuery is Query for what may fail.
func (p *Postgres) TryQuery(db, sql string) (string, error) { return p.exec(db, sql) }

func excerpt(sql string) string {
	const most = 400
	if len(sql) > most {
		return sql[:most] + " …"
	}
	return sql
}

// statementTimeout is how long a test waits for one call: a lost lock shows as
// a failure of that call and not of the whole binary.
const statementTimeout = 2 * time.Minute

func (p *Postgres) exec(db, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	cfg, err := pgconn.ParseConfig(p.URL(db))
	if err != nil {
		return "", err
	}
	cfg.RuntimeParams = sessionSettings
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	var lines []string
	for _, r := range results {
		for _, row := range r.Rows {
			fields := make([]string, len(row))
			for i, f := range row {
				fields[i] = string(f)
			}
			lines = append(lines, strings.Join(fields, "|"))
		}
	}
	return strings.Join(lines, "\n"), nil
}

// Script runs a script with psql -XAt, each statement a transaction, and gives
// what it prints. It ends at the first error.
func (p *Postgres) Script(t testing.TB, db, sql string) string {
	t.Helper()
	out, err := p.TryScript(db, sql)
	if err != nil {
		t.Fatalf("PostgreSQL %d, database %s: %v\n%s", p.Major(), db, err, excerpt(sql))
	}
	return out
}

// TryScript is Script for what may fail.
func (p *Postgres) TryScript(db, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.Bin("psql"), "-XAt", "-v", "ON_ERROR_STOP=1", "-d", p.URL(db), "-f", "-")
	var opts strings.Builder
	for k, v := range sessionSettings {
		if k != "client_encoding" && k != "application_name" {
			fmt.Fprintf(&opts, " -c %s=%s", k, v)
		}
	}
	cmd.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "PGAPPNAME=rig", "PGOPTIONS="+opts.String())
	cmd.Stdin = strings.NewReader(sql)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("psql: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
