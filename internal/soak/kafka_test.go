package soak

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/kcheck"
	"github.com/millrace/millrace/internal/rig"
)

// kafkaPlan is how much of what happens on the way into Kafka.
type kafkaPlan struct {
	nodes    int
	length   time.Duration
	rate     int // transactions per second
	rows     int // of customer at the start
	restarts int // kills during the first load
	faults   map[fault]int
	prefix   string
}

// TestKafkaKills: brokers and the program are killed under load, and leaders
// move. A consumer that follows all the while with read_committed, and one that
// reads everything afterwards, must both have seen what the source's own ledger
// says: each transaction whole, once, in the order of each key. At last a Kafka
// transaction is cut off half-way, so that there is something which was never
// committed: a consumer with read_uncommitted must find fault with it.
func TestKafkaKills(t *testing.T) {
	p := kafkaPlan{nodes: 1, length: 6 * time.Second, rate: 100, rows: 2000, prefix: "soak",
		faults: map[fault]int{killJob: 1, killBroker: 1}}
	if full() {
		p = kafkaPlan{nodes: 3, length: minutes(4), rate: 200, rows: 10_000, restarts: 2, prefix: "soak",
			faults: map[fault]int{killJob: 16, killBroker: 8, stopBroker: 3, pauseBroker: 3, moveLeaders: 8}}
	}
	p.run(t)
}

// minutes is the length of a long run: MILLRACE_SOAK_MINUTES, if that is set.
func minutes(byDefault int) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("MILLRACE_SOAK_MINUTES")); err == nil && n > 0 {
		byDefault = n
	}
	return time.Duration(byDefault) * time.Minute
}

type kafkaSoak struct {
	kafkaPlan
	*cluster
	source *rig.DB
	job    *blackbox.Job
}

func (p kafkaPlan) run(t *testing.T) {
	s := p.prepare(t)
	ctx, cancel := context.WithTimeout(t.Context(), 6*p.length+5*time.Minute)
	defer cancel()
	loading, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	load := make(chan error, 1)
	scripts := s.scripts(t)
	go func() { load <- pgbench(loading, s.source, scripts...) }()
	s.job.Start(t, "--bootstrap")
	for range p.restarts {
		pause(ctx, time.Duration(s.rng.Int64N(int64(1500*time.Millisecond))))
		s.job.Kill(t)
		s.job.Start(t, "--bootstrap")
	}
	over := make(chan struct{})
	live := s.follow(ctx, over)
	s.awaitStreaming(t)
	done := s.inject(ctx, t)
	stopLoad()
	if err := <-load; err != nil {
		t.Fatal(err)
	}
	s.inSync(t)
	s.cutOff(ctx, t)
	s.awaitStreaming(t)
	if code := s.job.Stop(t); code != 0 {
		t.Errorf("the program ended with code %d on SIGTERM", code)
	}
	close(over)
	if !maps.Equal(done, p.faults) {
		t.Errorf("the time was too short for all faults: %v of %v", done, p.faults)
	}
	s.verify(ctx, t, live)
}

func (p kafkaPlan) prepare(t *testing.T) *kafkaSoak {
	t.Helper()
	s := &kafkaSoak{kafkaPlan: p, cluster: startCluster(t, p.nodes)}
	s.source = rig.Start(t, rig.Newest).NewDB(t)
	s.source.Script(t, kcheck.Install+shop+kcheck.Watch("customer", "id")+kcheck.Watch("orders", "id")+kcheck.Watch("line", "order_id", "n")+
		fmt.Sprintf("INSERT INTO customer SELECT g, 'customer ' || g FROM generate_series(1, %d) g;", p.rows)+
		fmt.Sprintf("INSERT INTO orders (customer, total, note) SELECT g, g, 'é' || g FROM generate_series(1, %d) g;", p.rows)+
		"INSERT INTO line SELECT id, n, id FROM orders, generate_series(1, 2) n;")
	s.source.SQL(t, "CREATE PUBLICATION millrace_"+s.source.Name+" FOR TABLES IN SCHEMA public")
	brokers := strings.Join(s.k.Brokers(), `", "`)
	s.job = blackbox.NewJob(t, blackbox.Options{Name: s.source.Name, Source: s.source, Tables: []string{"public.*"},
		Kafka: fmt.Sprintf(`{brokers: ["%s"], prefix: %s, partitions: 3, replication: %d}`, brokers, p.prefix, p.nodes),
		Extra: "resources: {retry_backoff: {min: 100ms, max: 1s}}\n"})
	return s
}

const shop = `
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, turnover bigint NOT NULL DEFAULT 0);
CREATE TABLE orders (id bigserial PRIMARY KEY, customer int NOT NULL REFERENCES customer, total bigint NOT NULL, note text);
CREATE TABLE line (order_id bigint REFERENCES orders ON DELETE CASCADE, n int, quantity bigint NOT NULL, PRIMARY KEY (order_id, n));
`

// scripts gives the arguments of pgbench. Its transactions touch several tables
// with foreign keys, delete with what depends on it, change keys, roll back to a
// savepoint, and now and then update so many rows that they are carried in parts.
func (s *kafkaSoak) scripts(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-n", "-c", "4", "-j", "1", "-R", strconv.Itoa(s.rate), "-T", fmt.Sprintf("%.0f", 20*s.length.Seconds()+600), "--max-tries=100"}
	vars := fmt.Sprintf("\\set c random(1, %d)\n\\set o random(1, %d)\n", s.rows, s.rows)
	for _, x := range []struct {
		weight    int
		name, sql string
	}{
		{1000, "order", `BEGIN; UPDATE customer SET turnover = turnover + :o WHERE id = :c;
			WITH o AS (INSERT INTO orders (customer, total, note) VALUES (:c, :o, md5(:o::text)) RETURNING id)
				INSERT INTO line SELECT o.id, n, :o FROM o, generate_series(1, 3) n;
			UPDATE orders SET total = total + 1 WHERE id = :o; END;`},
		{200, "cancel", `DELETE FROM orders WHERE id = :o;`},
		{100, "renumber", `UPDATE line SET n = n + 10 WHERE order_id = :o AND n < 10;`},
		{100, "undo", `BEGIN; UPDATE customer SET turnover = turnover - 1 WHERE id = :c; SAVEPOINT s;
			UPDATE orders SET total = 0 WHERE id = :o; ROLLBACK TO s; UPDATE orders SET note = 'é' || note WHERE id = :o; END;`},
		{1, "bulk", bulkUpdate},
	} {
		file := filepath.Join(dir, x.name+".sql")
		if err := os.WriteFile(file, []byte(vars+x.sql+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-f", fmt.Sprintf("%s@%d", file, x.weight))
	}
	return args
}

const bulkUpdate = `UPDATE customer SET turnover = turnover + 1;`

// sight is what a consumer has seen.
type sight struct {
	history *kcheck.History
	err     error
}

func (s *kafkaSoak) follow(ctx context.Context, over <-chan struct{}) <-chan sight {
	c := make(chan sight, 1)
	go func() {
		h, err := kcheck.Follow(ctx, s.k.Brokers(), s.prefix, kgo.ReadCommitted(), over)
		c <- sight{h, err}
	}()
	return c
}

func (s *kafkaSoak) inject(ctx context.Context, t *testing.T) map[fault]int {
	t.Helper()
	return s.spread(ctx, t, s.faults, s.length, []*blackbox.Job{s.job}, func(f fault) {
		if f == killJob {
			s.job.Kill(t)
			s.job.Start(t)
			return
		}
		s.fail(ctx, t, f)
	})
}

// cutOff kills the program in the middle of a Kafka transaction: records are in
// a topic, and neither a commit nor an abort follows. Whoever starts next has to
// abort it and write all of it again.
func (s *kafkaSoak) cutOff(ctx context.Context, t *testing.T) {
	t.Helper()
	for range 20 {
		s.awaitStreaming(t)
		s.source.SQL(t, bulkUpdate)
		for end := time.Now().Add(time.Minute); !s.pending(ctx) && time.Now().Before(end); {
		}
		s.job.Kill(t)
		rig.Linger(t, time.Second, "a commit that is under way ends")
		cut := s.pending(ctx)
		s.job.Start(t)
		if cut {
			return
		}
	}
	t.Error("no Kafka transaction could be cut off")
}

func (s *kafkaSoak) awaitStreaming(t *testing.T) {
	t.Helper()
	if r := s.job.Run(t, "wait", "--now", "--timeout", "170s"); r.Code != blackbox.Done {
		t.Fatalf("wait: %s%s", r.Stdout, r.Stderr)
	}
}

// pending tells whether the topic of the large update holds records of a
// transaction that is neither committed nor aborted.
func (s *kafkaSoak) pending(ctx context.Context) bool {
	topic := s.prefix + ".public.customer"
	stable, err := s.adm.ListCommittedOffsets(ctx, topic)
	if err != nil {
		return false
	}
	high, err := s.adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return false
	}
	found := false
	high.Each(func(o kadm.ListedOffset) {
		at, ok := stable.Lookup(o.Topic, o.Partition)
		found = found || ok && at.Err == nil && o.Err == nil && o.Offset > at.Offset
	})
	return found
}

func (s *kafkaSoak) verify(ctx context.Context, t *testing.T, live <-chan sight) {
	t.Helper()
	ledger, err := kcheck.ReadLedger(ctx, s.source.URL())
	if err != nil {
		t.Fatal(err)
	}
	followed := <-live
	if followed.err != nil {
		t.Fatal(followed.err)
	}
	v := followed.history.Verify(ledger)
	t.Logf("the consumer that followed: %s", v)
	if err := v.Err(); err != nil {
		t.Errorf("the consumer that followed saw %v", err)
	}
	after, err := kcheck.Read(ctx, s.k.Brokers(), s.prefix, kgo.ReadCommitted())
	if err != nil {
		t.Fatal(err)
	}
	v = after.Verify(ledger)
	t.Logf("everything, read_committed: %s", v)
	t.Attr("soak", fmt.Sprintf("%v; %s", s.faults, v))
	if err := v.Err(); err != nil {
		t.Errorf("read_committed: %v", err)
	}
	if v.Transactions == 0 || v.Snapshot < s.rows {
		t.Errorf("too little was seen: %s", v)
	}
	raw, err := kcheck.Read(ctx, s.k.Brokers(), s.prefix, kgo.ReadUncommitted())
	if err != nil {
		t.Fatal(err)
	}
	v = raw.Verify(ledger)
	t.Logf("everything, read_uncommitted: %s, %d marks of aborts", v, raw.Aborts)
	if raw.Aborts == 0 || v.Err() == nil {
		t.Errorf("read_uncommitted: the checker finds nothing wrong with what was aborted (%d marks of aborts)", raw.Aborts)
	}
}
