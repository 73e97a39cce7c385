package catalog

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

func TestReadServer(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		s, err := ReadServer(t.Context(), open(t, db.URL()))
		if err != nil {
			t.Fatal(err)
		}
		if s.Major() != pg.Major() || s.InRecovery || s.WALLevel != "logical" || s.Encoding != "UTF8" ||
			s.Database != db.Name || s.PageSize != 8192 || s.SegmentSize != 16<<20 || s.Timeline != 1 ||
			s.MaxReplicationSlots == 0 || s.MaxWalSenders == 0 || s.MaxSlotWALKeep != -1 {
			t.Errorf("%+v", s)
		}
		if !s.Superuser || !s.Replication || s.Role != "postgres" {
			t.Errorf("role: %+v", s)
		}
		if want := db.Query(t, "SELECT system_identifier FROM pg_control_system()"); s.History(3).System != want {
			t.Errorf("got system %s, want %s", s.SystemID, want)
		}

		role := "plain_" + db.Name
		db.SQL(t, "CREATE ROLE "+role+" LOGIN REPLICATION")
		t.Cleanup(func() { pg.SQL(t, "postgres", "DROP ROLE "+role) })
		plain, err := ReadServer(t.Context(), open(t, strings.Replace(db.URL(), "postgres@", role+"@", 1)))
		if err != nil {
			t.Fatal(err)
		}
		if plain.Superuser || !plain.Replication || plain.Role != role || plain.SystemID != s.SystemID {
			t.Errorf("%+v", plain)
		}
	}, 15, 16, 17, 18)
}

func TestServerSettings(t *testing.T) {
	t.Parallel()
	pg := rig.Start(t, rig.Newest, "max_slot_wal_keep_size=3GB", "wal_sender_timeout=90s", "max_replication_slots=7")
	conn := open(t, pg.URL("postgres"))
	pg.SQL(t, "postgres", "SELECT pg_create_physical_replication_slot('s')")
	s, err := ReadServer(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxSlotWALKeep != 3<<30 || s.WalSenderTimeout.String() != "1m30s" || s.MaxReplicationSlots != 7 || s.SlotsUsed != 1 {
		t.Errorf("%+v", s)
	}
}

// TestPositionAtPageHeader: behind a switch the insert position points behind
// the header of a page that is not written yet, where nothing ever ends.
func TestPositionAtPageHeader(t *testing.T) {
	t.Parallel()
	pg := rig.Start(t, rig.Newest, "autovacuum=off")
	conn := open(t, pg.URL("postgres"))
	rig.Eventually(t, wait, func() bool {
		pg.SQL(t, "postgres", "SELECT pg_switch_wal()")
		var raw, flush string
		err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text").Scan(&raw, &flush)
		if err != nil {
			t.Fatal(err)
		}
		position, err := Position(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		// A background process may have written in between: try again then.
		return strings.HasSuffix(raw, "000028") && position.String() == flush
	})
}

func TestTimelineAfterPromotion(t *testing.T) {
	t.Parallel()
	primary := rig.Start(t, rig.Newest)
	standby := rig.Standby(t, primary)
	conn := open(t, standby.URL("postgres"))
	s, err := ReadServer(t.Context(), conn)
	if err != nil || !s.InRecovery || s.Timeline != 1 {
		t.Fatalf("%+v %v", s, err)
	}
	primary.SQL(t, "postgres", "CREATE TABLE t ()")
	at, err := Position(t.Context(), open(t, primary.URL("postgres")))
	if err != nil {
		t.Fatal(err)
	}
	var replayed millrace.LSN
	rig.Eventually(t, wait, func() bool {
		if replayed, err = Position(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		return replayed >= at
	})
	standby.Promote(t)
	s, err = ReadServer(t.Context(), conn)
	if err != nil || s.InRecovery || s.Timeline != 2 {
		t.Errorf("after the promotion: %+v %v", s, err)
	}
	if after, err := Position(t.Context(), conn); err != nil || after < replayed {
		t.Error(after, replayed, err)
	}
}

func TestReadSlot(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		conn := open(t, db.URL())
		slot := "slot_" + db.Name
		if s, err := ReadSlot(t.Context(), conn, slot); s != nil || err != nil {
			t.Fatal(s, err)
		}
		db.SQL(t, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
		t.Cleanup(func() { db.SQL(t, "SELECT pg_drop_replication_slot('"+slot+"')") })
		db.SQL(t, "CREATE TABLE t AS SELECT g FROM generate_series(1, 1000) g")
		s, err := ReadSlot(t.Context(), conn, slot)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name != slot || s.Plugin != "pgoutput" || s.Database != db.Name || s.Active || s.ActivePID != 0 ||
			s.ConfirmedFlush == 0 || s.Restart == 0 || s.Restart > s.ConfirmedFlush || s.WALStatus != "reserved" ||
			s.SafeWALSize != nil || s.InvalidationReason != "" || s.Temporary || s.TwoPhase || s.Failover ||
			s.CatalogXMin == "" || s.XMin != "" || s.RetainedBytes < 1000 {
			t.Errorf("%+v", s)
		}
	}, 15, 16, 17, 18)
}

func TestActiveAndLostSlots(t *testing.T) {
	t.Parallel()
	pg := rig.Start(t, rig.Newest, "max_slot_wal_keep_size=1MB", "min_wal_size=32MB", "max_wal_size=32MB")
	conn := open(t, pg.URL("postgres"))
	walsender, err := session.Static(millrace.PeerSource, pg.URL("postgres"), "test").ConnectReplication(t.Context(), session.Stream)
	if err != nil {
		t.Fatal(err)
	}
	defer walsender.Close(t.Context())
	if _, err := walsender.Exec(t.Context(), "CREATE_REPLICATION_SLOT held TEMPORARY LOGICAL pgoutput (TWO_PHASE)").ReadAll(); err != nil {
		t.Fatal(err)
	}
	s, err := ReadSlot(t.Context(), conn, "held")
	if err != nil || !s.Active || s.ActivePID != int32(walsender.PID()) || !s.Temporary || !s.TwoPhase {
		t.Errorf("%+v %v", s, err)
	}
	if s.SafeWALSize == nil {
		t.Error("safe_wal_size is unknown")
	}
	pg.SQL(t, "postgres", "SELECT pg_create_logical_replication_slot('lost', 'pgoutput', false, false, true)")
	for range 4 {
		pg.SQL(t, "postgres", "SELECT pg_switch_wal()")
		pg.SQL(t, "postgres", "CREATE TABLE IF NOT EXISTS t (); DROP TABLE t")
	}
	pg.SQL(t, "postgres", "CHECKPOINT")
	s, err = ReadSlot(t.Context(), conn, "lost")
	if err != nil || s.WALStatus != "lost" || s.InvalidationReason != "wal_removed" || !s.Failover {
		t.Errorf("%+v %v", s, err)
	}
}

func TestReadPublication(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		conn := open(t, db.URL())
		db.SQL(t, `
			CREATE SCHEMA s; CREATE SCHEMA "S x";
			CREATE TABLE plain (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (1) STORED, gone int);
			ALTER TABLE plain DROP gone;
			CREATE TABLE listed (id int PRIMARY KEY, v text, w text);
			CREATE TABLE filtered (id int PRIMARY KEY);
			CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
			CREATE TABLE part1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
			CREATE TABLE part2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
			CREATE TABLE s.in_schema (id int);
			CREATE TABLE "S x"."T y" (id int);
			CREATE TABLE unlogged (id int);
			ALTER TABLE unlogged SET UNLOGGED;
			CREATE PUBLICATION p FOR TABLE plain, listed (id, v), filtered WHERE (id > 3), parted, "S x"."T y"
				WITH (publish = 'insert, delete');
			CREATE PUBLICATION r FOR TABLE parted WITH (publish_via_partition_root);
			CREATE PUBLICATION i FOR TABLES IN SCHEMA s;
			CREATE PUBLICATION a FOR ALL TABLES;
			CREATE PUBLICATION full_list FOR TABLE listed (id, v, w);
			CREATE PUBLICATION nothing;`)
		read := func(n string) *Publication {
			t.Helper()
			p, err := ReadPublication(t.Context(), conn, n)
			if err != nil || p == nil {
				t.Fatal(n, p, err)
			}
			return p
		}
		p := read("p")
		if p.AllTables || !p.Insert || p.Update || !p.Delete || p.Truncate || p.ViaRoot || p.GenCols != 'n' || p.Owner != "postgres" {
			t.Errorf("%+v", p)
		}
		if got, want := published(p), `"S x"."T y" public.filtered[(id > 3)] public.listed(id,v) public.part1 public.part2 public.plain`; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if x := p.Table(p.Tables[0].OID); x != &p.Tables[0] || p.Table(1) != nil {
			t.Error(x)
		}
		r := read("r")
		if !r.ViaRoot || published(r) != "public.parted" {
			t.Errorf("%+v", r)
		}
		i := read("i")
		if published(i) != "s.in_schema" || len(i.Schemas) != 1 || i.Schemas[0] != "s" {
			t.Errorf("%+v", i)
		}
		if a := read("a"); !a.AllTables || len(a.Tables) != 7 {
			t.Errorf("%s", published(a))
		}
		if got := published(read("full_list")); got != "public.listed(id,v,w)" {
			t.Errorf("a list of all columns is a list nevertheless, a new column is not in it: %s", got)
		}
		if n := read("nothing"); len(n.Tables) != 0 {
			t.Errorf("%+v", n)
		}
		if pg.Major() >= 18 {
			db.SQL(t, "CREATE PUBLICATION g FOR TABLE plain WITH (publish_generated_columns = stored)")
			if g := read("g"); g.GenCols != 's' || published(g) != "public.plain" {
				t.Errorf("%+v", g)
			}
		}
		if none, err := ReadPublication(t.Context(), conn, "P"); none != nil || err != nil {
			t.Error(none, err)
		}
	}, 15, 16, 17, 18)
}

func published(p *Publication) string {
	var parts []string
	for _, x := range p.Tables {
		s := x.Name.String()
		if x.Columns != nil {
			s += "(" + strings.Join(x.Columns, ",") + ")"
		}
		if x.Filter != "" {
			s += "[" + x.Filter + "]"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

var _ Querier = (*pgx.Conn)(nil)
var _ Querier = (pgx.Tx)(nil)
