package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// loader copies the tables of the source into an empty target that has them
// already, keys included, and ends when all rows are committed.
type loader struct {
	label string
	load  func(ctx context.Context, s *stage, m *sample) error
	clean func(ctx context.Context, s *stage) error // may be nil
}

// load measures the first load of a narrow table.
func (b *bench) load(ctx context.Context) ([]set, error) {
	n := 500_000
	if b.full {
		n = 5_000_000
	}
	n = b.size(n)
	out := set{Name: "load", Kind: kindLoad, Title: thousands(n) + " narrow rows", Rows: n}
	var loaders []loader
	for _, l := range []struct {
		word string
		loader
	}{
		{"pipe1", loader{label: pipeOne, load: pipe("narrow", 1)}},
		{"pipe2", loader{label: "COPY pipe, 2 streams", load: pipe("narrow", 2)}},
		{"dump", loader{label: "pg_dump | pg_restore", load: dumpLoad}},
		{"native", loader{label: nameNative, load: nativeLoad, clean: dropNativeLoad}},
		{"millrace", millraceLoad(1)},
		{"millrace", millraceLoad(2)},
	} {
		if b.has(l.word) {
			loaders = append(loaders, l.loader)
		}
	}
	if err := b.loads(ctx, &out, "load", n, b.rounds, loaders); err != nil {
		return nil, err
	}
	return []set{out}, nil
}

// loads fills the source and lets the loaders take turns.
func (b *bench) loads(ctx context.Context, out *set, sql string, n, rounds int, loaders []loader) (err error) {
	s := b.newStage(n)
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.open(ctx, workloadSQL(sql)); err != nil {
		return err
	}
	// No WAL is needed here, and a load of many gigabytes would keep it all.
	if err := s.source.dropSlot(ctx, baseSlot); err != nil {
		return err
	}
	if err := s.source.exec(ctx, sourceDB, fmt.Sprintf("CALL generate(%d)", n), "VACUUM (FREEZE, ANALYZE)"); err != nil {
		return err
	}
	size, err := s.source.value(ctx, sourceDB, "SELECT sum(pg_table_size(relid)) FROM pg_stat_user_tables")
	if err != nil {
		return err
	}
	if out.Bytes, err = strconv.ParseInt(size, 10, 64); err != nil {
		return err
	}
	for round := range rounds {
		for _, l := range loaders {
			m, err := timeLoad(ctx, s, l)
			if err != nil {
				return fmt.Errorf("%s: %w", l.label, err)
			}
			out.add(l.label, m)
			if b.verify == "all" || b.verify == "first" && round == 0 {
				if err := s.verify(ctx); err != nil {
					return fmt.Errorf("%s: %w", l.label, err)
				}
			}
		}
	}
	return nil
}

func timeLoad(ctx context.Context, s *stage, l loader) (m sample, err error) {
	if l.clean != nil {
		defer func() { err = errors.Join(err, l.clean(context.WithoutCancel(ctx), s)) }()
	}
	if err := s.target.recreate(ctx, runDB, baseDB); err != nil {
		return m, err
	}
	if err := s.quiet(ctx); err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	meter := startMeter(s, 0)
	if err := l.load(ctx, s, &m); err != nil {
		return m, err
	}
	took := meter.stop()
	m.Seconds, m.SourceCPU, m.TargetCPU = took.Seconds, took.SourceCPU, took.TargetCPU
	meter.foreign(&m)
	return m, nil
}

// pipe is what a person would type: psql … COPY TO STDOUT | psql … COPY FROM
// STDIN, both binary, for equal parts of the table.
func pipe(table string, streams int) func(context.Context, *stage, *sample) error {
	return func(ctx context.Context, s *stage, m *sample) error {
		ranges := []string{""}
		if streams > 1 {
			pages, err := s.source.value(ctx, sourceDB, "SELECT pg_relation_size('"+table+"') / 8192")
			if err != nil {
				return err
			}
			if ranges, err = ctidRanges(pages, streams); err != nil {
				return err
			}
		}
		cpus := make([]time.Duration, len(ranges))
		g, ctx := errgroup.WithContext(ctx)
		for i, where := range ranges {
			g.Go(func() (err error) {
				cpus[i], err = copyPipe(ctx, s, table, where)
				return err
			})
		}
		err := g.Wait()
		for _, cpu := range cpus {
			m.ClientCPU += seconds(cpu)
		}
		return err
	}
}

// ctidRanges are conditions that part a table; the last one is open.
func ctidRanges(pages string, parts int) ([]string, error) {
	n, err := strconv.Atoi(pages)
	if err != nil {
		return nil, err
	}
	out := make([]string, parts)
	for i := range out {
		out[i] = fmt.Sprintf(" WHERE ctid >= '(%d,0)'", n*i/parts)
		if i < parts-1 {
			out[i] += fmt.Sprintf(" AND ctid < '(%d,0)'", n*(i+1)/parts)
		}
	}
	return out, nil
}

func copyPipe(ctx context.Context, s *stage, table, where string) (time.Duration, error) {
	psql := func(srv *server, db, sql string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, srv.Bin("psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-d", srv.URL(db), "-c", sql)
		cmd.Env = cleanEnv()
		return cmd
	}
	return joined(
		psql(s.source, sourceDB, "COPY (SELECT * FROM "+table+where+") TO STDOUT (FORMAT binary)"),
		psql(s.target, runDB, "COPY "+table+" FROM STDIN (FORMAT binary)"))
}

// joined runs from | to and gives their CPU time.
func joined(from, to *exec.Cmd) (time.Duration, error) {
	var complaints strings.Builder
	from.Stderr = &complaints
	to.Stdout, to.Stderr = &complaints, &complaints
	out, err := from.StdoutPipe()
	if err != nil {
		return 0, err
	}
	to.Stdin = out // a file: the two processes share the pipe, nothing is copied here
	if err := from.Start(); err != nil {
		return 0, err
	}
	if err := to.Run(); err != nil {
		return 0, errors.Join(fmt.Errorf("%s: %w: %s", filepath.Base(to.Path), err, complaints.String()), from.Wait())
	}
	if err := from.Wait(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(from.Path), err, complaints.String())
	}
	cpu := func(c *exec.Cmd) time.Duration { return c.ProcessState.UserTime() + c.ProcessState.SystemTime() }
	return cpu(from) + cpu(to), nil
}

// dumpLoad pipes the rows through PostgreSQL's own archive format, uncompressed.
func dumpLoad(ctx context.Context, s *stage, m *sample) error {
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, s.source.Bin(program), args...)
		cmd.Env = cleanEnv()
		return cmd
	}
	cpu, err := joined(
		command("pg_dump", "-Fc", "-Z0", "--data-only", "-t", "narrow", s.source.URL(sourceDB)),
		command("pg_restore", "--data-only", "-d", s.target.URL(runDB)))
	m.ClientCPU = seconds(cpu)
	return err
}

// nativeLoad ends when the table's rows are committed: the state that the copy
// writes in the same transaction.
func nativeLoad(ctx context.Context, s *stage, _ *sample) error {
	err := s.target.exec(ctx, runDB, fmt.Sprintf("CREATE SUBSCRIPTION bench CONNECTION '%s' PUBLICATION %s WITH (slot_name = '%s', %s)",
		s.source.URL(sourceDB), publication, runSlot, nativeOptions))
	if err != nil {
		return err
	}
	conn, err := s.target.connect(ctx, runDB)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		var left int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate IN ('i', 'd')").Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			return nil
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}

func dropNativeLoad(ctx context.Context, s *stage) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	there, err := s.target.value(ctx, runDB, "SELECT count(*) FROM pg_subscription WHERE subname = 'bench'")
	if err != nil || there == "0" {
		return err
	}
	return s.target.exec(ctx, runDB, "DROP SUBSCRIPTION bench")
}

// millraceLoad is `millrace bootstrap` as a user would run it, slot and all. Like
// native's it is over when the rows are there and the target says so: the record
// has consistent_from. What the program does behind that, the statistics that
// neither the pipe nor native takes, is waited for before the next one's turn.
func millraceLoad(streams int) loader {
	label := nameMillrace + ", 1 stream"
	if streams > 1 {
		label = fmt.Sprintf("%s, %d streams", nameMillrace, streams)
	}
	return millraceLoadBy("", label, "consistent", streams)
}

// millraceLoadBy is millraceLoad in the given mode, with a binary of its own or, empty, the stage's.
func millraceLoadBy(binary, label, mode string, streams int) loader {
	var running *client
	var watch *memoryWatch
	var loaded bool
	return loader{label: label,
		load: func(ctx context.Context, s *stage, m *sample) error {
			config, err := s.configure(runDB, mode, streams)
			if err != nil {
				return err
			}
			program := binary
			if program == "" {
				program = s.millrace
			}
			// It outlives this context, by its statistics.
			if running, err = startClient(context.WithoutCancel(ctx), program, "bootstrap", "-q", "-c", config); err != nil {
				return err
			}
			loaded = false
			watch = watchMemory(running.PID())
			if err := awaitLoaded(ctx, s, running); err != nil {
				return err
			}
			m.ClientCPU = seconds(cpuOf(running.PID()))
			m.PeakBytes, m.MedianBytes = watch.stop()
			watch, loaded = nil, true
			return nil
		},
		clean: func(ctx context.Context, s *stage) (err error) {
			if watch != nil {
				watch.stop()
				watch = nil
			}
			if running != nil {
				if !loaded {
					_ = running.Signal(syscall.SIGKILL) // why is known
				}
				_, err = running.finish()
				running = nil
			}
			return errors.Join(err, s.source.dropSlot(ctx, millraceSlot))
		}}
}

// awaitLoaded polls the record, which the program makes first.
func awaitLoaded(ctx context.Context, s *stage, c *client) error {
	conn, err := s.target.connect(ctx, runDB)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		alive := c.Alive()
		var done bool
		err := conn.QueryRow(ctx, "SELECT consistent_from IS NOT NULL FROM millrace.job WHERE job = '"+millraceJob+"'").Scan(&done)
		var missing *pgconn.PgError
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, pgx.ErrNoRows) && !errors.As(err, &missing):
			return err
		case !alive:
			return c.failure(errors.Join(errStopped, c.Wait()))
		}
		if err := pause(ctx, pollEvery); err != nil {
			return err
		}
	}
}
