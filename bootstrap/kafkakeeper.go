package bootstrap

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// kafkaKeeper is a prefix of topics. What it records, it records as the job's owner,
// which it is for the moment of a Kafka transaction: see kafka.Revise.
type kafkaKeeper struct {
	*load
	state   *kafka.State
	joining []kafka.Joining // of the tables that lay has given
}

func (k *kafkaKeeper) read(ctx context.Context) (*record.Job, error) {
	ctl, err := k.Into.Endpoint.OpenControl()
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	if k.state, err = ctl.ReadBehind(ctx); err != nil {
		return nil, err
	}
	if k.state.Job != nil {
		err = k.Into.SameLayout(k.state)
	}
	return k.state.Job, err
}

// emptied: the load of such a table begins with the removal of what there was.
func (k *kafkaKeeper) emptied() string { return "" }

// lay makes the topics of the tables.
func (k *kafkaKeeper) lay(ctx context.Context) ([]record.Table, error) {
	if err := k.checkTopics(ctx); err != nil {
		return nil, err
	}
	o := *k.Into
	var err error
	if o.Facts, err = FactsOf(ctx, k.source, k.set.OIDs()); err != nil {
		return nil, err
	}
	tables, rels := make([]record.Table, len(k.set.Tables)), make([]*millrace.Relation, len(k.set.Tables))
	for i, t := range k.set.Tables {
		c, err := snapshot.DescribeChunks(ctx, k.source, t.OID, false, nil)
		if err != nil {
			return nil, err
		}
		rels[i], tables[i] = c.Rel, record.Table{OID: t.OID, Name: c.Rel.Name, Filenode: c.Filenode, Shape: c.Shape}
	}
	if k.joining, err = kafka.Join(ctx, &o, rels); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(k.joining, func(j kafka.Joining) bool { return j.Used }) {
		err = k.awaitOlder(ctx)
	}
	return tables, err
}

// awaitOlder waits until the transactions have ended that are open now. One that was so when a
// table left the publication would be in the stream with what it did before, and what it will do once the table is
// there again, and not with what lies between.
func (k *kafkaKeeper) awaitOlder(ctx context.Context) error {
	const op = "wait for transactions that are open"
	var next int64
	if err := k.source.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8`).Scan(&next); err != nil {
		return session.Wrap(op, millrace.PeerSource, err)
	}
	for until := time.Now().Add(k.SlotWait); ; {
		var ended bool
		if err := k.source.QueryRow(ctx, `SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8 >= $1::int8`, next).Scan(&ended); err != nil {
			return session.Wrap(op, millrace.PeerSource, err)
		}
		if ended {
			return nil
		}
		if time.Now().After(until) {
			return &millrace.Error{Kind: millrace.KindPreflight, Op: opAdd, Peer: millrace.PeerSource,
				Err:  errors.New("a table that the job had before can't join while transactions are open that may have changed it then"),
				Hint: "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL shows them; end those that were left open, and run it again"}
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}

// checkTopics finds what stands in the way of topics and keys, beside the tables that
// the job has.
func (k *kafkaKeeper) checkTopics(ctx context.Context) error {
	found, err := catalog.Describe(ctx, k.source, k.set.OIDs())
	if err != nil {
		return session.Wrap("describe the tables", millrace.PeerSource, err)
	}
	var others []millrace.TableName
	for _, t := range k.job.Tables {
		if found[t.OID] == nil {
			others = append(others, t.Name)
		}
	}
	var tables []*catalog.Table
	keys := catalog.Keys{}
	for _, oid := range k.set.OIDs() {
		t := found[oid]
		if t == nil {
			continue
		}
		if tables = append(tables, t); k.Into.Keys[t.Name] != nil {
			keys[t.Name] = k.Into.Keys[t.Name]
		}
	}
	problems := append(snapshot.CheckKeys(keys, tables), TopicProblems(k.Into, tables, others...)...)
	if len(problems) > 0 {
		return problemError(opAdd, problems)
	}
	return nil
}

func (k *kafkaKeeper) revise(ctx context.Context, do func(*kafka.Revision) error) error {
	return kafka.Revise(ctx, k.Into, k.job.Generation, do)
}

func (k *kafkaKeeper) adding(ctx context.Context, tables []record.Table) error {
	return k.revise(ctx, func(r *kafka.Revision) error {
		for _, t := range tables {
			if was := r.Table(t.OID); was != nil && !was.Adding {
				return justChanged(opAdd)
			}
			t.Adding = true
			r.Record(t)
		}
		return nil
	})
}

func (k *kafkaKeeper) added(ctx context.Context, tables []record.Table) error {
	since, err := catalog.Position(ctx, k.source)
	if err != nil {
		return session.Wrap("read the source's position", millrace.PeerSource, err)
	}
	return k.revise(ctx, func(r *kafka.Revision) error {
		for i, t := range tables {
			was := r.Table(t.OID)
			switch {
			case was != nil && !was.Adding && r.Again:
				return nil // it was committed, though nobody said so
			case was == nil || !was.Adding:
				return justChanged(opAdd)
			}
			r.Load(t, snapshot.JoinMark(since, k.joining[i].Used))
			r.Join(&k.joining[i])
		}
		r.RaiseSet()
		return nil
	})
}

func justChanged(op string) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination,
		Err: errors.New("somebody else has added or dropped one of the tables just now"), Hint: "millrace status lists the tables of the job"}
}

// again gives the rows that there are to the topics once more, each as one that may be
// there. Rows that are too many stay: only a record that says so removes one, and the
// stream has brought all of those. Whoever knows better drops the table and adds it.
func (k *kafkaKeeper) again(ctx context.Context) error {
	var problems []snapshot.Finding
	var tables []record.Table
	for _, t := range k.set.Tables {
		c, err := snapshot.DescribeChunks(ctx, k.source, t.OID, false, k.Keys)
		if err != nil {
			return err
		}
		if c.Key == nil || c.Key.Shared || c.Rel.Identity == millrace.IdentityNothing || k.state.Keyless(t.Name) {
			problems = append(problems, snapshot.Finding{Subject: t.Name.String(),
				Text: "its records have no key, by which a row could be known that is in the topics already",
				Cure: "millrace table drop " + t.Name.String() + ", then millrace table add: that begins with the removal of all rows (a record of op t)"})
		}
		tables = append(tables, record.Table{OID: t.OID, Name: c.Rel.Name, Filenode: c.Filenode, Shape: c.Shape})
	}
	if len(problems) > 0 {
		return problemError(opAgain, problems)
	}
	return k.revise(ctx, func(r *kafka.Revision) error {
		for _, t := range tables {
			if was := r.Table(t.OID); was == nil || was.Adding {
				return justChanged(opAgain)
			}
			r.Load(t, snapshot.AgainMark(r.Mark(t.OID)))
		}
		r.RaiseSet()
		return nil
	})
}

func (k *kafkaKeeper) dropping(ctx context.Context, tables []record.Table) error {
	return k.revise(ctx, func(r *kafka.Revision) error {
		for _, t := range tables {
			if was := r.Table(t.OID); was != nil {
				was.Adding = true
				r.Record(*was)
			}
		}
		return nil
	})
}

func (k *kafkaKeeper) dropped(ctx context.Context, tables []record.Table) error {
	return k.revise(ctx, func(r *kafka.Revision) error {
		left := false
		for _, t := range tables {
			if was := r.Table(t.OID); was != nil {
				r.Drop(*was)
				left = true
			}
		}
		if left {
			r.RaiseSet()
		}
		return nil
	})
}
