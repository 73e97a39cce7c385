package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// SourceOptions say what a Source reads.
type SourceOptions struct {
	Endpoint *Endpoint
	// Match selects tables; nil selects all.
	Match func(millrace.TableName) bool
	// Share is the part of the prefix that is read, by the key of rows; nil: all of it, as
	// whole transactions.
	Share *Share
	// Lock keeps other instances of the job from reading until release is called;
	// an error that it is taken is one to try again.
	Lock func(ctx context.Context) (release func(), err error)
	// Described is called with each version of a table before the first change of
	// it is given out.
	Described func(context.Context, *krecord.TableVersion) error
	// Loads tells whether the first load is not complete at the destination; nil:
	// it is. OnWhole is called once all rows of it were given out, with the newest
	// descriptions of the tables: the Txn that comes next takes the marks of all
	// tables away.
	Loads   func() bool
	OnWhole func([]*krecord.TableVersion)
	// OnTorn is told when what is given begins and ends to lack changes that compaction
	// has removed, or rows of tables that are loaded beside the stream: the end once all that
	// makes up for them is durable. nil: nobody is.
	OnTorn  func(torn bool)
	MaxHeld int64        // bytes fetched and not given out; 0 is the Reader's
	Log     *slog.Logger // nil: none
}

// Source gives the transactions of a prefix in commit order, those of its first load
// first, and signs of life behind them: positions up to which the topics hold
// everything, though nothing of ours is there. Its cursor are offsets of all
// partitions, which the sink stores with the rows.
//
// A sign of life is given only once the transaction topic was read to where it ended
// after the position was known: records and checkpoint share a Kafka transaction,
// whose markers come to partitions one by one.
type Source struct {
	opt     SourceOptions
	log     *slog.Logger
	release func()

	// Of the goroutine that calls Start and Next.
	reader *Reader
	given  millrace.LSN // the highest position that was given out
	sign   *Written     // what the sign of life that is due is made of
	upto   int64        // offset of the transaction topic that comes before it; -1: not asked yet
	looked int          // how often follow had looked then
	still  bool         // what the job said after that fits the end of loads
	rest   int64        // offset of the transaction topic that comes before that; -1: not asked yet
	seen   *Written     // the last that was looked at
	marks  map[millrace.TableName]millrace.Mark
	loads  bool // the first load is not complete
	gone   bool // it was said that the writing job is

	mu     sync.Mutex
	follow *follower
	from   *millrace.History
	torn   bool         // it was said
	whole  millrace.LSN // behind which it is not any more; 0: not known yet
	acked  millrace.LSN
}

// NewSource makes a Source. It connects in Start.
func NewSource(opt SourceOptions) *Source {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{opt: opt, log: opt.Log}
}

// Start implements millrace.Source.
func (s *Source) Start(ctx context.Context, cp millrace.Checkpoint) (err error) {
	s.close()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.opt.Lock != nil {
		if s.release, err = s.opt.Lock(ctx); err != nil {
			return err
		}
	}
	f, err := follow(ctx, s.opt.Endpoint)
	if err != nil {
		return err
	}
	from := cp.History
	s.mu.Lock()
	s.follow, s.from, s.acked = f, &from, 0
	s.mu.Unlock()
	s.reader, err = OpenReader(ctx, ReaderOptions{Endpoint: s.opt.Endpoint, Cursor: cp.Cursor, History: &from, Match: s.opt.Match, Share: s.opt.Share,
		MaxHeld: s.opt.MaxHeld, Described: s.opt.Described, Log: s.log})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.whole = 0
	if torn := s.reader.Torn() || s.reader.Early(); torn != s.torn {
		s.say(torn)
	}
	s.mu.Unlock()
	s.given, s.sign, s.seen, s.upto = cp.Acked, nil, nil, -1
	s.marks = cp.Tables
	s.loads = s.opt.Loads != nil && s.opt.Loads()
	if len(cp.Cursor) > 0 && !s.loads {
		return nil
	}
	w, err := f.look()
	if err == nil {
		err = s.opt.Endpoint.Unfit(w)
	}
	if err != nil {
		return s.opt.Endpoint.wrap("read Kafka", err)
	}
	if len(cp.Cursor) > 0 {
		return nil
	}
	return s.reader.whole(ctx, &from)
}

// Next implements millrace.Source.
func (s *Source) Next(ctx context.Context) (*millrace.Txn, error) {
	for {
		t, err := s.reader.ready(ctx)
		if err != nil {
			return nil, err
		}
		s.tell(s.reader.Torn() || s.reader.Early())
		if t != nil {
			if t.End > s.given {
				s.given = t.End
			}
			return t, nil
		}
		if t, err = s.idle(ctx); t != nil || err != nil {
			return t, err
		}
		if err := s.reader.await(ctx); err != nil {
			return nil, err
		}
	}
}

// Queued tells whether something more comes at once.
func (s *Source) Queued() bool { return !s.reader.Waiting() }

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
		s.sign, s.seen, s.upto, s.rest, s.still = w, w, -1, -1, false
	}
	if s.upto < 0 {
		if s.upto, err = s.reader.reached(ctx); err != nil {
			return nil, err
		}
		s.looked = s.follow.looked()
	}
	if s.upto < 0 || !s.reader.passed(s.upto) {
		return nil, nil
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
// what was given as well. That no table was loaded is known only of two moments: one
// before upto was asked for, and one after it. A load that began before upto is over at the second, and
// what it has written lies before the end of the topic that is asked for then; one that
// began later has its changes behind upto, which settled looks at.
func (s *Source) rested(ctx context.Context) (ready bool, err error) {
	if s.rest < 0 {
		if s.follow.looked() < s.looked+2 {
			return false, nil
		}
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

// Position gives the position up to which the topics hold everything, 0 while that
// is not known.
func (s *Source) Position() millrace.LSN {
	s.mu.Lock()
	f, from := s.follow, s.from
	s.mu.Unlock()
	if f == nil {
		return 0
	}
	w, err := f.look()
	if err != nil || w.Gone || w.History.System != from.System || w.History.Generation != from.Generation {
		return 0
	}
	return w.Acked
}

// tell says that what is given is torn, and takes note of where it is not any more.
func (s *Source) tell(torn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case torn && !s.torn:
		why := "compaction has removed changes that later ones have made void"
		if s.reader.Early() {
			why = "the job that writes loads tables beside the stream"
		}
		s.log.Info("transactions are not whole until what makes up for it has come", "cause", why)
		s.say(true)
	case torn:
		s.whole = 0
	case s.torn && s.whole == 0:
		s.whole = max(s.given, 1)
		s.mend()
	}
}

// Ack implements millrace.Source. The sink's checkpoint has the cursor, and topics
// keep what they keep.
func (s *Source) Ack(durable millrace.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked = max(s.acked, durable)
	s.mend()
}

// mend says that it is whole again, once what made up for the rest is durable. It is
// called with mu held.
func (s *Source) mend() {
	if s.torn && s.whole != 0 && s.acked >= s.whole {
		s.log.Info("transactions are whole again", "lsn", s.whole)
		s.say(false)
	}
}

func (s *Source) say(torn bool) {
	s.torn, s.whole = torn, 0
	if s.opt.OnTorn != nil {
		s.opt.OnTorn(torn)
	}
}

// Close implements millrace.Source.
func (s *Source) Close() error {
	s.close()
	return nil
}

func (s *Source) close() {
	if s.reader != nil {
		s.reader.Close()
	}
	s.mu.Lock()
	f := s.follow
	s.follow = nil
	s.mu.Unlock()
	if f != nil {
		f.close()
	}
	if s.release != nil {
		s.release()
		s.release = nil
	}
}

// whole makes sure that the beginning of the wanted generation is still there. The
// transaction topic has the generations one behind the other: nothing of one is
// missing if the topic begins at its first offset, or with an earlier one.
func (r *Reader) whole(ctx context.Context, want *millrace.History) error {
	p := r.order()
	if p.first == 0 {
		return nil
	}
	end, err := r.reached(ctx)
	for err == nil && (end < 0 || len(p.queue) == 0 && p.next < end) {
		if end < 0 {
			end, err = r.reached(ctx)
			continue
		}
		err = r.await(ctx)
	}
	if err != nil {
		return err
	}
	if len(p.queue) > 0 {
		rec := p.queue[0]
		generation, err := strconv.ParseInt(string(krecord.Header(rec, headerGeneration)), 10, 64)
		if err != nil {
			return r.malformed(rec, errors.New("header generation is malformed"))
		}
		if generation < want.Generation {
			return nil
		}
	}
	return &millrace.Error{Kind: millrace.KindResync, Op: "read Kafka", Peer: r.opt.Endpoint.Peer,
		Err:  fmt.Errorf("history expired: %s begins at offset %d, behind the beginning of the first load", p.topic.name, p.first),
		Hint: expiredHint}
}
