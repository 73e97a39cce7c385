package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

func (a *app) cleanupCommand() *cobra.Command {
	var yes, dryRun, gone bool
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Drop the slot, the publication and the records that Millrace made",
		Long: `Cleanup ends a job: it drops the replication slot and the publication, if Millrace created
them, rolls back what the job has prepared on the target and
not decided, and removes the job's records. It never drops what it found, and the copied tables
stay. Until the slot is dropped the source keeps WAL for it.

With --source-gone it asks nothing of the source and removes the records alone: for a server
that does not exist any more.`,
		Example: `  millrace cleanup --dry-run
  millrace cleanup --yes`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !yes && !dryRun {
				return &millrace.Error{Kind: millrace.KindConfig, Op: c.CommandPath(),
					Err: errors.New("it removes things and wants to be sure"), Hint: "add --yes, or --dry-run to see what it would do"}
			}
			s, err := a.load()
			if err != nil {
				return err
			}
			return a.cleanup(c.Context(), s, dryRun, gone)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, and do nothing")
	c.Flags().BoolVar(&gone, "source-gone", false, "remove the records only: the source does not exist any more")
	return c
}

// step is one thing that cleanup does.
type step struct {
	Action string `json:"action"` // drop or remove
	Object string `json:"object"`
	SQL    string `json:"sql,omitempty"`
	do     func(context.Context) error
}

func (a *app) cleanup(ctx context.Context, s *settings, dryRun, gone bool) error {
	book, err := s.openLedger(ctx)
	if err != nil {
		return err
	}
	defer book.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what counts was confirmed
	j, _, err := book.Read(ctx)
	if err != nil {
		return err
	}
	if j == nil {
		return noJob(s)
	}
	if rt, alive, err := readRuntime(ctx, book, s); err != nil {
		return err
	} else if alive {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "clean up job " + s.Job,
			Err:  fmt.Errorf("an instance runs it on host %s with pid %d", rt.Host, rt.PID),
			Hint: "stop it first; if it was killed, its heartbeat counts for " + (silentBeats * s.Safety.HeartbeatInterval).String()}
	}
	var steps []step
	if gone {
		s.leaveSource(j)
	} else {
		var source *pgx.Conn
		steps, source, err = a.cleanupSteps(ctx, s, j)
		if source != nil {
			defer source.Close(context.WithoutCancel(ctx))
		}
	}
	if err != nil {
		return err
	}
	if steps, err = prepared(ctx, book, s.Job, steps); err != nil {
		return err
	}
	steps = append(steps, step{Action: "remove", Object: "record of job " + s.Job,
		do: book.Delete})
	for _, st := range steps {
		if !dryRun {
			if err := st.do(ctx); err != nil {
				return err
			}
		}
		if err := a.printStep(st, dryRun); err != nil {
			return err
		}
	}
	return nil
}

// prepared adds what the job has prepared on a target and not decided. Nobody
// would decide it any more, and it would hold its locks for ever.
func prepared(ctx context.Context, book ledger, job string, steps []step) ([]step, error) {
	target, ok := book.(*pgLedger)
	if !ok {
		return steps, nil
	}
	gids, err := record.PreparedNames(ctx, target.conn, job, 0)
	for _, gid := range gids {
		sql := record.RollbackPreparedSQL(gid)
		steps = append(steps, step{Action: "roll back", Object: "prepared transaction " + gid, SQL: sql, do: func(ctx context.Context) error {
			_, err := target.conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			return session.Wrap("clean up", millrace.PeerDestination, err)
		}})
	}
	return steps, err
}

// cleanupSteps says what is to be dropped at the source. It connects there only
// if something may be.
func (a *app) cleanupSteps(ctx context.Context, s *settings, j *record.Job) ([]step, *pgx.Conn, error) {
	if !j.OwnsSlot && !j.OwnsPublication {
		return nil, nil, nil
	}
	conn, err := s.source.Connect(ctx, session.Watch)
	if err != nil {
		var e *millrace.Error
		if errors.As(err, &e) && e.Condition != "" {
			e.Hint += "; if that server is gone for good, cleanup --source-gone removes the records alone"
		}
		return nil, nil, err
	}
	server, err := catalog.ReadServer(ctx, conn)
	if err != nil {
		return nil, conn, session.Wrap("read the source", millrace.PeerSource, err)
	}
	if server.SystemID != j.SystemID {
		return nil, conn, &millrace.Error{Kind: millrace.KindPreflight, Op: "clean up job " + s.Job, Peer: millrace.PeerSource,
			Err:  fmt.Errorf("the source is system %s, the job's is %s", server.SystemID, j.SystemID),
			Hint: "point the source's URL at the server that the job was made on"}
	}
	var steps []step
	exec := func(sql string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := conn.Exec(ctx, sql)
			return session.Wrap("clean up", millrace.PeerSource, err)
		}
	}
	if j.OwnsSlot {
		slot, err := catalog.ReadSlot(ctx, conn, j.Slot)
		switch {
		case err != nil:
			return nil, conn, session.Wrap("read the slot", millrace.PeerSource, err)
		case slot != nil && slot.Active:
			return nil, conn, &millrace.Error{Kind: millrace.KindPreflight, Op: "drop slot " + j.Slot, Peer: millrace.PeerSource,
				Err:  fmt.Errorf("it is in use by the server process with pid %d", slot.ActivePID),
				Hint: "stop what reads from it; a walsender whose client is gone ends after wal_sender_timeout"}
		case slot != nil:
			sql := "SELECT pg_catalog.pg_drop_replication_slot(" + millrace.QuoteLiteral(j.Slot) + ")"
			steps = append(steps, step{Action: "drop", Object: "slot " + j.Slot, SQL: sql, do: exec(sql)})
		}
	}
	if j.OwnsPublication {
		pub, err := catalog.ReadPublication(ctx, conn, j.Publication)
		if err != nil {
			return nil, conn, session.Wrap("read the publication", millrace.PeerSource, err)
		}
		if pub != nil {
			sql := "DROP PUBLICATION " + millrace.QuoteIdent(j.Publication)
			steps = append(steps, step{Action: "drop", Object: "publication " + j.Publication, SQL: sql, do: exec(sql)})
		}
	}
	return steps, conn, nil
}

// leaveSource says what a source that is not gone would have to get rid of.
func (s *settings) leaveSource(j *record.Job) {
	if j.OwnsSlot {
		s.log.Warn("the slot is not dropped: if the source lives after all, it keeps WAL for it without end", "slot", j.Slot)
	}
	if j.OwnsPublication {
		s.log.Warn("the publication is not dropped", "publication", j.Publication)
	}
}

func (a *app) printStep(st step, dryRun bool) error {
	if a.json {
		return a.printJSON(struct {
			step
			Done bool `json:"done"`
		}{st, !dryRun})
	}
	done := map[string]string{"drop": "dropped", "remove": "removed", "roll back": "rolled back"}[st.Action]
	if dryRun {
		done = "would " + st.Action
	}
	line := done + " " + st.Object
	if dryRun && st.SQL != "" {
		line += ": " + st.SQL
	}
	_, err := fmt.Fprintln(a.stdout, line)
	return err
}
