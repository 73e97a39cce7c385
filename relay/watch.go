package relay

import (
	"context"
	"time"

	"github.com/millrace/millrace"
)

// askEvery is the least time between two requests for the server's position
// while somebody waits: an idle source then answers well within a second.
const askEvery = 100 * time.Millisecond

// ask requests the source's position as long as somebody waits for one that
// nothing written so far reaches.
func (r *Relay) ask(ctx context.Context) {
	source, ok := r.source.(interface{ RequestPosition() })
	if !ok {
		return
	}
	timer := time.NewTimer(askEvery)
	defer timer.Stop()
	for {
		for r.progress.wanted() {
			source.RequestPosition()
			timer.Reset(askEvery)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-r.progress.wake:
		case <-ctx.Done():
			return
		}
	}
}

// watchVisible publishes what is visible at a sink that can tell it apart from
// what is durable.
func (r *Relay) watchVisible(ctx context.Context) {
	sink, ok := r.sink.(interface {
		Visible(context.Context, millrace.LSN) (millrace.LSN, error)
	})
	if !ok {
		return
	}
	var at millrace.LSN
	for {
		now, err := sink.Visible(ctx, at)
		if err != nil {
			return // the pump and the acknowledger get the same error and report it
		}
		if now > at {
			at = now
			r.progress.visible(now)
		}
	}
}
