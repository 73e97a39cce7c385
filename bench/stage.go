package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Names on the two servers.
const (
	sourceDB    = "bench"      // on the source
	baseDB      = "bench_base" // on the target: equal to the source before the workload
	runDB       = "bench_run"  // on the target: one run's clone
	publication = "bench"      // everything in the source database
	baseSlot    = "bench_base" // stands right before the workload
	runSlot     = "bench_run"  // one run's copy of it
	markerTable = "bench_marker"
)

// stage is one workload set up on both servers.
type stage struct {
	source, target *server
	dir            string // for configuration files
	millrace       string // the binary
	n              int
	timeout        time.Duration // of one run
	settle         time.Duration // at most waited for an idle machine before a run
	end            string        // an LSN behind the marker's commit record
	hashes         map[string]string
	recorded       bool // Millrace's job is
}

// open creates the databases, the publication and the base slot.
func (s *stage) open(ctx context.Context, sql string) error {
	if err := s.close(ctx); err != nil {
		return err
	}
	sql = "CREATE TABLE " + markerTable + " (id int PRIMARY KEY);\n" + sql
	for _, side := range []struct {
		srv *server
		db  string
	}{{s.source, sourceDB}, {s.target, baseDB}} {
		if err := side.srv.recreate(ctx, side.db, ""); err != nil {
			return err
		}
		if err := side.srv.script(ctx, side.db, sql, s.n); err != nil {
			return err
		}
		if err := side.srv.exec(ctx, side.db, "VACUUM ANALYZE"); err != nil {
			return err
		}
	}
	return s.source.exec(ctx, sourceDB,
		"CREATE PUBLICATION "+publication+" FOR ALL TABLES",
		"SELECT pg_create_logical_replication_slot('"+baseSlot+"', 'pgoutput')")
}

// generate runs the workload and sets the marker. The second marker row gives
// readers that stop at an LSN something to see behind it.
func (s *stage) generate(ctx context.Context) error {
	err := s.source.exec(ctx, sourceDB, "SET synchronous_commit = off", fmt.Sprintf("CALL generate(%d)", s.n))
	if err != nil {
		return err
	}
	if err := s.mark(ctx, 1); err != nil {
		return err
	}
	if s.end, err = s.source.value(ctx, sourceDB, "SELECT pg_current_wal_flush_lsn()"); err != nil {
		return err
	}
	return s.mark(ctx, 2)
}

func (s *stage) mark(ctx context.Context, id int) error {
	return s.source.exec(ctx, sourceDB, fmt.Sprintf("INSERT INTO %s VALUES (%d)", markerTable, id))
}

// close removes what open and the contenders made, also after an error.
func (s *stage) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(
		s.target.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+runDB+" WITH (FORCE)", "DROP DATABASE IF EXISTS "+millraceDB+" WITH (FORCE)",
			"DROP DATABASE IF EXISTS "+baseDB+" WITH (FORCE)"),
		s.source.dropSlot(ctx, runSlot), s.source.dropSlot(ctx, baseSlot),
		s.source.dropSlot(ctx, millraceSlot), s.source.dropSlot(ctx, millraceBaseSlot),
		s.source.exec(ctx, "postgres", "DROP DATABASE IF EXISTS "+sourceDB+" WITH (FORCE)"))
}

// quiet leaves nothing to do for the servers, then waits for the machine.
func (s *stage) quiet(ctx context.Context) error {
	if err := s.source.exec(ctx, "postgres", "CHECKPOINT"); err != nil {
		return err
	}
	if err := s.target.exec(ctx, "postgres", "CHECKPOINT"); err != nil {
		return err
	}
	return settle(ctx, s.settle)
}

// pollEvery is short against a run of some seconds, and costs less than one
// per cent of a core.
const pollEvery = 5 * time.Millisecond

// awaitMarker polls the target until the marker is visible. broken ends the
// wait early; it may be nil.
func (s *stage) awaitMarker(ctx context.Context, poll *pgx.Conn, broken func() error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		var seen bool
		if err := poll.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+markerTable+" WHERE id = 1)").Scan(&seen); err != nil {
			return fmt.Errorf("wait for the marker: %w", err)
		}
		if seen {
			return nil
		}
		if err := broken(); err != nil {
			return err
		}
		if err := pause(ctx, pollEvery); err != nil {
			return fmt.Errorf("wait for the marker: %w", err)
		}
	}
}

// verify compares every table of the publication by count and row hashes.
func (s *stage) verify(ctx context.Context) error {
	if s.hashes == nil {
		list, err := s.source.value(ctx, sourceDB, "SELECT string_agg(quote_ident(tablename), ' ') FROM pg_publication_tables WHERE pubname = '"+publication+"'")
		if err != nil {
			return err
		}
		s.hashes = map[string]string{}
		for _, table := range strings.Fields(list) {
			if s.hashes[table], err = s.source.value(ctx, sourceDB, hashQuery(table)); err != nil {
				return err
			}
		}
	}
	for table, want := range s.hashes {
		if table == markerTable {
			continue // its second row may still be on the way
		}
		got, err := s.target.value(ctx, runDB, hashQuery(table))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("table %s differs: count and hash are %s on the source and %s on the target", table, want, got)
		}
	}
	return nil
}

func hashQuery(table string) string {
	return "SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)::numeric), 0) FROM " + table + " t"
}
