package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// fence takes the transactional id over and then reads what its former owners
// have left. The order matters: read before the fence, and a commit of a zombie
// is missed. The high watermark is taken after the fence, and the stable offset
// reaches it, since nobody else has transactions here. ListOffsets has it: a new
// leader does not answer that before it knows (KIP-207), while the watermark of a
// page may be behind what the leader before has confirmed.
func fence(ctx context.Context, e *Endpoint, cl *kgo.Client) (*State, error) {
	if _, _, err := cl.ProducerID(ctx); err != nil {
		return nil, err
	}
	name := controlTopic(e.Prefix, e.Job)
	var high int64
	if err := settled(ctx, func() error {
		found, err := topics(ctx, cl, name)
		if err != nil || found[name] == nil {
			return err
		}
		all, err := offsets(ctx, cl, -1, found[name])
		for _, at := range all[found[name]] {
			high = max(high, at)
		}
		return err
	}); err != nil {
		return nil, err
	}
	var c controlReader
	return c.state(ctx, cl, name, e.Job, func(p page) int64 { return max(high, p.high) })
}

// bytesPerSecond is a rate at which any cluster takes records, for estimating
// how long a large transaction takes.
const bytesPerSecond = 16 << 20

// timeoutFor gives the timeout of the Kafka transaction for a source transaction
// that takes so many bytes in the spool, where it is compressed.
func (w *writer) timeoutFor(spooled int64) (time.Duration, error) {
	bytes := 5 * spooled
	need := time.Duration(bytes/bytesPerSecond) * time.Second
	if need > w.opt.MaxTimeout {
		return 0, &millrace.Error{Kind: millrace.KindData, Op: "write to Kafka", Peer: millrace.PeerDestination,
			Err: fmt.Errorf("a source transaction of some %d MiB takes longer than the %v after which the brokers end a Kafka transaction",
				bytes>>20, w.opt.MaxTimeout),
			Hint: "raise transaction.max.timeout.ms of the brokers; everything before this transaction was delivered"}
	}
	return max(transactionTimeout, min(4*need, w.opt.MaxTimeout)), nil
}

// reopen goes on with a producer that has another timeout. That takes the
// transactional id anew, from ourselves, unless somebody else has taken it
// meanwhile: then the control topic has another checkpoint than ours.
func (w *writer) reopen(ctx context.Context, timeout time.Duration) error {
	cl, err := w.opt.Endpoint.producer(w.limit, timeout, w.opt.MaxHeld)
	if err != nil {
		return err
	}
	state, err := fence(ctx, w.opt.Endpoint, cl)
	if err == nil && (state.Checkpoint.Epoch != w.cp.Epoch || state.Checkpoint.Seq != w.cp.Seq) {
		err = errors.New("another instance has taken over")
	}
	if err != nil {
		cl.Close()
		return err
	}
	w.cl.Close()
	w.cl, w.timeout = cl, timeout
	return nil
}
