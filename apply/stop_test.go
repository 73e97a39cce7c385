package apply

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// stops expects the sink to end with an error of the given kind, all before the
// bad transaction delivered, and to go on at it once the destination is cured.
func stops(t *testing.T, p *pair, s *Sink, txns []*millrace.Txn, bad int, cure string) *millrace.Error {
	t.Helper()
	again := clone(txns)
	commit := txns[bad].Commit
	err := tryWrite(t, s, txns)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Kind != millrace.KindData {
		t.Fatalf("ended with %v", err)
	}
	if e.LSN != commit {
		t.Errorf("%v: names the transaction at %s, want %s", e, e.LSN, commit)
	}
	if e.Hint == "" {
		t.Errorf("%v: no hint", e)
	}
	cp := reopen(t, s)
	before := p.point
	if bad > 0 {
		before = again[bad-1].End
	}
	if cp.Acked != before {
		t.Errorf("stopped at %s, want %s", cp.Acked, before)
	}
	p.dst.Script(t, cure)
	write(t, s, again)
	return e
}

func TestMissingRow(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, "CREATE TABLE a (id int, k text, v int, PRIMARY KEY (id, k)); INSERT INTO a SELECT g, 'k' || g, 0 FROM generate_series(1, 10) g")
		s := p.open(t)
		p.dst.SQL(t, "DELETE FROM a WHERE id = 7")
		txns := p.change(t, "INSERT INTO a VALUES (11, 'k', 0); UPDATE a SET v = 1 WHERE id < 5; UPDATE a SET v = 2 WHERE id > 5; UPDATE a SET v = 3")
		e := stops(t, p, s, txns, 2, "INSERT INTO a VALUES (7, 'k7', 0)")
		if e.Key != `(id, k)=(7, k7)` || e.Table.Name != "a" || !strings.Contains(e.Error(), "missing") {
			t.Errorf("%v", e)
		}
		p.same(t)
	})
}

func TestExtraRow(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, "CREATE TABLE a (id int PRIMARY KEY, v int UNIQUE)")
		s := p.open(t)
		p.dst.SQL(t, "INSERT INTO a VALUES (7, 70)")
		txns := p.change(t, "INSERT INTO a VALUES (1, 1); INSERT INTO a SELECT g, g FROM generate_series(2, 9) g; DELETE FROM a WHERE id = 3")
		e := stops(t, p, s, txns, 1, "DELETE FROM a WHERE id = 7")
		if e.Key != "(id)=(7)" || e.Table.Name != "a" || !strings.Contains(e.Error(), "a_pkey") || strings.Contains(e.Hint, "70") {
			t.Errorf("%v", e)
		}
		p.same(t)
	})
}

// TestBalancedCounts has one row missing and another one too many, so that the
// number of rows of a set could be right.
func TestBalancedCounts(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int, v int); CREATE UNIQUE INDEX ON a (id); ALTER TABLE a ALTER id SET NOT NULL; ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_idx; "+
		"INSERT INTO a SELECT g, 0 FROM generate_series(1, 10) g")
	p.dst.SQL(t, "DROP INDEX a_id_idx; DELETE FROM a WHERE id = 3; INSERT INTO a VALUES (4, 0)")
	s := p.open(t)
	e := stops(t, p, s, p.change(t, "UPDATE a SET v = 1"), 0, "INSERT INTO a VALUES (3, 0); DELETE FROM a WHERE ctid = (SELECT ctid FROM a WHERE id = 4 LIMIT 1)")
	if e.Key != `(id)=(3)` {
		t.Errorf("%v", e)
	}
	p.same(t)
}

func TestTooLong(t *testing.T) {
	for _, typ := range []string{"varchar(3)", "char(3)", "domain3", "varchar(3)[]"} {
		t.Run(typ, func(t *testing.T) {
			bothForms(t, func(t *testing.T, binary bool) {
				p := newPair(t, binary, "CREATE DOMAIN domain3 AS varchar(3)")
				wide := strings.NewReplacer("domain3", "varchar", "(3)", "(9)").Replace(typ)
				p.src.SQL(t, "CREATE TABLE a (id int PRIMARY KEY, v "+wide+")")
				p.dst.SQL(t, "CREATE TABLE a (id int PRIMARY KEY, v "+typ+")")
				s := p.open(t)
				value := "'abcd'"
				if strings.HasSuffix(typ, "[]") {
					value = "'{abcd}'"
				}
				txns := p.change(t, "INSERT INTO a VALUES (1, NULL); INSERT INTO a VALUES (2, "+value+")")
				e := stops(t, p, s, txns, 1, "ALTER TABLE a ALTER v TYPE "+wide)
				if !strings.Contains(e.Error(), "too long") || strings.Contains(e.Error(), "abcd") || !strings.HasSuffix(e.Key, "=(2)") {
					t.Errorf("%v", e)
				}
				p.same(t)
			})
		})
	}
}

func TestShapeOfTheTarget(t *testing.T) {
	p := newPair(t, true, "")
	p.src.SQL(t, "CREATE TABLE a (id int PRIMARY KEY, v int, w text); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY)")
	p.dst.SQL(t, "CREATE TABLE a (w text, extra int NOT NULL, id int PRIMARY KEY); CREATE VIEW c AS SELECT 1 AS id")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1, 1, 'x')")
	e := stops(t, p, s, txns, 0, `ALTER TABLE a ADD v int, ALTER extra SET DEFAULT 5`)
	if e.Table.Name != "a" || e.Column != "v" || !strings.Contains(e.Hint, `ALTER TABLE "public"."a" ADD COLUMN "v" integer;`) {
		t.Errorf("%v\n%s", e, e.Hint)
	}
	p.sameQuery(t, "SELECT id, v, w FROM a")
	p.point = txns[0].End
	p.dst.SQL(t, "ALTER TABLE a ALTER extra DROP DEFAULT")
	txns = p.change(t, "INSERT INTO a VALUES (2, 2, 'y')")
	e = stops(t, p, s, txns, 0, `ALTER TABLE a ALTER extra DROP NOT NULL`)
	if e.Column != "extra" || !strings.Contains(e.Hint, "extra") {
		t.Errorf("%v\n%s", e, e.Hint)
	}
	p.point = txns[0].End
	txns = p.change(t, "INSERT INTO b VALUES (1)")
	if e := stops(t, p, s, txns, 0, "CREATE TABLE b (id int PRIMARY KEY)"); !strings.Contains(e.Error(), "no such table") {
		t.Errorf("%v", e)
	}
	p.point = txns[0].End
	txns = p.change(t, "INSERT INTO c VALUES (1)")
	if e := stops(t, p, s, txns, 0, "DROP VIEW c; CREATE TABLE c (id int PRIMARY KEY)"); !strings.Contains(e.Error(), "not a table") {
		t.Errorf("%v", e)
	}
	p.point = txns[0].End
	p.src.SQL(t, "CREATE TABLE d (id int PRIMARY KEY)")
	p.dst.SQL(t, "CREATE UNLOGGED TABLE d (id int PRIMARY KEY)")
	txns = p.change(t, "INSERT INTO d VALUES (1)")
	if e := stops(t, p, s, txns, 0, "ALTER TABLE d SET LOGGED"); !strings.Contains(e.Error(), "unlogged") || !strings.Contains(e.Hint, "SET LOGGED") {
		t.Errorf("%v", e)
	}
}

// TestTargetChangesWhileRunning changes the destination under a running sink.
func TestTargetChangesWhileRunning(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, "CREATE TABLE a (id int PRIMARY KEY, v int)")
		s := p.open(t)
		write(t, s, p.change(t, "INSERT INTO a SELECT g, g FROM generate_series(1, 10) g"))
		for _, ddl := range []string{"ALTER TABLE a ADD x int", "ALTER TABLE a ADD y text DEFAULT 'y'", "ALTER TABLE a DROP x", "DROP INDEX IF EXISTS a_v; CREATE INDEX a_v ON a (v)"} {
			p.dst.Script(t, ddl)
			write(t, s, p.change(t, "UPDATE a SET v = v + 1; DELETE FROM a WHERE id = 3; INSERT INTO a VALUES (3, 0)"))
			p.sameQuery(t, "SELECT id, v FROM a ORDER BY id")
		}
	})
}

func TestTruncateReferenced(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a); INSERT INTO a VALUES (1)")
	p.dst.SQL(t, `CREATE TABLE "only here" (a int REFERENCES a); INSERT INTO "only here" VALUES (1)`)
	s := p.open(t)
	e := stops(t, p, s, p.change(t, "INSERT INTO a VALUES (2); TRUNCATE a, b"), 1, `DROP TABLE "only here"`)
	if !strings.Contains(e.Error(), `public."only here"`) {
		t.Errorf("%v", e)
	}
	p.same(t)
}

func TestNoIdentity(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int)")
	s := p.open(t)
	txns := p.change(t, "INSERT INTO a VALUES (1), (1), (2)")
	write(t, s, txns)
	p.same(t)
	// The server refuses an UPDATE of such a table; one that was published late
	// or differently may send it all the same.
	rel := *p.rels[p.oid(t, "a")]
	txns = p.change(t, "INSERT INTO a VALUES (3)")
	txns[0].Changes[0].Op = millrace.Update
	txns[0].Changes[0].Rel = &rel
	err := tryWrite(t, s, txns)
	if millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "replica identity") {
		t.Errorf("%v", err)
	}
}

// TestLargeTransactionIsRedone has a deferred check fail at the end of a large
// transaction that went in parts.
func TestLargeTransactionIsRedone(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY)")
	p.dst.SQL(t, "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b DEFERRABLE INITIALLY DEFERRED")
	asOwner(t, p)
	s := p.open(t)
	txn := p.change(t, "INSERT INTO a SELECT g, g FROM generate_series(1, 20) g")[0]
	parts := func() []*millrace.Txn { return split(clone([]*millrace.Txn{txn})[0], 4) }
	if err := tryWrite(t, s, parts()); millrace.KindOf(err) != millrace.KindRetry || !errors.Is(err, errRedo) {
		t.Fatalf("the first time: %v", err)
	}
	reopen(t, s)
	err := tryWrite(t, s, parts())
	var e *millrace.Error
	if !errors.As(err, &e) || e.Kind != millrace.KindData || e.LSN != txn.Commit || e.Key != "(b)=(1)" || e.Table.Name != "a" {
		t.Fatalf("the second time: %v", err)
	}
	p.dst.SQL(t, "INSERT INTO b SELECT generate_series(1, 20)")
	if cp := reopen(t, s); cp.Acked != p.point {
		t.Errorf("%+v", cp)
	}
	write(t, s, parts())
	p.sameQuery(t, "SELECT * FROM a ORDER BY id")
}

// TestDeferredCheckInAGroup: the check fails for one of the transactions of a
// group, and those before it are delivered.
func TestDeferredCheckInAGroup(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, b int); CREATE TABLE b (id int PRIMARY KEY)")
	p.dst.SQL(t, "ALTER TABLE a ADD CONSTRAINT must FOREIGN KEY (b) REFERENCES b DEFERRABLE INITIALLY DEFERRED")
	asOwner(t, p)
	s := p.open(t)
	txns := p.change(t, `INSERT INTO b VALUES (1); INSERT INTO a VALUES (1, 1); INSERT INTO a VALUES (2, 7); INSERT INTO a VALUES (3, 1)`)
	e := stops(t, p, s, txns, 2, "INSERT INTO b VALUES (7)")
	if e.Key != "(b)=(7)" || !strings.Contains(e.Hint, "must") {
		t.Errorf("%v\n%s", e, e.Hint)
	}
	p.sameQuery(t, "SELECT * FROM a ORDER BY id")
}

// TestPartGoesRowByRow: the sets of a later part fail, and the parts before it
// stay as they are.
func TestPartGoesRowByRow(t *testing.T) {
	bothForms(t, func(t *testing.T, binary bool) {
		p := newPair(t, binary, "CREATE TABLE a (id int PRIMARY KEY, u int UNIQUE)")
		s := p.open(t)
		write(t, s, p.change(t, "INSERT INTO a SELECT g, g FROM generate_series(1, 4) g"))
		txn := p.change(t, `BEGIN; INSERT INTO a SELECT g, g FROM generate_series(10, 25) g;
			UPDATE a SET u = -1 WHERE id = 1; UPDATE a SET u = 1 WHERE id = 2; UPDATE a SET u = 2 WHERE id = 1; DELETE FROM a WHERE id = 10;
			INSERT INTO a SELECT g, g FROM generate_series(30, 45) g; COMMIT`)[0]
		parts := split(txn, 4)
		for _, part := range parts { // one part is one batch
			if err := s.Write(t.Context(), part); err != nil {
				t.Fatal(err)
			}
			rig.Eventually(t, patience, func() bool { return s.w.Load().q.quiet() }, "the part is not executed")
		}
		if _, err := s.Durable(t.Context(), txn.End-1); err != nil {
			t.Fatal(err)
		}
		p.same(t)
		st := s.Stats()
		if st.Fallbacks != 1 || st.RowRows != 4 || st.Groups != 2 || st.FallbackTransactions != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// asOwner has the sink connect as a role that owns the tables and is no
// superuser: neither role replica nor origins.
func asOwner(t *testing.T, p *pair) {
	t.Helper()
	p.dst.SQL(t, `DO $$ BEGIN CREATE ROLE owner LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`)
	p.dst.SQL(t, `DO $$ DECLARE r regclass; BEGIN
		FOR r IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'p', 'v') AND nspname IN ('public', 'millrace') LOOP
			EXECUTE 'ALTER TABLE ' || r || ' OWNER TO owner';
		END LOOP; END $$; GRANT USAGE ON SCHEMA millrace TO owner`)
	p.opt.Endpoint = sessionOf(strings.Replace(p.dst.URL(), "postgres@", "owner@", 1))
}

func (p *pair) oid(t *testing.T, table string) uint32 {
	t.Helper()
	for oid, rel := range p.rels {
		if rel.Name.Name == table {
			return oid
		}
	}
	t.Fatalf("no relation %s", table)
	return 0
}

// TestSuppressedSinceItWasDescribed: a trigger that came while the job ran suppresses a
// row. It is found before the transaction counts.
func TestSuppressedSinceItWasDescribed(t *testing.T) {
	p := newPair(t, true, "CREATE TABLE a (id int PRIMARY KEY, v int)")
	s := p.open(t)
	write(t, s, p.change(t, "INSERT INTO a VALUES (1, 0)"))
	p.dst.SQL(t, `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER no BEFORE INSERT ON a FOR EACH ROW EXECUTE FUNCTION no(); ALTER TABLE a ENABLE ALWAYS TRIGGER no`)
	_ = stops(t, p, s, p.change(t, "UPDATE a SET v = 1; INSERT INTO a VALUES (2, 0)"), 1, `DROP TRIGGER no ON a`)
	p.same(t)
}
