package schema

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// Querier is what reading catalogs needs: a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Request says what definitions to read.
type Request struct {
	Program  Program
	Source   *session.Endpoint
	Snapshot string   // an exported snapshot; "" for the present
	Tables   []uint32 // OIDs at the source
	Catalog  Querier  // a session at the source, in the same snapshot
	// PlainTOAST leaves the compression methods of columns out, for a target
	// that was built without them.
	PlainTOAST bool
	Log        *slog.Logger // may be nil
}

// Definitions are what a set of tables needs, in the order in which it can be
// created.
type Definitions struct {
	entries []entry
	tables  map[uint32]bool // selected ones
	created map[uint32]bool // tables among the entries
	byID    map[int]*entry
}

// Read runs pg_dump.
func Read(ctx context.Context, r Request) (*Definitions, error) {
	others, err := unneeded(ctx, r.Catalog, r.Tables)
	if err != nil {
		return nil, session.Wrap("find what the tables depend on", millrace.PeerSource, err)
	}
	dir, err := os.MkdirTemp("", "millrace-schema-")
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the temporary directory
	file := filepath.Join(dir, "schema.dump")
	if err := dump(ctx, r, file, others); err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	defer f.Close()
	a, err := readArchive(f)
	if err != nil {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "read the dump of " + r.Program.String(),
			Err: err, Hint: "name another pg_dump with --pg-dump PATH: 15 to 18 are known"}
	}
	return selectFrom(a, r.Tables), nil
}

// selectFrom takes the entries that the tables need.
func selectFrom(a *archive, tables []uint32) *Definitions {
	d := &Definitions{tables: map[uint32]bool{}, created: map[uint32]bool{}, byID: map[int]*entry{}}
	for _, oid := range tables {
		d.tables[oid] = true
	}
	taken := closeOver(a.entries, d.tables)
	for _, e := range a.entries {
		if taken[e.id] && e.defn != "" {
			d.entries = append(d.entries, e)
			d.created[e.oid] = d.created[e.oid] || e.desc == "TABLE"
		}
	}
	for i := range d.entries {
		d.byID[d.entries[i].id] = &d.entries[i]
	}
	for i := range d.entries {
		d.entries[i].partitioned = d.onPartitioned(&d.entries[i])
	}
	return d
}

// onPartitioned tells whether the entry belongs to a partitioned table.
func (d *Definitions) onPartitioned(e *entry) bool {
	for _, id := range e.deps {
		if t := d.byID[id]; t != nil && t.desc == "TABLE" && strings.Contains(t.defn, "\nPARTITION BY ") {
			return true
		}
	}
	return false
}

// dump runs pg_dump into a file, without the tables that the patterns name.
func dump(ctx context.Context, r Request, file string, others []string) error {
	conn, err := r.Source.Conn()
	if err != nil {
		return fmt.Errorf("run pg_dump: %w", err)
	}
	rest, password, err := withoutPassword(conn)
	if err != nil {
		return &millrace.Error{Kind: millrace.KindConfig, Op: "source connection", Peer: millrace.PeerSource, Err: err}
	}
	args := []string{
		"--dbname=" + rest, "--format=custom", "--compress=0", "--file=" + file, "--schema-only", "--no-password",
		"--no-owner", "--no-privileges", "--no-publications", "--no-subscriptions", "--no-security-labels",
		"--no-tablespaces", "--encoding=UTF8",
		// A session that waits for an exclusive lock on a table makes pg_dump
		// wait behind it, and itself waits for our snapshot's locks.
		"--lock-wait-timeout=" + strconv.Itoa(int(lockWait.Milliseconds())),
	}
	if r.Snapshot != "" {
		args = append(args, "--snapshot="+r.Snapshot)
	}
	if r.PlainTOAST {
		args = append(args, "--no-toast-compression")
	}
	for _, pattern := range others {
		args = append(args, "--exclude-table="+pattern)
	}
	cmd := exec.CommandContext(ctx, r.Program.Path, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it cancels its query at the server
	cmd.WaitDelay = 3 * time.Second
	cmd.Env = environment(os.Environ(), r, conn, password)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = nil, &stderr
	if r.Log != nil {
		r.Log.Debug("run pg_dump", "program", r.Program.Path, "version", r.Program.Major, "excluded", len(others))
	}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return session.Wrap("run pg_dump", millrace.PeerSource, context.Cause(ctx))
		}
		return dumpError(r.Program, err, stderr.String())
	}
	return nil
}

const lockWait = time.Minute

// environment is that of the process with what must not stand among the
// arguments, and the rule for TLS where the connection string leaves it open.
func environment(env []string, r Request, conn, password string) []string {
	set := func(name, value string) { env = append(env, name+"="+value) }
	has := func(name string) bool {
		return slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	set("PGAPPNAME", r.Source.ApplicationName(session.Copy))
	if password != "" {
		set("PGPASSWORD", password)
	}
	if !has("PGCONNECT_TIMEOUT") {
		set("PGCONNECT_TIMEOUT", "10")
	}
	if cfg, err := r.Source.Config(); err == nil && cfg.TLSConfig != nil && !cfg.TLSConfig.InsecureSkipVerify {
		if !has("PGSSLMODE") {
			set("PGSSLMODE", "verify-full")
		}
		// Without a file of authorities pgx takes those of the system; libpq
		// has to be told.
		if !has("PGSSLROOTCERT") && !strings.Contains(conn, "sslrootcert") && r.Program.Major >= 16 && !hasRootFile() {
			set("PGSSLROOTCERT", "system")
		}
	}
	return env
}

func hasRootFile() bool {
	home, err := os.UserHomeDir()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(home, ".postgresql", "root.crt"))
	return err == nil
}

var deniedText = regexp.MustCompile(`permission denied for (?:table|relation|schema|sequence) (\S+)`)

// dumpError turns what pg_dump says into an error: its first complaint, without
// the query that it quotes.
func dumpError(p Program, err error, stderr string) error {
	text := err.Error()
	for line := range strings.Lines(stderr) {
		if _, after, ok := strings.Cut(line, "error: "); ok {
			text = strings.TrimSpace(after)
			break
		}
	}
	e := &millrace.Error{Kind: millrace.KindData, Op: "run pg_dump " + p.String(), Peer: millrace.PeerSource,
		Err: fmt.Errorf("%s", text)}
	switch m := deniedText.FindStringSubmatch(text); {
	case m != nil:
		e.Kind = millrace.KindPreflight
		e.Hint = "GRANT SELECT on " + m[1] + " to the source's role: pg_dump locks each table whose definition it reads"
	case strings.Contains(text, "lock timeout"):
		e.Kind = millrace.KindRetry
		e.Hint = "a session waits for an exclusive lock on one of the tables; let it finish or end it"
	case strings.Contains(text, "connection to server"):
		e.Kind = millrace.KindRetry
	}
	return e
}
