package apply

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// maker makes transactions in memory, with values in binary.
type maker struct {
	lsn  millrace.LSN
	seed uint64
	slab []byte
	vals []millrace.Value
}

func (m *maker) rand(n int) int {
	m.seed = m.seed*6364136223846793005 + 1442695040888963407
	return int(m.seed>>33) % n
}

func (m *maker) bytes(n int) []byte {
	if len(m.slab) < n {
		m.slab = make([]byte, 1<<20)
	}
	b := m.slab[:n:n]
	m.slab = m.slab[n:]
	return b
}

func (m *maker) row(n int) millrace.Row {
	if len(m.vals) < n {
		m.vals = make([]millrace.Value, 1<<14)
	}
	r := m.vals[:n:n]
	m.vals = m.vals[n:]
	return r
}

func (m *maker) int4(v int) millrace.Value {
	b := m.bytes(4)
	binary.BigEndian.PutUint32(b, uint32(v))
	return millrace.Value{Kind: millrace.Binary, Raw: b}
}

func (m *maker) text(s string) millrace.Value {
	b := m.bytes(len(s))
	copy(b, s)
	return millrace.Value{Kind: millrace.Binary, Raw: b}
}

func (m *maker) txn(changes ...millrace.Change) *millrace.Txn {
	m.lsn += 100
	t := &millrace.Txn{XID: uint32(m.lsn), Commit: m.lsn, End: m.lsn + 50, Time: time.Now(), Last: true, Changes: changes}
	for i := range changes {
		changes[i].Seq = uint64(i + 1)
		t.Size += 200
		for _, row := range []millrace.Row{changes[i].Old, changes[i].New} {
			for j := range row {
				t.Size += 32 + int64(len(row[j].Raw))
			}
		}
	}
	return t
}

const benchDDL = `
	CREATE TABLE acc (aid int PRIMARY KEY, bid int, bal int, filler text);
	CREATE TABLE tel (tid int PRIMARY KEY, bid int, bal int, filler text);
	CREATE TABLE his (hid int PRIMARY KEY, tid int, aid int, delta int, note text);
	INSERT INTO acc SELECT g, 1, 0, repeat('f', 80) FROM generate_series(0, 199999) g;
	INSERT INTO tel SELECT g, 1, 0, repeat('f', 80) FROM generate_series(0, 999) g;
	ANALYZE`

func int4Column(name string) millrace.Column { return millrace.Column{Name: name, Type: 23, Mod: -1} }
func textColumn(name string) millrace.Column { return millrace.Column{Name: name, Type: 25, Mod: -1} }

func table(name string, columns ...millrace.Column) *millrace.Relation {
	return &millrace.Relation{OID: 99, Name: millrace.TableName{Schema: "public", Name: name},
		Identity: millrace.IdentityDefault, Columns: columns, Key: []int{0}}
}

var (
	accRel = table("acc", int4Column("aid"), int4Column("bid"), int4Column("bal"), textColumn("filler"))
	telRel = table("tel", int4Column("tid"), int4Column("bid"), int4Column("bal"), textColumn("filler"))
	hisRel = table("his", int4Column("hid"), int4Column("tid"), int4Column("aid"), int4Column("delta"), textColumn("note"))
)

// small makes a transaction like those of pgbench.
func (m *maker) small(i int) *millrace.Txn {
	filler := "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
	a, tl, h := m.row(4), m.row(4), m.row(5)
	a[0], a[1], a[2], a[3] = m.int4(m.rand(200000)), m.int4(1), m.int4(i), m.text(filler)
	tl[0], tl[1], tl[2], tl[3] = m.int4(m.rand(1000)), m.int4(1), m.int4(i), m.text(filler)
	h[0], h[1], h[2], h[3], h[4] = m.int4(i), m.int4(1), m.int4(1), m.int4(i), m.text("note")
	return m.txn(millrace.Change{Op: millrace.Update, Rel: accRel, New: a},
		millrace.Change{Op: millrace.Update, Rel: telRel, New: tl},
		millrace.Change{Op: millrace.Insert, Rel: hisRel, New: h})
}

// cpu gives the processor time of this process and of the target's backend, which
// mean more than the clock on a busy machine.
func cpu(b *testing.B, pid string) (client, target float64) {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	client = float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return client, 0 // not Linux
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return client, (user + system) / 100
}

// feed writes transactions, waits until they are durable and reports.
func feed(b *testing.B, p *pair, s *Sink, txns []*millrace.Txn) time.Duration {
	b.Helper()
	pid := p.dst.Query(b, "SELECT pid FROM pg_stat_activity WHERE application_name = 'millrace:shop:apply' AND datname = current_database()")
	client, target := cpu(b, pid)
	defer func() {
		c, t := cpu(b, pid)
		b.ReportMetric(c-client, "client-cpu-s")
		b.ReportMetric(t-target, "target-cpu-s")
	}()
	start := time.Now()
	for _, t := range txns {
		if err := s.Write(context.Background(), t); err != nil {
			b.Fatal(err)
		}
	}
	s.Flush()
	if _, err := s.Durable(context.Background(), txns[len(txns)-1].End-1); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}

// BenchmarkSmallTransactions measures 100,000 transactions of three changes.
func BenchmarkSmallTransactions(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		p := newBenchPair(b, benchDDL)
		s := p.open(b)
		m := &maker{lsn: p.point + 1000}
		txns := make([]*millrace.Txn, 100000)
		for i := range txns {
			txns[i] = m.small(i)
		}
		b.StartTimer()
		d := feed(b, p, s, txns)
		b.StopTimer()
		st := s.Stats()
		b.ReportMetric(float64(len(txns))/d.Seconds(), "tx/s")
		b.ReportMetric(float64(st.Groups), "groups")
		b.ReportMetric(float64(st.SetRows), "rows")
		b.ReportMetric(st.Busy.Seconds(), "busy-s")
		if st.FallbackTransactions > 0 {
			b.Errorf("%+v", st)
		}
		if err := s.Close(); err != nil {
			b.Error(err)
		}
		b.StartTimer()
	}
}

// large makes one transaction in parts of 4096 changes.
func (m *maker) large(n int, change func(i int) millrace.Change) []*millrace.Txn {
	var parts []*millrace.Txn
	commit := m.lsn + 100
	for from := 0; from < n; from += 4096 {
		var changes []millrace.Change
		for i := from; i < min(from+4096, n); i++ {
			changes = append(changes, change(i))
		}
		t := m.txn(changes...)
		t.Commit, t.End, t.Part, t.Last = commit, commit+50, len(parts), from+4096 >= n
		m.lsn = commit
		parts = append(parts, t)
	}
	return parts
}

// BenchmarkLargeInsert measures a transaction that inserts a million rows.
func BenchmarkLargeInsert(b *testing.B) {
	benchLarge(b, benchDDL, 1000000, func(m *maker, i int) millrace.Change {
		h := m.row(5)
		h[0], h[1], h[2], h[3], h[4] = m.int4(i), m.int4(1), m.int4(1), m.int4(i), m.text("note")
		return millrace.Change{Op: millrace.Insert, Rel: hisRel, New: h}
	})
}

// BenchmarkLargeUpdate measures a transaction that updates 500,000 rows.
func BenchmarkLargeUpdate(b *testing.B) {
	ddl := benchDDL + `; INSERT INTO acc SELECT g, 1, 0, repeat('f', 80) FROM generate_series(200000, 499999) g; VACUUM ANALYZE acc`
	benchLarge(b, ddl, 500000, func(m *maker, i int) millrace.Change {
		a := m.row(4)
		a[0], a[1], a[2], a[3] = m.int4(i), m.int4(1), m.int4(i), m.text("ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff")
		return millrace.Change{Op: millrace.Update, Rel: accRel, New: a}
	})
}

func benchLarge(b *testing.B, ddl string, n int, change func(m *maker, i int) millrace.Change) {
	for b.Loop() {
		b.StopTimer()
		p := newBenchPair(b, ddl)
		s := p.open(b)
		m := &maker{lsn: p.point + 1000}
		txns := m.large(n, func(i int) millrace.Change { return change(m, i) })
		b.StartTimer()
		d := feed(b, p, s, txns)
		b.StopTimer()
		b.ReportMetric(float64(n)/d.Seconds(), "rows/s")
		b.ReportMetric(s.Stats().Busy.Seconds(), "busy-s")
		if err := s.Close(); err != nil {
			b.Error(err)
		}
		b.StartTimer()
	}
}

// BenchmarkFold measures folding and encoding without a server.
func BenchmarkFold(b *testing.B) {
	m := &maker{lsn: 1000}
	txns := make([]*millrace.Txn, 2000)
	for i := range txns {
		txns[i] = m.small(i)
	}
	known := map[*millrace.Relation]*route{}
	for _, rel := range []*millrace.Relation{accRel, telRel, hisRel} {
		known[rel] = fakeRoute(b, rel)
	}
	s := &sender{wire: &wire{conn: nowhere{}, generation: 1}, maxRows: 4000, maxBytes: 4 << 20, copyRows: 1 << 30, copyBytes: 1 << 30,
		await: func(context.Context) error { return nil }}
	batch := &batch{}
	b.ReportAllocs()
	changes := 0
	for b.Loop() {
		now := time.Now()
		for _, t := range txns {
			batch.add(t, known, now)
		}
		s.batch = batch
		for i := range batch.stages {
			if err := s.stage(context.Background(), &batch.stages[i]); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		s.asked = s.asked[:0]
		batch.release()
		changes += 3 * len(txns)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(changes), "ns/change")
}

func newBenchPair(b *testing.B, ddl string) *pair {
	b.Helper()
	p := newPair(b, true, ddl)
	p.conn.Close(context.Background())
	return p
}

func fakeRoute(b *testing.B, rel *millrace.Relation) *route {
	b.Helper()
	tab := &catalog.Table{OID: 1, Name: rel.Name, Kind: 'r', ArrayType: 2,
		Indexes: []catalog.Index{{Name: "pk", Columns: []int16{1}, Unique: true, Primary: true, Valid: true, Immediate: true,
			Method: "btree", Operators: []catalog.Operator{{Schema: "pg_catalog", Name: "="}}, Collations: []uint32{0}}}}
	for i, c := range rel.Columns {
		tab.Columns = append(tab.Columns, catalog.Column{AttNum: int16(i + 1), Name: c.Name, NotNull: i == 0,
			Type: catalog.Type{OID: c.Type, Kind: 'b', HasBinary: true}})
	}
	r, err := newRoute(rel, &target{Table: tab, sql: rel.Name.SQL(), only: rel.Name.SQL(), rowType: 3})
	if err != nil {
		b.Fatal(err)
	}
	if !r.sets || !r.binary {
		b.Fatalf("%+v", r)
	}
	return r
}

// nowhere is a connection that takes everything.
type nowhere struct{ net.Conn }

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkLatency measures one transaction at a time, until it is visible.
func BenchmarkLatency(b *testing.B) {
	p := newBenchPair(b, benchDDL)
	s := p.open(b)
	m := &maker{lsn: p.point + 1000}
	i := 0
	for b.Loop() {
		t := m.small(i)
		i++
		end := t.End
		if err := s.Write(context.Background(), t); err != nil {
			b.Fatal(err)
		}
		s.Flush()
		if _, err := s.Visible(context.Background(), end-1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkManyTables measures the first changes of a hundred tables.
func BenchmarkManyTables(b *testing.B) {
	var ddl strings.Builder
	for i := range 100 {
		ddl.WriteString("CREATE TABLE t" + strconv.Itoa(i) + " (id int PRIMARY KEY, v int, w text);")
	}
	for b.Loop() {
		b.StopTimer()
		p := newBenchPair(b, ddl.String())
		s := p.open(b)
		m := &maker{lsn: p.point + 1000}
		var txns []*millrace.Txn
		for i := range 100 {
			rel := table("t"+strconv.Itoa(i), int4Column("id"), int4Column("v"), textColumn("w"))
			for j := range 100 {
				row := m.row(3)
				row[0], row[1], row[2] = m.int4(j), m.int4(j), m.text("w")
				txns = append(txns, m.txn(millrace.Change{Op: millrace.Insert, Rel: rel, New: row}))
			}
		}
		b.StartTimer()
		feed(b, p, s, txns)
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Error(err)
		}
		b.StartTimer()
	}
}
