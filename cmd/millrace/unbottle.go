package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/apply"
	"github.com/millrace/millrace/bootstrap"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/check"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/relay"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/web"
)

// unbottled is what an engine has whose source is a prefix of topics.
type unbottled struct {
	*kafka.Source
	tables *bootstrap.Unbottled

	mu       sync.Mutex
	versions []*krecord.TableVersion // when all rows of the first load had come
	all      bool                    // they have: what is new from here on belongs to no load
}

// whole takes note of the tables' descriptions, which their foreign keys are made of.
func (u *unbottled) whole(versions []*krecord.TableVersion) {
	u.mu.Lock()
	u.versions, u.all = versions, true
	u.mu.Unlock()
}

func (u *unbottled) hasAll() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.all
}

func (u *unbottled) described() []*krecord.TableVersion {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.versions
}

// unbottle makes the engine of a job whose source is a prefix of topics.
func (r *runner) unbottle() *engine {
	e := &engine{loaded: make(chan struct{}, 1)}
	r.keeper.setCalm(r.calm(false))
	loads := func() bool { return !r.loaded() }
	o := r.loadOptions(&r.flags.bootstrapFlags, r.keeper.instance())
	u := &unbottled{}
	u.tables = bootstrap.NewUnbottled(o, func() bool { return loads() && !u.hasAll() })
	u.Source = kafka.NewSource(kafka.SourceOptions{
		Endpoint: r.prefix, Match: r.patterns.Match, Share: r.share(), Lock: r.lockSource, Loads: loads, Log: r.log,
		MaxHeld: int64(r.Resources.MaxInflight) / 2,
		Described: func(ctx context.Context, v *krecord.TableVersion) error {
			if err := u.tables.Described(ctx, v); err != nil {
				return err
			}
			r.joined(ctx, v.OID)
			return nil
		},
		OnWhole: func(versions []*krecord.TableVersion) {
			u.whole(versions)
			e.tellLoaded()
		},
		OnTorn: func(torn bool) { r.keeper.setCalm(r.calm(torn)) },
	})
	e.from = u
	e.sink = apply.New(r.applyOptions())
	ro := r.relayOptions()
	ro.Source, ro.Sink = u, e.sink
	e.relay = relay.New(ro)
	return e
}

// share is the part of the prefix that the job reads by the key of rows; nil: it reads all
// of it, as whole transactions.
func (s *settings) share() *kafka.Share {
	if k := &s.Source.Kafka; s.prefix != nil && k.Consistency == config.ConsistencyKey {
		n, of, _ := k.Shares() // checked before
		return &kafka.Share{N: n, Of: of}
	}
	return nil
}

// calm is the condition while nothing is wrong.
func (s *settings) calm(torn bool) (condition, why string) {
	switch {
	case torn:
		return relay.Converging, "compaction has removed changes that later ones have made void, or the job that writes loads tables beside the stream: rows are right together once the rest has come"
	case s.share() != nil:
		return relay.Converging, "rows are right one by one, and not together (source.kafka.consistency: key)"
	}
	return "", ""
}

// joined takes over what the record says of a table that is new to the job.
func (r *runner) joined(ctx context.Context, oid uint32) {
	r.mu.Lock()
	j := r.record
	r.mu.Unlock()
	for i := range j.Tables {
		if j.Tables[i].OID == oid {
			return
		}
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	j, _, err := r.readLedger(ctx)
	if err != nil || j == nil {
		return // it is shown a little later
	}
	r.mu.Lock()
	r.record = j
	r.mu.Unlock()
}

// lockSource keeps other instances of the job from reading: topics know no owner, so
// a lock at the destination stands for it. What is written is fenced there as well.
func (r *runner) lockSource(ctx context.Context) (func(), error) {
	conn, err := r.target.Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	var locked bool
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended($1, 0))`, "millrace:"+r.Job+":source").Scan(&locked)
	release := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	}
	if err == nil && !locked {
		err = &millrace.Error{Kind: millrace.KindRetry, Op: "read Kafka", Peer: millrace.PeerSource, Condition: relay.WaitingForSlot,
			Err: errors.New("another instance reads for the job"), Hint: "stop it, or wait behind it with run --standby"}
	}
	if err == nil && r.share() != nil {
		err = lockShare(ctx, conn, r.prefix.Prefix, *r.share())
	}
	if err != nil {
		release()
		return nil, session.Wrap("lock the source", millrace.PeerDestination, err)
	}
	return release, nil
}

// lockShare keeps two jobs from reading the same share, or shares of different numbers, at
// the same time: what one has written could become older by the other's hand.
func lockShare(ctx context.Context, conn *pgx.Conn, prefix string, s kafka.Share) error {
	const most = 1 << 12 // more than there are shares
	wait := func(what string) error {
		return &millrace.Error{Kind: millrace.KindRetry, Op: "read Kafka", Peer: millrace.PeerSource, Condition: relay.WaitingForSlot,
			Err: errors.New(what), Hint: "give each job a share of its own, all of the same number: 1/2 and 2/2"}
	}
	name := "millrace:" + prefix + ":shares"
	var locked bool
	err := conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtext($1), $2)`, name, s.Of*most+s.N).Scan(&locked)
	if err == nil && !locked {
		err = wait("another job reads share " + s.String())
	}
	if err != nil {
		return err
	}
	var others int
	err = conn.QueryRow(ctx, `SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks
		WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid::bigint = pg_catalog.hashtext($1)::bigint & 4294967295
		  AND objid::bigint / $2 <> $3 AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`,
		name, most, s.Of).Scan(&others)
	if err == nil && others > 0 {
		err = wait("other jobs read shares of another number than " + s.String())
	}
	return err
}

// watchPrefix keeps the status up to date with what the writing job says, and has the
// lag judged: there is no slot to watch. While Kafka can't be asked, alarms stay.
func (r *runner) watchPrefix(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		r.mu.Lock()
		e := r.engine
		r.mu.Unlock()
		if e != nil {
			at, now := e.from.Position(), time.Now()
			r.progress.Observe(at, now)
			if at != 0 {
				r.governor.observe(observation{at: now, lag: r.progress.Lag(now)})
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// written reads what the job says that writes to the source's prefix.
func (s *settings) written(ctx context.Context) (*kafka.Written, error) {
	w, err := s.prefix.ReadWritten(ctx)
	if err == nil && (w == nil || w.Gone) {
		err = &millrace.Error{Kind: millrace.KindRetry, Op: "read Kafka", Peer: millrace.PeerSource, Condition: relay.SourceUnreachable,
			Err: errors.New("no job writes to prefix " + s.prefix.Prefix), Hint: "start the job that writes to the prefix"}
	}
	return w, err
}

// prefixPosition is the position that the prefix has now.
func (s *settings) prefixPosition(ctx context.Context) (millrace.LSN, error) {
	w, err := s.written(ctx)
	if err != nil {
		return 0, err
	}
	return w.Acked, nil
}

// sourceServer names the source without secrets.
func (s *settings) sourceServer() string {
	if s.prefix != nil {
		return s.prefix.String()
	}
	return s.source.Redacted()
}

// prefixStatus is what the topics tell of the source.
func prefixStatus(server string, w *kafka.Written) web.Source {
	src := web.Source{Server: &server}
	if w != nil && w.History.System != "" {
		src.SystemID, src.Timeline, src.CurrentLSN = &w.History.System, &w.History.Timeline, web.KnownLSN(w.Acked)
	}
	return src
}

// addPrefix is addSource for a prefix.
func addPrefix(ctx context.Context, s *settings, st *web.Status, j *record.Job, cp millrace.Checkpoint) {
	w, err := s.prefix.ReadWritten(ctx)
	if err != nil {
		s.log.Warn("the source can't be asked", "cause", err)
		return
	}
	st.Source = prefixStatus(s.prefix.String(), w)
	if w == nil || j.ConsistentFrom == 0 || cp.Acked == 0 || w.History.System != j.SystemID || w.History.Generation != j.Generation {
		return
	}
	behind := max(int64(w.Acked)-int64(cp.Acked), 0)
	st.Lag.Bytes = &behind
	if behind == 0 {
		st.Lag.Seconds, st.Lag.Transactions = web.Known(0.0), web.Known(int64(0))
	}
}

// kafkaOrigin is what check looks at.
type kafkaOrigin struct{ s *settings }

func (o kafkaOrigin) Check(ctx context.Context, job *record.Job) (problems, warnings []check.Finding, err error) {
	w, err := o.s.prefix.ReadWritten(ctx)
	if err != nil {
		return nil, nil, err
	}
	finding := func(text, cure string) []check.Finding {
		return []check.Finding{{Subject: "source", Text: text, Cure: cure}}
	}
	switch {
	case w == nil || w.Gone:
		return nil, finding("no job writes to prefix "+o.s.prefix.Prefix+" yet", "start it: its topics are waited for"), nil
	case job != nil && w.History.System != job.SystemID:
		return finding("the prefix holds changes of system "+w.History.System+", and the job follows "+job.SystemID,
			"point the source at the prefix that the job was loaded from; or start over: "+restartHint), nil, nil
	case job != nil && w.History.Generation != job.Generation:
		return finding("the job that writes to the prefix was started over", restartHint), nil, nil
	}
	found, err := o.s.prefix.Unreadable(ctx)
	if job == nil || job.ConsistentFrom == 0 {
		if e := o.s.prefix.Unfit(w); e != nil {
			found = append(found, e)
		}
	}
	for _, e := range found {
		problems = append(problems, check.Finding{Subject: "source", Text: e.Error(), Cure: millrace.HintOf(e)})
	}
	return problems, nil, err
}

// parsePatterns gives the configured patterns.
func parsePatterns(c *config.Config) catalog.Patterns {
	_, texts := c.Tables()
	patterns, _ := catalog.ParsePatterns(texts) // checked before
	return patterns
}
