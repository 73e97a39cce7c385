package kafka

import "context"

// ahead is the next page of a partition on its way, while the one before is used: else
// whoever reads waits for a broker and for a page's records to be taken apart, once
// for each.
//
// One is asked for only when it is known to be there, so that no broker waits, and when
// there is room for as much as the page before has taken. It is taken like any other page:
// one that does not fit any more, because the partition has another leader or the offset is
// another one, is dropped. An older high watermark than that of an END does not matter either:
// before anything is called missing the brokers are asked.
type ahead struct {
	done  chan struct{} // closed once pages and err are there
	pages []page
	err   error
	size  int64 // memory that it is expected to take
}

// fetchAhead asks for the partition's next page, if it is there and there is room for it.
func (r *Reader) fetchAhead(p *partition) {
	if p.next >= p.stable || p.others || r.held+r.flying+p.page > r.opt.MaxHeld {
		return
	}
	a := &ahead{done: make(chan struct{}), size: p.page}
	r.flying += a.size
	p.ahead = a
	leader := p.topic.leaders[p.n]
	wants := []want{{topic: p.topic, partition: p.n, offset: p.next, maxBytes: fetchBytes}}
	req := r.f.request(wants, fetchBytes, 0)
	go func() {
		defer close(a.done)
		a.pages, a.err = r.f.ask(r.ctx, leader, req, wants)
	}()
}

// landed takes the page that was fetched ahead. What went wrong with that is found out
// by the next fetch.
func (r *Reader) landed(ctx context.Context, p *partition) error {
	a := p.ahead
	select {
	case <-a.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.ahead = nil
	r.flying -= a.size
	if a.err != nil {
		return ctx.Err()
	}
	for i := range a.pages {
		if err := r.takePage(ctx, &a.pages[i]); err != nil {
			return err
		}
	}
	return ctx.Err()
}
