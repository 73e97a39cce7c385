package replication_test

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/pgoutput"
	"github.com/millrace/millrace/replication"
)

// workloads are backlogs to read; each iteration reads a copy of the same slot.
var workloads = []struct{ name, sql string }{
	{"100kTransactionsOf3Rows", `DO $$ BEGIN FOR i IN 1..100000 LOOP
		INSERT INTO item VALUES (i, i % 1000, 'item ' || i, i * 1.5, now());
		UPDATE stock SET n = n + 1, at = now() WHERE id = i % 1000;
		INSERT INTO log VALUES (i, 'something happened to ' || i);
		COMMIT; END LOOP; END $$`},
	{"OneTransactionOf1MRows", `INSERT INTO item SELECT i, i % 1000, 'item ' || i, i * 1.5, now() FROM generate_series(1, 1000000) i`},
	{"100kRowsOf2KB", `INSERT INTO log SELECT i, repeat(md5(i::text), 64) FROM generate_series(1, 100000) i`},
}

// BenchmarkDecode reads and decodes a backlog, and BenchmarkRecvlogical has
// pg_recvlogical write the same to /dev/null. Both report the time without
// starting up, which for pg_recvlogical includes the start of the process.
//
//	go test ./replication -run '^$' -bench 'Decode|Recvlogical' -benchtime 5x
func BenchmarkDecode(b *testing.B)      { benchmarkBacklogs(b, decode) }
func BenchmarkRecvlogical(b *testing.B) { benchmarkBacklogs(b, recvlogical) }

func benchmarkBacklogs(b *testing.B, read func(b *testing.B, db *rig.DB, slot string, end millrace.LSN)) {
	pg := rig.Start(b, 18, "shared_buffers=1GB", "max_wal_size=16GB", "autovacuum=off", "fsync=off", "wal_level=logical", "max_replication_slots=100")
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			db := pg.NewDB(b)
			db.SQL(b, `CREATE TABLE item (id int PRIMARY KEY, kind int, name text, price numeric, at timestamptz);
				CREATE TABLE stock (id int PRIMARY KEY, n int, at timestamptz);
				CREATE TABLE log (id int PRIMARY KEY, line text);
				ALTER TABLE log ALTER line SET STORAGE EXTERNAL;
				INSERT INTO stock SELECT i, 0, now() FROM generate_series(0, 999) i;
				CREATE PUBLICATION everything FOR ALL TABLES`)
			base := db.Name
			db.SQL(b, "SELECT pg_create_logical_replication_slot('"+base+"', 'pgoutput')")
			db.Script(b, w.sql)
			end, err := millrace.ParseLSN(db.Query(b, "SELECT pg_current_wal_flush_lsn()"))
			if err != nil {
				b.Fatal(err)
			}
			db.SQL(b, "SELECT pg_switch_wal(); CHECKPOINT")
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				slot := fmt.Sprintf("%s_%d", base, n)
				db.SQL(b, "SELECT pg_copy_logical_replication_slot('"+base+"', '"+slot+"')")
				read(b, db, slot, end)
				db.SQL(b, "SELECT pg_drop_replication_slot('"+slot+"')")
				b.StartTimer()
			}
		})
	}
}

// decode starts and stops the timer.
func decode(b *testing.B, db *rig.DB, slot string, end millrace.LSN) {
	s := startStream(b, db, replication.Options{Slot: slot, Publications: []string{"everything"}, Binary: true, MaxMessage: 16 << 20, BufferSize: 256 << 10})
	memory := make([]millrace.Value, 4096)
	slab := pgoutput.NewSlab(func(int) []millrace.Value { return memory })
	b.StartTimer()
	var err error
	for done := false; !done && err == nil; {
		var m replication.Message
		if m, err = s.Receive(); err != nil {
			break
		}
		if m.Data == nil {
			done = m.Position >= end
			continue
		}
		switch pgoutput.TagOf(m.Data) {
		case pgoutput.TagBegin:
			_, err = pgoutput.ParseBegin(m.Data)
		case pgoutput.TagInsert:
			_, err = pgoutput.ParseInsert(m.Data, slab)
		case pgoutput.TagUpdate:
			_, err = pgoutput.ParseUpdate(m.Data, slab)
		case pgoutput.TagCommit:
			var c pgoutput.Commit
			c, err = pgoutput.ParseCommit(m.Data)
			done = c.End >= end
		}
	}
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func recvlogical(b *testing.B, db *rig.DB, slot string, end millrace.LSN) {
	cmd := exec.CommandContext(b.Context(), db.Server.Bin("pg_recvlogical"), "-d", db.URL(), "--slot", slot, "--start", "-f", "/dev/null",
		"--endpos", end.String(), "-o", "proto_version=1", "-o", "publication_names=everything", "-o", "binary=true", "-o", "messages=true")
	b.StartTimer()
	out, err := cmd.CombinedOutput()
	b.StopTimer()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

func startStream(t testing.TB, db *rig.DB, opt replication.Options) *replication.Stream {
	t.Helper()
	s, err := connect(t, db).Start(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connect opens a walsender connection.
func connect(t testing.TB, db *rig.DB) *replication.Conn {
	t.Helper()
	cfg, err := pgconn.ParseConfig(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	pg, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return replication.New(pg)
}
