package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
)

// waiting measures how much later than the row itself the answer comes to
// somebody who waits for a commit, on an otherwise idle pair of servers: from
// the return of COMMIT, one write at a time, the ways in turn.
func (b *bench) waiting(ctx context.Context) ([]set, error) {
	if !b.has("millrace") {
		return nil, nil
	}
	rounds := 200
	if b.full {
		rounds = 1000
	}
	out := set{Name: "wait", Kind: kindWait, Title: "idle servers"}
	for range b.rounds {
		err := b.withJob(ctx, func(j *benchJob) error {
			delays, err := j.waits(ctx, rounds)
			for _, w := range waitWays {
				if d := delays[w.name]; len(d) > 0 {
					out.add(w.name, sample{Latency: distribution(d)})
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return []set{out}, nil
}

// watching measures what being watched costs the process: its CPU at a steady
// rate of transactions, and the latency of the rows.
func (b *bench) watching(ctx context.Context) ([]set, error) {
	if !b.has("millrace") {
		return nil, nil
	}
	const rate = 1000
	span := 5 * time.Second
	if b.full {
		span = 20 * time.Second
	}
	out := set{Name: "watch", Kind: kindWatch, Title: fmt.Sprintf("%s transactions/s, %v", thousands(rate), span)}
	for range b.rounds {
		for _, w := range watchWays {
			err := b.withJob(ctx, func(j *benchJob) error {
				watched, stop := context.WithCancel(ctx)
				ended := make(chan error, 1)
				go func() { ended <- w.watch(watched, j) }()
				before := cpuOf(j.client.PID())
				l, err := steady(ctx, j.writer, j.poll, int(span.Seconds())*rate, rate, rate)
				used := cpuOf(j.client.PID()) - before
				stop()
				if err = errors.Join(err, <-ended); err != nil {
					return err
				}
				out.add(w.name, sample{ClientCPU: seconds(used), Latency: l})
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
		}
	}
	return []set{out}, nil
}

var watchWays = []struct {
	name  string
	watch func(context.Context, *benchJob) error
}{
	{"not watched", func(ctx context.Context, _ *benchJob) error { <-ctx.Done(); return nil }},
	{"/metrics every second", func(ctx context.Context, j *benchJob) error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
			if err := j.get(ctx, "/metrics", nil); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}},
	{"dashboard open", func(ctx context.Context, j *benchJob) error {
		if err := j.get(ctx, "/events", nil); ctx.Err() == nil { // a stream: it ends with ctx
			return fmt.Errorf("the stream ended: %w", err)
		}
		return nil
	}},
}

// benchJob is a running job over the table tick.
type benchJob struct {
	*millraceApplier
	s            *stage
	writer, poll *pgx.Conn
	address      string
}

func (b *bench) withJob(ctx context.Context, do func(*benchJob) error) (err error) {
	s := b.newStage(0)
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.open(ctx, tickSQL); err != nil {
		return err
	}
	j := &benchJob{millraceApplier: &millraceApplier{}, s: s}
	if err := j.prepare(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.disarm(context.WithoutCancel(ctx), s)) }()
	if err := j.arm(ctx, s); err != nil {
		return err
	}
	if j.writer, err = s.source.connect(ctx, sourceDB); err != nil {
		return err
	}
	defer j.writer.Close(context.WithoutCancel(ctx))
	if j.poll, err = s.target.connect(ctx, runDB); err != nil {
		return err
	}
	defer j.poll.Close(context.WithoutCancel(ctx))
	if err := s.quiet(ctx); err != nil {
		return err
	}
	if err := j.start(ctx, s); err != nil {
		return err
	}
	if err := s.mark(ctx, 1); err != nil {
		return err
	}
	if err := s.awaitMarker(ctx, j.poll, j.broken); err != nil {
		return err
	}
	if err := j.find(ctx); err != nil {
		return err
	}
	return do(j)
}

// find waits for the process's address: its first sign of life may come later
// than its first row.
func (j *benchJob) find(ctx context.Context) error {
	for j.address == "" {
		err := j.poll.QueryRow(ctx, "SELECT coalesce(max(http), '') FROM millrace.runtime WHERE job = $1", millraceJob).Scan(&j.address)
		if err = errors.Join(err, j.broken(), ctx.Err()); err != nil {
			return err
		}
		nap(10 * time.Millisecond)
	}
	return nil
}

// get asks the process and reads the answer to its end.
func (j *benchJob) get(ctx context.Context, path string, query url.Values) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+j.address+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	_, err = io.Copy(io.Discard, bufio.NewReader(res.Body))
	return err
}

const waitTimeout = "20s"

// waitWays are the ways to wait. The first is the measure for the others: to
// look for the row itself, without a pause.
var waitWays = []struct {
	name string
	wait func(ctx context.Context, j *benchJob, id int, token, xid string) error
}{
	{"the row, polled", func(ctx context.Context, j *benchJob, id int, _, _ string) error {
		for there := false; !there; {
			if err := j.poll.QueryRow(ctx, "SELECT EXISTS (SELECT FROM tick WHERE id = $1)", id).Scan(&there); err != nil {
				return err
			}
		}
		return nil
	}},
	{"/wait?lsn= visible=1", func(ctx context.Context, j *benchJob, _ int, token, _ string) error {
		return j.get(ctx, "/wait", url.Values{"lsn": {token}, "visible": {"1"}, "timeout": {waitTimeout}})
	}},
	{"/wait?lsn=", func(ctx context.Context, j *benchJob, _ int, token, _ string) error {
		return j.get(ctx, "/wait", url.Values{"lsn": {token}, "timeout": {waitTimeout}})
	}},
	{"/wait?xid=", func(ctx context.Context, j *benchJob, _ int, _, xid string) error {
		return j.get(ctx, "/wait", url.Values{"xid": {xid}, "timeout": {waitTimeout}})
	}},
	{"millrace.wait_for", func(ctx context.Context, j *benchJob, _ int, token, _ string) error {
		var held bool
		err := j.poll.QueryRow(ctx, "SELECT millrace.wait_for($1, $2, $3::interval)", millraceJob, token, waitTimeout).Scan(&held)
		if err == nil && !held {
			err = errors.New("timed out")
		}
		return err
	}},
}

// waits writes a row, takes its tokens and waits for it, rounds times for each
// way. The clock runs from the return of COMMIT; the query for the token is in
// it, where one is needed. Whoever got an answer must find the row.
func (j *benchJob) waits(ctx context.Context, rounds int) (map[string][]time.Duration, error) {
	delays := make(map[string][]time.Duration)
	id := 0
	for range rounds {
		for _, w := range waitWays {
			id++
			xid, began, err := j.write(ctx, id)
			if err != nil {
				return nil, err
			}
			var token string
			if err := j.writer.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&token); err != nil {
				return nil, err
			}
			if err := w.wait(ctx, j, id, token, xid); err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			delays[w.name] = append(delays[w.name], time.Since(began))
			var there bool
			if err := j.poll.QueryRow(ctx, "SELECT EXISTS (SELECT FROM tick WHERE id = $1)", id).Scan(&there); err != nil || !there {
				return nil, fmt.Errorf("%s: answered, and the row is not there: %w", w.name, errors.Join(err, errMissing))
			}
		}
	}
	return delays, nil
}

var errMissing = errors.New("read your writes is broken")

func (j *benchJob) write(ctx context.Context, id int) (xid string, committed time.Time, err error) {
	tx, err := j.writer.Begin(ctx)
	if err != nil {
		return "", committed, err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "INSERT INTO tick (id) VALUES ($1)", id); err != nil {
		return "", committed, err
	}
	if err := tx.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&xid); err != nil {
		return "", committed, err
	}
	err = tx.Commit(ctx)
	return xid, time.Now(), err
}
