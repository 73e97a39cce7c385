package kafka

import (
	"context"
	"log/slog"
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
	told   int64        // the same of the control topic, once that was read; -1: not asked yet
	still  bool         // what the job said by then fits the end of loads
	rest   int64        // offset of the transaction topic once that was known; -1: not asked yet
	seen   *Written     // the last that was looked at
	marks  map[millrace.TableName]millrace.Mark
	loads  bool // the first load is not complete
	gone   bool // it was said that the writing job is

	mu     sync.Mutex
	follow *follower
	from   *millrace.History
	torn   torn
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
	s.follow, s.from = f, &from
	s.mu.Unlock()
	s.reader, err = OpenReader(ctx, ReaderOptions{Endpoint: s.opt.Endpoint, Cursor: cp.Cursor, History: &from, Match: s.opt.Match, Share: s.opt.Share,
		MaxHeld: s.opt.MaxHeld, Described: s.opt.Described, Pinned: f.pinned, Log: s.log})
	if err != nil {
		return err
	}
	s.begin(s.reader.Torn() || s.reader.Early())
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
			s.count(t)
			return t, nil
		}
		if t, err = s.idle(ctx); t != nil || err != nil {
			s.count(t)
			return t, err
		}
		if err := s.reader.await(ctx); err != nil {
			return nil, err
		}
	}
}

// Queued tells whether something more comes at once.
func (s *Source) Queued() bool { return !s.reader.Waiting() }

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

// Ack implements millrace.Source. The sink's checkpoint has the cursor, and topics
// keep what they keep.
func (s *Source) Ack(durable millrace.LSN) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.torn.acked = max(s.torn.acked, durable)
	s.mend()
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
