package kafka

import (
	"context"

	"github.com/millrace/millrace"
)

// idle gives a sign of life, if one is due. Nothing is left of what was fetched.
func (s *Source) idle(ctx context.Context) (*millrace.Txn, error) {
	w, err := s.follow.look()
	if err != nil {
		return nil, s.opt.Endpoint.wrap("read Kafka", err)
	}
	if s.sign == nil {
		mends := !s.loads && s.reader.Early() && !w.Loading && !w.Gone // what was read since w was seen can be early
		if !s.aged(w) && (w == s.seen && !mends || !s.due(w)) {
			s.seen = w
			return nil, nil
		}
		s.sign, s.seen, s.upto, s.told, s.rest, s.still = w, w, -1, -1, -1, false
	}
	if s.upto < 0 {
		if s.upto, err = s.reader.reached(ctx); err != nil {
			return nil, err
		}
	}
	if s.upto < 0 || !s.reader.passed(s.upto) {
		return nil, nil
	}
	if err := s.reader.reaches(s.sign); err != nil {
		return nil, s.reader.fail(err)
	}
	ends := !s.sign.Loading && (s.loads || s.reader.Early())
	if ends {
		if ready, err := s.rested(ctx); !ready {
			return nil, err
		}
	}
	w, s.sign = s.sign, nil
	if w.Gone {
		if !s.gone {
			s.log.Warn("the job that writes to the prefix was cleaned up: nothing more comes", "job", w.Job)
		}
		s.gone = true
		return nil, nil
	}
	if got := w.History; got.System != s.from.System || got.Generation != s.from.Generation {
		return nil, otherHistory(s.opt.Endpoint, &got, s.from, 0)
	}
	if ends && s.still {
		s.reader.settled(s.upto)
	}
	if s.loads {
		if err := s.opt.Endpoint.Unfit(w); err != nil { // it was interrupted, and goes on beside the stream
			return nil, err
		}
	}
	if s.loads && (w.From == 0 || !s.still || s.reader.Early()) {
		return nil, nil // another table was added
	}
	return s.life(w), nil
}

// rested finds out whether a load that is over for the job that writes is over for
// what was given as well. Everything before upto was given, so the Kafka transactions that it is of have
// ended, and their records in the control topic lie before the end that it has now, told. A load that
// began with one of them is known once that was read. If none is under way then, all that those loads have
// written lies before the end that the transaction topic has from then on, rest. A load that began later
// has its changes behind upto, which settled looks at.
//
// A look alone would not do: what was committed is not in sight while a transaction before it in the
// control topic has not ended.
func (s *Source) rested(ctx context.Context) (ready bool, err error) {
	if s.told < 0 {
		if s.told, err = s.follow.reached(ctx); err != nil {
			return false, s.opt.Endpoint.wrap("read Kafka", err)
		}
	}
	if s.told < 0 || s.rest < 0 && !s.follow.passed(s.told) {
		return false, nil
	}
	if s.rest < 0 {
		now, err := s.follow.look()
		if err != nil {
			return false, s.opt.Endpoint.wrap("read Kafka", err)
		}
		s.still = !now.Loading && !now.Gone && now.History == s.sign.History
		if s.rest, err = s.reader.reached(ctx); err != nil {
			return false, err
		}
	}
	return s.rest >= 0 && s.reader.passed(s.rest), nil
}

// due tells whether w says something that was not given out.
func (s *Source) due(w *Written) bool {
	h := w.History
	return w.Gone || h.System != s.from.System || h.Generation != s.from.Generation || s.loads && (w.From != 0 && !w.Loading || s.opt.Endpoint.Unfit(w) != nil) ||
		!s.loads && w.From != 0 && (w.Acked > s.given || s.reader.Early() && !w.Loading)
}

// aged tells whether a sign of life is due though it says nothing new: the cursor that goes with it does.
func (s *Source) aged(w *Written) bool { return s.reader.Aged() && !s.loads && !w.Gone && w.From != 0 }

// life makes the sign of life of what the writing job says. It has the form of a
// chunk without rows, since a cursor goes with it: what an idle topic has lost
// to its retention was read. The first one behind a load has the marks of all tables.
func (s *Source) life(w *Written) *millrace.Txn {
	s.given = max(s.given, w.Acked, w.From)
	t := &millrace.Txn{Chunk: &millrace.Chunk{}, End: s.given, Last: true, From: &w.History, Cursor: s.reader.drained()}
	if !s.loads {
		return t
	}
	s.loads = false
	versions := s.reader.Versions()
	t.Marks = map[millrace.TableName]millrace.Mark{}
	for name, m := range s.marks { // of former sessions
		t.Marks[name] = millrace.Mark{OID: m.OID, Done: true}
	}
	for _, v := range versions {
		t.Marks[v.Name()] = millrace.Mark{OID: v.OID, Done: true}
	}
	for i := range w.Tables {
		x := &w.Tables[i]
		if m, ok := t.Marks[x.Name]; ok && m.OID == x.OID {
			m.Rows, m.Bytes = x.Rows, x.Bytes
			t.Marks[x.Name] = m
		}
	}
	if s.opt.OnWhole != nil {
		s.opt.OnWhole(versions)
	}
	return t
}
