package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// tickSQL is the table of the latency set: the source stamps each row.
const tickSQL = `CREATE TABLE tick (id bigint PRIMARY KEY, sent timestamptz NOT NULL DEFAULT clock_timestamp());`

// latencyRates are transactions per second.
var latencyRates = []int{200, 2000}

// latency measures how long after an insert the row is visible on the target,
// at a steady rate of one-row transactions.
func (b *bench) latency(ctx context.Context) ([]set, error) {
	var out []set
	for _, rate := range latencyRates {
		s := set{Name: fmt.Sprintf("latency-%d", rate), Kind: kindLatency, Title: thousands(rate) + " transactions/s"}
		if err := b.latencyAt(ctx, &s, rate); err != nil {
			return out, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (b *bench) latencyAt(ctx context.Context, out *set, rate int) error {
	span, skip := 3*time.Second, time.Second
	if b.full {
		span, skip = 8*time.Second, 2*time.Second
	}
	var appliers []applier
	if b.has("native") {
		appliers = append(appliers, &nativeApplier{})
	}
	if b.has("millrace") {
		appliers = append(appliers, &millraceApplier{})
	}
	for range b.rounds {
		for _, a := range appliers {
			s := b.newStage(0)
			m, err := measureLatency(ctx, s, a, rate, span, skip)
			if err := errors.Join(err, s.close(ctx)); err != nil {
				return fmt.Errorf("%s: %w", a.name(), err)
			}
			out.add(a.name(), m)
		}
	}
	return nil
}

// measureLatency sets everything up anew, so that no backlog of an earlier run
// is in the way.
func measureLatency(ctx context.Context, s *stage, a applier, rate int, span, skip time.Duration) (m sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.open(ctx, tickSQL); err != nil {
		return m, err
	}
	if err := a.prepare(ctx, s); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, a.disarm(context.WithoutCancel(ctx), s)) }()
	if err := a.arm(ctx, s); err != nil {
		return m, err
	}
	writer, err := s.source.connect(ctx, sourceDB)
	if err != nil {
		return m, err
	}
	defer writer.Close(context.WithoutCancel(ctx))
	poll, err := s.target.connect(ctx, runDB)
	if err != nil {
		return m, err
	}
	defer poll.Close(context.WithoutCancel(ctx))
	if err := s.quiet(ctx); err != nil {
		return m, err
	}
	if err := a.start(ctx, s); err != nil {
		return m, err
	}
	if err := s.mark(ctx, 1); err != nil {
		return m, err
	}
	if err := s.awaitMarker(ctx, poll, a.broken); err != nil {
		return m, err
	}
	// Not counted: the backends of the writer and the poller.
	meter := startMeter(s, int(poll.PgConn().PID()))
	wrote := cpuOf(int(writer.PgConn().PID()))
	l, err := steady(ctx, writer, poll, int(span.Seconds()*float64(rate)), int(skip.Seconds()*float64(rate)), rate)
	if err != nil {
		return m, err
	}
	m = meter.stop()
	m.SourceCPU -= seconds(cpuOf(int(writer.PgConn().PID())) - wrote)
	a.observe(ctx, s, &m)
	meter.foreign(&m)
	m.Latency = l
	return m, nil
}

// steady writes count rows at the rate and polls for them; the first skip are
// not counted.
func steady(ctx context.Context, writer, poll *pgx.Conn, count, skip, rate int) (*latency, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return writeTicks(ctx, writer, count, rate) })
	var delays []time.Duration
	g.Go(func() error {
		var err error
		delays, err = pollTicks(ctx, poll, count)
		return err
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return distribution(delays[skip:]), nil
}

func writeTicks(ctx context.Context, conn *pgx.Conn, count, rate int) error {
	began := time.Now()
	for i := 1; i <= count; i++ {
		nap(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		if _, err := conn.Exec(ctx, "INSERT INTO tick (id) VALUES ($1)", i); err != nil {
			return err
		}
	}
	return nil
}

// pollPause between two looks at the target. It is part of the latency, the
// same for all.
const pollPause = 500 * time.Microsecond

func pollTicks(ctx context.Context, conn *pgx.Conn, count int) ([]time.Duration, error) {
	delays := make([]time.Duration, 0, count)
	for last := 0; last < count; {
		rows, err := conn.Query(ctx, "SELECT id, sent FROM tick WHERE id > $1 ORDER BY id", last)
		if err != nil {
			return nil, err
		}
		var sent []time.Time
		var id int
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
			last = id
			sent = append(sent, at)
			return nil
		})
		if err != nil {
			return nil, err
		}
		now := time.Now()
		for _, at := range sent {
			delays = append(delays, now.Sub(at))
		}
		nap(pollPause)
	}
	return delays, nil
}

func distribution(d []time.Duration) *latency {
	slices.Sort(d)
	at := func(q float64) float64 {
		i := int(math.Ceil(q*float64(len(d)))) - 1
		return math.Round(float64(d[max(0, i)].Microseconds())) / 1000
	}
	return &latency{Count: len(d), P50: at(.50), P95: at(.95), P99: at(.99), Max: at(1)}
}
