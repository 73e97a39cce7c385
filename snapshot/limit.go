package snapshot

import (
	"context"
	"sync"
	"time"
)

// Limiter holds all streams of a load together to a rate.
type Limiter struct {
	rate int64 // bytes a second; 0: no limit

	mu   sync.Mutex
	free time.Time // when all that was let through has been paid for
}

// burst is how much unused time may be made up for.
const burst = 100 * time.Millisecond

// wait blocks until n bytes more may go.
func (l *Limiter) wait(ctx context.Context, n int) error {
	if l.rate <= 0 {
		return nil
	}
	l.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-burst); l.free.Before(earliest) {
		l.free = earliest
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
	pause := l.free.Sub(now)
	l.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// NewLimiter makes a Limiter of so many bytes a second; 0: no limit.
func NewLimiter(rate int64) *Limiter { return &Limiter{rate: rate} }
