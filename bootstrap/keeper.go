package bootstrap

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// keeper is a job's destination, as far as it has to do with changes of the set of
// tables: each of its steps is one transaction there, and can be repeated. It may be
// killed between them, and whoever streams never meets a state that it can't judge.
type keeper interface {
	// read gives the job's record, nil if there is none.
	read(ctx context.Context) (*record.Job, error)
	// lay makes what the tables of load.set need before they join, and gives them as they
	// are recorded.
	lay(ctx context.Context) ([]record.Table, error)
	// adding records tables that are about to join: they don't count until added, from
	// where on they are loaded beside the stream.
	adding(ctx context.Context, tables []record.Table) error
	added(ctx context.Context, tables []record.Table) error
	// again has the tables of load.set loaded once more.
	again(ctx context.Context) error
	// dropping records that tables are about to leave, which dropped has them do.
	dropping(ctx context.Context, tables []record.Table) error
	dropped(ctx context.Context, tables []record.Table) error
	// emptied says, behind "drop it first", what else has to be done before a table is
	// added that the job had.
	emptied() string
}

func (l *load) keeper() keeper {
	if l.Into != nil {
		return &kafkaKeeper{load: l}
	}
	return &targetKeeper{load: l}
}

// targetKeeper is a PostgreSQL target.
type targetKeeper struct{ *load }

func (k *targetKeeper) read(ctx context.Context) (*record.Job, error) {
	var err error
	if k.target, err = k.Target.Connect(ctx, session.Watch); err != nil {
		return nil, err
	}
	job, _, err := record.Read(ctx, k.target, k.Job)
	if err == nil && job != nil {
		k.replica, err = snapshot.ReplicaAllowed(ctx, k.target)
	}
	return job, err
}

func (k *targetKeeper) emptied() string { return ", and empty the table at the destination" }

func (k *targetKeeper) lay(ctx context.Context) ([]record.Table, error) {
	pairs, err := k.makeTables(ctx)
	if err != nil {
		return nil, err
	}
	tables := make([]record.Table, len(pairs))
	for i, t := range pairs {
		tables[i] = recordedPair(t)
	}
	return tables, nil
}

func recordedPair(t *snapshot.Table) record.Table {
	return record.Table{OID: t.Source.OID, Name: t.Source.Name, TargetOID: t.Target.OID,
		Filenode: t.Source.Filenode, Shape: catalog.ShapeOf(t.Source)}
}

func (k *targetKeeper) adding(ctx context.Context, tables []record.Table) error {
	return k.inRecord(ctx, opAdd, func(tx pgx.Tx) error {
		for _, t := range tables {
			if err := record.BeginAdding(ctx, tx, k.Job, t); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *targetKeeper) added(ctx context.Context, tables []record.Table) error {
	return k.inRecord(ctx, opAdd, func(tx pgx.Tx) error {
		for _, t := range tables {
			if err := record.Added(ctx, tx, k.Job, t.OID); err != nil {
				return err
			}
			if err := record.BeginLoad(ctx, tx, k.Job, t.OID, ""); err != nil {
				return err
			}
			if k.definitions == nil {
				continue
			}
			if err := record.OweKeys(ctx, tx, k.Job, t.OID); err != nil {
				return err
			}
		}
		return record.RaiseSet(ctx, tx, k.Job)
	})
}

// again has the rows staged, and when all are there, the differences written in one
// transaction of the target.
func (k *targetKeeper) again(ctx context.Context) error {
	pairs, err := k.pairNow(ctx)
	if err != nil {
		return err
	}
	if err := k.refuseMerged(ctx, pairs); err != nil {
		return err
	}
	return k.inRecord(ctx, opAgain, func(tx pgx.Tx) error {
		if err := record.RaiseSetAlone(ctx, tx, k.Job); err != nil {
			return err
		}
		for _, t := range pairs {
			if err := record.UpdateTable(ctx, tx, k.Job, recordedPair(t)); err != nil {
				return err
			}
			if err := record.BeginLoad(ctx, tx, k.Job, t.Source.OID, snapshot.ReplaceMark); err != nil {
				return err
			}
			if err := record.MakeStaging(ctx, tx, k.Job, t.Source.OID, t.Target.Name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *targetKeeper) dropping(ctx context.Context, tables []record.Table) error {
	return k.inRecord(ctx, opDrop, func(tx pgx.Tx) error {
		for _, t := range tables {
			if err := record.BeginDropping(ctx, tx, k.Job, t.OID); err != nil {
				return err
			}
		}
		return nil
	})
}

func (k *targetKeeper) dropped(ctx context.Context, tables []record.Table) error {
	return k.inRecord(ctx, opDrop, func(tx pgx.Tx) error {
		for _, t := range tables {
			if err := record.DropTable(ctx, tx, k.Job, t.OID); err != nil {
				return err
			}
		}
		return record.RaiseSet(ctx, tx, k.Job)
	})
}

// makeTables makes the tables of the set on the target, with everything but
// foreign keys.
func (l *load) makeTables(ctx context.Context) ([]*snapshot.Table, error) {
	target, err := catalog.ReadServer(ctx, l.target)
	if err != nil {
		return nil, session.Wrap("read the server", millrace.PeerDestination, err)
	}
	problems, err := l.checkTarget(ctx)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problemError(opAdd, problems)
	}
	if err := l.prepareDefinitions(ctx, target); err != nil {
		return nil, err
	}
	if err := l.planNow(ctx); err != nil {
		return nil, err
	}
	if p := l.definitions; p != nil {
		if err := p.ApplyBefore(ctx, l.target); err != nil {
			return nil, err
		}
	}
	if err := l.makeIndexes(ctx); err != nil {
		return nil, err
	}
	tables, err := l.pairNow(ctx)
	if err != nil {
		return nil, err
	}
	return tables, l.refuseChecked(tables)
}

// refuseMerged refuses to merge into tables whose foreign keys, or those that refer to
// them, would be checked, or act on other tables, meanwhile.
func (l *load) refuseMerged(ctx context.Context, tables []*snapshot.Table) error {
	if l.replica {
		return nil
	}
	var problems []snapshot.Finding
	for _, t := range tables {
		var keyed bool
		if err := l.target.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE contype = 'f' AND $1 IN (conrelid, confrelid))`,
			t.Target.OID).Scan(&keyed); err != nil {
			return session.Wrap("read foreign keys", millrace.PeerDestination, err)
		}
		if keyed {
			problems = append(problems, snapshot.Finding{Subject: t.Name().String(),
				Text: "has foreign keys on the target, or is referred to by some, which are checked there while it is brought up to date",
				Cure: "GRANT SET ON PARAMETER session_replication_role to the target's role, or drop the foreign keys until it is read"})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problemError(opAgain, problems)
}

// AddKeys adds the foreign keys that tables lack which were loaded after the
// first load, and validates them.
func AddKeys(ctx context.Context, o Options) error {
	l := newRun(o)
	defer l.close()
	owed, err := l.keysOwed(ctx)
	if err != nil || len(owed) == 0 {
		return err
	}
	if err := l.openJob(ctx, "add foreign keys"); err != nil {
		return err
	}
	if err := l.adopt(ctx); err != nil {
		return err
	}
	if err := l.planNow(ctx); err != nil {
		return err
	}
	if p := l.definitions; p != nil {
		if err := p.ApplyKeys(ctx, l.target, l.made); err != nil {
			return err
		}
	}
	return record.KeysMade(ctx, l.target, l.Job, owed)
}

func (l *load) keysOwed(ctx context.Context) ([]uint32, error) {
	conn, err := l.Target.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return record.KeysOwed(ctx, conn, l.Job)
}
