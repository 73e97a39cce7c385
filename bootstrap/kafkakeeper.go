package bootstrap

import (
	"context"
	"errors"

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
	if k.state, err = ctl.Read(ctx); err != nil {
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
	k.joining, err = kafka.Join(ctx, &o, rels)
	return tables, err
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
	return k.revise(ctx, func(r *kafka.Revision) error {
		for i, t := range tables {
			was := r.Table(t.OID)
			switch {
			case was != nil && !was.Adding && r.Again:
				return nil // it was committed, though nobody said so
			case was == nil || !was.Adding:
				return justChanged(opAdd)
			}
			mark := ""
			if k.joining[i].Used {
				mark = snapshot.EmptyMark
			}
			r.Load(t, mark)
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
		if c.Key == nil || c.Rel.Identity == millrace.IdentityNothing || k.state.Keyless(t.Name) {
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
			r.Load(t, "")
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
