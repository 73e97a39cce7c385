package apply

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// The tables of the property test: each way of finding rows, and keys of which
// several forms are equal.
const propertyDDL = `
	CREATE TABLE pk (id int PRIMARY KEY, u int UNIQUE, v text, big text, other text);
	ALTER TABLE pk ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
	CREATE TABLE num (id numeric, k text COLLATE "C", v int, big text, PRIMARY KEY (id, k));
	ALTER TABLE num ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE fullkey (id int PRIMARY KEY, u int UNIQUE, v text, big text);
	ALTER TABLE fullkey REPLICA IDENTITY FULL; ALTER TABLE fullkey ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE fullbare (id int, v text, big text);
	ALTER TABLE fullbare REPLICA IDENTITY FULL; ALTER TABLE fullbare ALTER big SET STORAGE EXTERNAL;
	CREATE TABLE idx (id int PRIMARY KEY, code int NOT NULL, v text, big text);
	CREATE UNIQUE INDEX idx_code ON idx (code); ALTER TABLE idx REPLICA IDENTITY USING INDEX idx_code;
	ALTER TABLE idx ALTER big SET STORAGE EXTERNAL;`

var propertyTables = []string{"pk", "num", "fullkey", "fullbare", "idx"}

// script draws transactions of statements on few keys, so that they meet.
type script struct {
	t *rapid.T
}

func (s script) n(what string, most int) int { return rapid.IntRange(1, most).Draw(s.t, what) }

// big is a value that is stored out of line, so that an update which leaves it
// alone is sent without it.
func (s script) big() string {
	return rapid.SampledFrom([]string{"NULL", "'short'", "repeat('x', 3000)", "repeat('y', 4000)"}).Draw(s.t, "big")
}

func (s script) id(table string) string {
	if table == "num" {
		return rapid.SampledFrom([]string{"1.0", "1.00", "1", "2", "2.0", "3"}).Draw(s.t, "id")
	}
	return fmt.Sprint(s.n("id", 6))
}

func (s script) statements() []string {
	if s.n("swap", 12) == 1 {
		// The values of a unique column change places: no order of the net
		// effects does that in one statement.
		table := rapid.SampledFrom([]string{"pk", "fullkey"}).Draw(s.t, "table")
		return []string{"UPDATE " + table + " SET u = -u", "UPDATE " + table + " SET u = CASE u WHEN -1 THEN 2 WHEN -2 THEN 1 ELSE -u END"}
	}
	return []string{s.statement()}
}

func (s script) statement() string {
	table := rapid.SampledFrom(propertyTables).Draw(s.t, "table")
	where := fmt.Sprintf("WHERE id = %s", s.id(table))
	set := rapid.SampledFrom([]string{"v", "v", "big", "id", "unique", "id and v", "nothing"}).Draw(s.t, "set")
	value := fmt.Sprintf("'%d'", s.n("v", 99))
	if table == "num" {
		value = strings.Trim(value, "'")
	}
	switch rapid.SampledFrom([]string{"insert", "insert", "update", "update", "update", "delete", "all", "truncate"}).Draw(s.t, "op") {
	case "insert":
		switch table {
		case "pk":
			return fmt.Sprintf("INSERT INTO pk VALUES (%s, %d, %s, %s, %s)", s.id(table), s.n("u", 5), value, s.big(), s.big())
		case "num":
			return fmt.Sprintf("INSERT INTO num VALUES (%s, 'k%d', %s, %s)", s.id(table), s.n("k", 2), value, s.big())
		case "fullkey":
			return fmt.Sprintf("INSERT INTO fullkey VALUES (%s, %d, %s, %s)", s.id(table), s.n("u", 5), value, s.big())
		case "idx":
			return fmt.Sprintf("INSERT INTO idx VALUES (%s, %d, %s, %s)", s.id(table), s.n("code", 6), value, s.big())
		}
		return fmt.Sprintf("INSERT INTO fullbare VALUES (%s, %s, %s)", s.id(table), value, s.big())
	case "delete":
		return "DELETE FROM " + table + " " + where
	case "truncate":
		if s.n("truncate", 4) > 1 {
			return "SELECT 1"
		}
		return "TRUNCATE " + table
	case "all":
		where = ""
		if set == "id" || set == "id and v" {
			return "UPDATE " + table + " SET id = id + 1"
		}
	}
	switch set {
	case "big":
		return fmt.Sprintf("UPDATE %s SET big = %s %s", table, s.big(), where)
	case "id":
		return fmt.Sprintf("UPDATE %s SET id = %s %s", table, s.id(table), where)
	case "id and v":
		return fmt.Sprintf("UPDATE %s SET id = %s, v = %s %s", table, s.id(table), value, where)
	case "unique":
		switch table {
		case "pk", "fullkey":
			return fmt.Sprintf("UPDATE %s SET u = %d %s", table, s.n("u", 5), where)
		case "idx":
			return fmt.Sprintf("UPDATE idx SET code = %d %s", s.n("code", 6), where)
		}
		return "SELECT 1"
	case "nothing":
		return fmt.Sprintf("UPDATE %s SET v = v %s", table, where)
	}
	return fmt.Sprintf("UPDATE %s SET v = %s %s", table, value, where)
}

// run runs what was drawn; a statement that fails leaves no trace.
func (s script) run(conn *pgx.Conn) {
	ctx := context.Background()
	for range rapid.IntRange(1, 12).Draw(s.t, "transactions") {
		tx, err := conn.Begin(ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		for range rapid.IntRange(1, 8).Draw(s.t, "statements") {
			for _, sql := range s.statements() {
				if _, err = tx.Exec(ctx, "SAVEPOINT s"); err != nil {
					break
				}
				if _, failed := tx.Exec(ctx, sql); failed != nil {
					_, err = tx.Exec(ctx, "ROLLBACK TO SAVEPOINT s")
				}
			}
			if err != nil {
				break
			}
		}
		if err != nil {
			_ = tx.Rollback(ctx)
		} else if err := tx.Commit(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
}

// clone copies transactions, so that several sinks can have them.
func clone(txns []*millrace.Txn) []*millrace.Txn {
	copies := make([]*millrace.Txn, len(txns))
	for i, txn := range txns {
		c := *txn
		c.OnRelease(nil)
		c.Changes = append([]millrace.Change(nil), txn.Changes...)
		for j := range c.Changes {
			c.Changes[j].Old = append(millrace.Row(nil), c.Changes[j].Old...)
			c.Changes[j].New = append(millrace.Row(nil), c.Changes[j].New...)
			if len(c.Changes[j].Old) == 0 {
				c.Changes[j].Old = nil
			}
		}
		copies[i] = &c
	}
	return copies
}

// grouping is one way to hand the same transactions to a sink.
type grouping struct {
	name  string
	sink  *Sink
	conn  *pgx.Conn // to its destination
	write func(*rapid.T, *Sink, []*millrace.Txn)
}

// TestEveryGroupingGivesTheSame applies random histories in sets, in parts, one
// to one and row by row. All must give the source's rows, and the same values in
// columns that only the destination has.
func TestEveryGroupingGivesTheSame(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, propertyDDL)
		var all []grouping
		add := func(name string, change func(*Options), write func(*rapid.T, *Sink, []*millrace.Txn)) {
			q := *p
			q.dst = rig.Shared(t, rig.Newest).NewDB(t)
			q.dst.Script(t, propertyDDL)
			for _, table := range propertyTables {
				q.dst.SQL(t, "ALTER TABLE "+table+" ADD extra int DEFAULT 7, ADD more text")
			}
			q.opt.Endpoint = sessionOf(q.dst.URL())
			q.record(t)
			change(&q.opt)
			all = append(all, grouping{name: name, sink: q.open(t), conn: dial(t, q.dst.URL()), write: write})
		}
		whole := func(_ *rapid.T, s *Sink, txns []*millrace.Txn) { write(t, s, txns) }
		add("rows", func(*Options) {}, func(_ *rapid.T, s *Sink, txns []*millrace.Txn) {
			s.w.Load().rowsOnly(true)
			write(t, s, txns)
		})
		add("group", func(*Options) {}, whole)
		add("group, by COPY", func(*Options) {}, func(_ *rapid.T, s *Sink, txns []*millrace.Txn) {
			s.w.Load().exec.copyRows = 1
			write(t, s, txns)
		})
		add("group, counted here", func(*Options) {}, func(_ *rapid.T, s *Sink, txns []*millrace.Txn) {
			s.w.Load().exec.oneFlight = 0
			write(t, s, txns)
		})
		add("group, small statements", func(o *Options) { o.MaxBatchRows = 2 }, whole)
		add("one to one", func(o *Options) { o.Group = 1 }, whole)
		add("some at a time", func(*Options) {}, func(rt *rapid.T, s *Sink, txns []*millrace.Txn) {
			for len(txns) > 0 {
				n := rapid.IntRange(1, len(txns)).Draw(rt, "group")
				write(t, s, txns[:n])
				txns = txns[n:]
			}
		})
		add("parts", func(*Options) {}, func(rt *rapid.T, s *Sink, txns []*millrace.Txn) {
			var parts []*millrace.Txn
			for _, txn := range txns {
				if len(txn.Changes) > 0 {
					parts = append(parts, split(txn, rapid.IntRange(1, len(txn.Changes)).Draw(rt, "part"))...)
				}
			}
			write(t, s, parts)
		})
		conn := dial(t, p.src.URL())
		var shared, entire []string
		for _, table := range propertyTables {
			columns := p.src.Query(t, "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = '"+table+"'::regclass AND attnum > 0")
			shared = append(shared, "SELECT '"+table+"' || ROW("+columns+")::text FROM "+table)
			if table != "fullbare" { // which of two equal rows is changed is open
				entire = append(entire, "SELECT '"+table+"' || t::text FROM "+table+" t")
			}
		}
		rapid.Check(t, func(rt *rapid.T) {
			exec(t, conn, "TRUNCATE "+strings.Join(propertyTables, ", "))
			script{rt}.run(conn)
			seed := p.take(t)
			for _, g := range all {
				g.sink.w.Load().rowsOnly(false)
				write(t, g.sink, clone(seed))
				exec(t, g.conn, "UPDATE pk SET extra = id * 100, more = v; UPDATE fullkey SET extra = id * 100; UPDATE fullbare SET extra = 3; "+
					"UPDATE idx SET extra = code; UPDATE num SET extra = (id * 10)::int")
			}
			script{rt}.run(conn)
			txns := p.take(t)
			for _, g := range all {
				g.write(rt, g.sink, clone(txns))
			}
			source, reference := lines(t, conn, shared), lines(t, all[0].conn, entire)
			for _, g := range all {
				if got := lines(t, g.conn, shared); got != source {
					rt.Fatalf("%s:\nsource\n%.2000s\ndestination\n%.2000s", g.name, source, got)
				}
				if got := lines(t, g.conn, entire); got != reference {
					rt.Fatalf("%s:\nrow by row\n%.2000s\nnow\n%.2000s", g.name, reference, got)
				}
			}
		})
		for _, g := range all {
			t.Logf("%s: %+v", g.name, g.sink.Stats())
		}
	})
}

// lines gives the rows of queries in one order.
func lines(t *testing.T, conn *pgx.Conn, queries []string) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT * FROM ("+strings.Join(queries, " UNION ALL ")+") x ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}
