package kafka

import "github.com/millrace/millrace"

// torn is what a Source has said of changes or rows that what is given out lacks, and when
// it may say that it does not any more: once all that was given out until then is committed.
// Of transactions positions tell that, of chunks the sink, one by one and in their order.
type torn struct {
	said  bool
	ended *extent // behind which it is over; nil: that has not come yet

	acked   millrace.LSN
	session int // of the counts
	extent      // of what was given out
	stored  int // chunks that are committed
}

// extent is how much was given out.
type extent struct {
	at     millrace.LSN // the highest position
	chunks int          // and those of signs of life
}

// begin begins a session, in which what comes is torn or not.
func (s *Source) begin(isTorn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.torn = torn{said: s.torn.said, session: s.torn.session + 1}
	if isTorn != s.torn.said {
		s.say(isTorn)
	}
}

// count takes note of what is given out.
func (s *Source) count(t *millrace.Txn) {
	if t == nil || t.Chunk == nil || !t.Last {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.torn.chunks++
	session := s.torn.session
	t.OnStored(func(committed bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if committed && s.torn.session == session {
			s.torn.stored++
			s.mend()
		}
	})
}

// tell says that what is given is torn, and takes note of where it is not any more.
func (s *Source) tell(isTorn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := &s.torn
	switch {
	case isTorn && !x.said:
		why := "compaction has removed changes that later ones have made void"
		if s.reader.Early() {
			why = "the job that writes loads tables beside the stream"
		}
		s.log.Info("transactions are not whole until what makes up for it has come", "cause", why)
		s.say(true)
	case isTorn:
		x.ended = nil
	case x.said && x.ended == nil:
		x.at = max(s.given, 1)
		ended := x.extent
		x.ended = &ended
		s.mend()
	}
}

// mend says that it is whole again, once what made up for the rest is durable. It is
// called with mu held.
func (s *Source) mend() {
	x := &s.torn
	if x.said && x.ended != nil && x.acked >= x.ended.at && x.stored >= x.ended.chunks {
		s.log.Info("transactions are whole again", "lsn", x.ended.at)
		s.say(false)
	}
}

func (s *Source) say(isTorn bool) {
	s.torn.said, s.torn.ended = isTorn, nil
	if s.opt.OnTorn != nil {
		s.opt.OnTorn(isTorn)
	}
}
