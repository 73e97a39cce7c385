package record_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

func newJob() *record.Job {
	return &record.Job{
		Name: "shop", State: record.Bootstrapping, SystemID: "7301234567890123456", Timeline: 1,
		Slot: "millrace_shop", Publication: "millrace_shop", Mode: "consistent",
		Tables: []record.Table{
			{OID: 16400, Name: millrace.TableName{Schema: "public", Name: `Odd."one`}, Filenode: 16400, Shape: "a"},
			{OID: 4000000001, Name: millrace.TableName{Schema: "public", Name: "item"}, Shape: "id int4"},
		},
	}
}

func install(t *testing.T) (string, *pgx.Conn) {
	t.Helper()
	url := newDB(t)
	conn := connect(t, url, session.Watch)
	if err := record.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return url, conn
}

func create(t *testing.T, conn *pgx.Conn) *record.Job {
	t.Helper()
	j := newJob()
	if err := record.Create(t.Context(), conn, j); err != nil {
		t.Fatal(err)
	}
	return j
}

func read(t *testing.T, conn *pgx.Conn) (*record.Job, millrace.Checkpoint) {
	t.Helper()
	j, cp, err := record.Read(t.Context(), conn, "shop")
	if err != nil {
		t.Fatal(err)
	}
	return j, cp
}

func TestJobFromStartToEnd(t *testing.T) {
	conn := connect(t, newDB(t), session.Watch)
	if j, _ := read(t, conn); j != nil {
		t.Fatalf("a job without a schema: %+v", j)
	}
	for range 2 {
		if err := record.Install(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
	}
	if j, _ := read(t, conn); j != nil {
		t.Fatalf("a job in an empty record: %+v", j)
	}
	j := create(t, conn)
	if j.Generation != 1 || j.Epoch != 1 {
		t.Fatalf("generation %d epoch %d of a new job", j.Generation, j.Epoch)
	}
	got, cp := read(t, conn)
	if d := cmp.Diff(j, got, cmpopts.EquateApproxTime(time.Minute)); d != "" {
		t.Errorf("read is not what was written (-want +got):\n%s", d)
	}
	if cp.Commit != 0 || cp.Seq != 0 || cp.Acked != 0 {
		t.Errorf("checkpoint before the first row: %+v", cp)
	}
	for _, err := range []error{
		record.SetSlot(t.Context(), conn, "shop", 0x100, true, true),
		record.SetLoadStarted(t.Context(), conn, "shop"),
		record.UpdateTable(t.Context(), conn, "shop", record.Table{OID: 16400, Name: millrace.TableName{Schema: "b", Name: "t"}, TargetOID: 7}),
		inTx(t, conn, func(tx pgx.Tx) error {
			return record.MarkPart(t.Context(), tx, j.Fence(), record.Part{OID: 16400, Number: 1, Rows: 5})
		}),
		record.ClearParts(t.Context(), conn, "shop", 16400),
		inTx(t, conn, func(tx pgx.Tx) error { return record.MarkCopied(t.Context(), tx, j.Fence(), 16400, 5, 50) }),
		record.FirstProgress(t.Context(), conn, j.Fence(), 1, 0x100),
		record.SetConsistentFrom(t.Context(), conn, "shop", 0x100),
		record.SetState(t.Context(), conn, "shop", record.Failed, "why", "do this"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, cp = read(t, conn)
	want := record.Table{OID: 16400, Name: millrace.TableName{Schema: "b", Name: "t"}, TargetOID: 7, Filenode: 16400, Shape: "a", Copied: true, Rows: 5, Bytes: 50}
	if d := cmp.Diff(want, got.Tables[0]); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
	if got.State != record.Failed || got.Reason != "why" || got.Hint != "do this" || got.ConsistentFrom != 0x100 || got.LoadStarted.IsZero() {
		t.Errorf("job: %+v", got)
	}
	if cp.Seq != 1 || cp.Commit != 0 || cp.End != 0x100 || cp.Acked != 0x100 {
		t.Errorf("first checkpoint: %+v", cp)
	}
	stale := j.Fence()
	for _, step := range []struct {
		fence func() record.Fence
		want  error
	}{
		{func() record.Fence { return stale }, nil},
		{func() record.Fence {
			if _, _, err := record.Claim(t.Context(), conn, "shop", ""); err != nil {
				t.Fatal(err)
			}
			return stale
		}, record.ErrFenced},
		{func() record.Fence { j, _ := read(t, conn); return j.Fence() }, nil},
		{func() record.Fence { return record.Fence{Job: "other", Generation: 1} }, record.ErrNoJob},
	} {
		if err := record.SetStateAs(t.Context(), conn, step.fence(), record.Failed, "why", "do this"); !errors.Is(err, step.want) {
			t.Errorf("state under a fence: %v, want %v", err, step.want)
		}
	}
	if err := record.SetState(t.Context(), conn, "other", record.Failed, "", ""); !errors.Is(err, record.ErrNoJob) {
		t.Errorf("state of an unknown job: %v", err)
	}
	if err := record.Delete(t.Context(), conn, "shop"); err != nil {
		t.Fatal(err)
	}
	if j, _ := read(t, conn); j != nil {
		t.Fatalf("deleted job is still there: %+v", j)
	}
	if j := create(t, conn); j.Generation != 2 {
		t.Errorf("generation %d after a removal, want 2", j.Generation)
	}
}

func TestCreateIsACompareAndSet(t *testing.T) {
	_, conn := install(t)
	create(t, conn)
	late := newJob()
	if err := record.Create(t.Context(), conn, late); millrace.KindOf(err) != millrace.KindPreflight {
		t.Errorf("second creation without knowing of the first: %v", err)
	}
	j, _ := read(t, conn)
	if j.Generation != 1 {
		t.Fatalf("the failed creation left generation %d", j.Generation)
	}
	if err := record.Create(t.Context(), conn, j); err != nil {
		t.Fatal(err)
	}
	if j.Generation != 2 || j.Epoch != 2 {
		t.Errorf("generation %d epoch %d after a restart of the load, want 2 and 2", j.Generation, j.Epoch)
	}
}

// appendRow adds the next progress row as the apply session does.
func appendRow(ctx context.Context, conn *pgx.Conn, cp *millrace.Checkpoint) (pgconn.CommandTag, error) {
	r := conn.PgConn().ExecParams(ctx, record.AppendSQL, record.AppendArgs("shop", cp), record.AppendTypes, nil, nil).Read()
	return r.CommandTag, r.Err
}

func TestAppendAndClaim(t *testing.T) {
	url, conn := install(t)
	j := create(t, conn)
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), 1, 0x100); err != nil {
		t.Fatal(err)
	}
	old := connect(t, url, session.Apply)
	epoch, cp, err := record.Claim(t.Context(), old, "shop", "a")
	if err != nil || epoch != 2 || cp.Epoch != 2 {
		t.Fatalf("epoch %d, checkpoint %+v, %v", epoch, cp, err)
	}
	next := cp
	next.Seq++
	next.Commit, next.End, next.Acked, next.LastXID, next.LastTime = 0x200, 0x228, 0x228, 4000000000, 1700000000123456
	next.Cursor = []byte{0, 255}
	if tag, err := appendRow(t.Context(), old, &next); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%v, %v", tag, err)
	}
	if _, got := read(t, conn); cmp.Diff(next, got) != "" {
		t.Errorf("checkpoint (-want +got):\n%s", cmp.Diff(next, got))
	}

	// A takes part in a transaction and stalls; B takes over.
	exec(t, old, "BEGIN")
	exec(t, old, "CREATE TABLE public.by_a ()")
	now := connect(t, url, session.Apply)
	epoch, cp, err = record.Claim(t.Context(), now, "shop", "b")
	if err != nil || epoch != 3 || cp.Seq != next.Seq {
		t.Fatalf("epoch %d, checkpoint %+v, %v", epoch, cp, err)
	}
	if _, err := old.Exec(t.Context(), "COMMIT"); err == nil {
		t.Error("the former writer could still commit")
	}
	next.Seq++
	again := connect(t, url, session.Watch)
	if _, err := appendRow(t.Context(), again, &next); session.SQLState(err) != "23502" {
		t.Errorf("row with an old epoch: %v", err)
	}
	next.Seq, next.Epoch = cp.Seq, 3
	if _, err := appendRow(t.Context(), again, &next); session.SQLState(err) != "23505" {
		t.Errorf("row with a used number: %v", err)
	}
	err = inTx(t, again, func(tx pgx.Tx) error { return record.MarkCopied(t.Context(), tx, j.Fence(), 16400, 1, 1) })
	if !errors.Is(err, record.ErrFenced) || millrace.KindOf(err) != millrace.KindPreflight {
		t.Errorf("mark with an old epoch: %v", err)
	}
}

func inTx(t *testing.T, conn *pgx.Conn, do func(pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), conn, do)
}

// A load that stands still between its mark and its commit must not come through
// after a new one has looked at what is there.
func TestSeize(t *testing.T) {
	url, conn := install(t)
	j := create(t, conn)
	stalled := connect(t, url, session.Copy)
	tx, err := stalled.Begin(t.Context())
	if err == nil {
		err = record.MarkCopied(t.Context(), tx, j.Fence(), 16400, 1, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	err = inTx(t, conn, func(now pgx.Tx) error {
		if err := record.Seize(t.Context(), now, "shop"); err != nil {
			return err
		}
		if err := tx.Commit(t.Context()); err == nil {
			t.Error("the stalled load has committed its mark")
		}
		return record.Create(t.Context(), now, j)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, conn); got.Generation != 2 || got.Tables[0].Copied {
		t.Errorf("after the seizure: generation %d, copied %v", got.Generation, got.Tables[0].Copied)
	}
}

func TestTrimKeepsTheNewestOfEachTimeline(t *testing.T) {
	_, conn := install(t)
	create(t, conn)
	exec(t, conn, `INSERT INTO millrace.progress (job, seq, epoch, timeline, committed_lsn, acked_lsn)
		SELECT 'shop', n, 1, CASE WHEN n <= 700 THEN 1 ELSE 2 END, '0/1', ('0/' || to_hex(n))::pg_lsn FROM generate_series(1, 25000) n`)
	if err := record.Trim(t.Context(), conn, "shop"); err != nil {
		t.Fatal(err)
	}
	var n, low, second int64
	if err := conn.QueryRow(t.Context(), `SELECT count(*), min(seq), (SELECT min(seq) FROM millrace.progress WHERE timeline = 2) FROM millrace.progress`).Scan(&n, &low, &second); err != nil {
		t.Fatal(err)
	}
	if n != 1001 || low != 700 || second != 24001 {
		t.Errorf("%d rows from %d, timeline 2 from %d", n, low, second)
	}
}

func TestRuntime(t *testing.T) {
	_, conn := install(t)
	if r, err := record.ReadRuntime(t.Context(), conn, "shop"); r != nil || err != nil {
		t.Fatalf("%+v, %v", r, err)
	}
	a := &record.Runtime{Job: "shop", Instance: "a", Host: "h", PID: 1, Version: "dev", HTTP: "127.0.0.1:1", StartedAt: time.Now()}
	b := &record.Runtime{Job: "shop", Instance: "b", Host: "h", PID: 2, Version: "dev", Condition: "waiting_for_slot", StartedAt: time.Now()}
	for _, r := range []*record.Runtime{a, b, a, b} {
		if err := record.Beat(t.Context(), conn, r); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := record.ReadRuntime(t.Context(), conn, "shop"); err != nil || r.Instance != "b" || r.Condition != "waiting_for_slot" {
		t.Errorf("%+v, %v", r, err)
	}
	r, err := record.ReadOther(t.Context(), conn, "shop", "b")
	if err != nil || r.Instance != "a" || r.HTTP != "127.0.0.1:1" || !r.HeartbeatAt.Equal(a.HeartbeatAt) {
		t.Errorf("%+v, %v", r, err)
	}
	if err := record.Leave(t.Context(), conn, "shop", "a"); err != nil {
		t.Fatal(err)
	}
	if r, err := record.ReadOther(t.Context(), conn, "shop", "b"); r != nil || err != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestWaitFor(t *testing.T) {
	url, conn := install(t)
	j := create(t, conn)
	wait := func(token, timeout string) (bool, error) {
		var held bool
		err := conn.QueryRow(t.Context(), `SELECT millrace.wait_for('shop', $1, $2::interval)`, token, timeout).Scan(&held)
		return held, err
	}
	if held, err := wait("0/1", "10ms"); held || err != nil {
		t.Errorf("before any progress: %v, %v", held, err)
	}
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), 2, 0x3000000); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `INSERT INTO millrace.progress (job, seq, epoch, timeline, committed_lsn, acked_lsn) VALUES ('shop', 0, 1, 1, '0/2000000', '0/2000000')`)
	if held, err := wait("0/3000000", "10ms"); held || err != nil {
		t.Errorf("before the target is consistent: %v, %v", held, err)
	}
	if err := record.SetConsistentFrom(t.Context(), conn, "shop", 0x100); err != nil {
		t.Fatal(err)
	}
	sys := j.SystemID
	for _, c := range []struct {
		token string
		held  bool
		fails string
	}{
		{token: "0/3000000", held: true},
		{token: "0/3000028", held: true}, // behind a segment's header
		{token: "0/3000029"},
		{token: "0/2FFE018", held: true},
		{token: "0/3002018"},
		{token: sys + ":2:1:0/3000000", held: true},
		{token: sys + ":3:1:0/3000000"},
		{token: sys + ":1:1:0/2000000", held: true},
		{token: sys + ":1:1:0/2000001", fails: "not on the history"},
		{token: sys + ":2:2:0/3000000", fails: "generation"},
		{token: "1:2:1:0/3000000", fails: "system"},
		{token: "xid=7", fails: "malformed token"},
		{token: "0/3000000 ", fails: "malformed token"},
		{token: "G/1", fails: "malformed token"},
	} {
		held, err := wait(c.token, "1ms")
		if held != c.held || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, %v; want %v, %q", c.token, held, err, c.held, c.fails)
		}
	}
	if err := conn.QueryRow(t.Context(), `SELECT millrace.wait_for('nope', '0/1', '1s')`).Scan(new(bool)); err == nil || !strings.Contains(err.Error(), "no such job") {
		t.Errorf("unknown job: %v", err)
	}
	exec(t, conn, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	if _, err := wait("0/1", "1s"); err == nil || !strings.Contains(err.Error(), "read committed") {
		t.Errorf("repeatable read: %v", err)
	}
	exec(t, conn, "ROLLBACK")

	// It sees progress that is made while it waits, in a session of any search_path.
	exec(t, conn, "CREATE SCHEMA evil; CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz'; SET search_path = evil, pg_catalog", pgx.QueryExecModeSimpleProtocol)
	other := connect(t, url, session.Watch)
	done := make(chan error, 1)
	go func() {
		held, err := wait("0/4000000", "30s")
		if err == nil && !held {
			err = errors.New("timed out")
		}
		done <- err
	}()
	exec(t, other, `INSERT INTO millrace.progress (job, seq, epoch, timeline, committed_lsn, acked_lsn) VALUES ('shop', 9, 1, 2, '0/3000000', '0/4000000')`)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := record.SetState(t.Context(), other, "shop", record.ResyncRequired, "r", "h"); err != nil {
		t.Fatal(err)
	}
	if _, err := wait("0/1", "1s"); err == nil || !strings.Contains(err.Error(), "resync_required") {
		t.Errorf("resync_required: %v", err)
	}
}

func TestView(t *testing.T) {
	_, conn := install(t)
	create(t, conn)
	var columns string
	if err := conn.QueryRow(t.Context(), `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'millrace.job'::regclass`).Scan(&columns); err != nil {
		t.Fatal(err)
	}
	const want = "job text, format integer, generation bigint, epoch bigint, state text, reason text, hint text, system_id text, timeline integer, " +
		"slot text, publication text, tables text[], consistent_point pg_lsn, consistent_from pg_lsn, commit_lsn pg_lsn, committed_lsn pg_lsn, " +
		"acked_lsn pg_lsn, cursor bytea, last_xid bigint, last_commit_ts timestamp with time zone, owns_slot boolean, owns_publication boolean, " +
		"created_at timestamp with time zone, updated_at timestamp with time zone"
	if columns != want {
		t.Errorf("got  %s\nwant %s", columns, want)
	}
	var tables string
	if err := conn.QueryRow(t.Context(), `SELECT array_to_string(tables, ' ') FROM millrace.job`).Scan(&tables); err != nil || tables != `public."Odd.""one" public.item` {
		t.Errorf("tables %s, %v", tables, err)
	}
}

func TestPrivileges(t *testing.T) {
	url := newDB(t)
	admin := connect(t, url, session.Watch)
	exec(t, admin, `DO $$ BEGIN CREATE ROLE "Small One" LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`)
	small := connect(t, strings.Replace(url, "postgres@", "Small%20One@", 1), session.Watch)
	fails := func(hint string) {
		t.Helper()
		err := record.Install(t.Context(), small)
		if millrace.KindOf(err) != millrace.KindPreflight || !strings.Contains(millrace.HintOf(err), hint) {
			t.Errorf("%v\nhint: %s", err, millrace.HintOf(err))
		}
	}
	fails(`CREATE SCHEMA millrace AUTHORIZATION "Small One"`)
	exec(t, admin, `CREATE SCHEMA millrace`)
	fails(`ALTER SCHEMA millrace OWNER TO "Small One"`)
	exec(t, admin, `DROP SCHEMA millrace`)
	exec(t, admin, `CREATE SCHEMA millrace AUTHORIZATION "Small One"`)
	if err := record.Install(t.Context(), small); err != nil {
		t.Fatal(err)
	}
	if err := record.Create(t.Context(), small, newJob()); err != nil {
		t.Error(err)
	}
	if err := record.Delete(t.Context(), small, "shop"); err != nil {
		t.Error(err)
	}
	exec(t, admin, `DROP SCHEMA millrace CASCADE`)
	if err := record.Install(t.Context(), admin); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, `UPDATE millrace.format SET version = 2`)
	if err := record.Install(t.Context(), admin); millrace.KindOf(err) != millrace.KindPreflight {
		t.Errorf("format 2: %v", err)
	}
	exec(t, admin, `UPDATE millrace.format SET version = 1`)
	fails("GRANT USAGE")
	exec(t, admin, `GRANT USAGE ON SCHEMA millrace TO "Small One"`)
	exec(t, admin, `GRANT SELECT ON millrace.format TO "Small One"`)
	fails(`TO "Small One"`)
}

// TestWaitForIsDurable: what wait_for has answered stays, whatever happens to the
// target right afterwards; also for a role that only reads, and with
// synchronous_commit off on both sides.
func TestWaitForIsDurable(t *testing.T) {
	// Nothing flushes by itself while the test lasts.
	pg := rig.Start(t, rig.Newest, "wal_writer_delay=10s", "synchronous_commit=off", "checkpoint_timeout=1h")
	db := pg.NewDB(t)
	conn := connect(t, db.URL(), session.Watch)
	if err := record.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	j := create(t, conn)
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), 2, 0x1000000); err != nil {
		t.Fatal(err)
	}
	if err := record.SetConsistentFrom(t.Context(), conn, "shop", 0x100); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, "CHECKPOINT")
	exec(t, conn, "SET synchronous_commit = off")
	exec(t, conn, `INSERT INTO millrace.progress (job, seq, epoch, timeline, committed_lsn, acked_lsn) VALUES ('shop', 9, 1, 2, '0/3000000', '0/3000000')`)
	reader := connect(t, db.URL(), session.Watch)
	exec(t, reader, "SET synchronous_commit = off")
	exec(t, reader, "SET default_transaction_read_only = on")
	var held bool
	if err := reader.QueryRow(t.Context(), `SELECT millrace.wait_for('shop', '0/3000000', '5s')`).Scan(&held); err != nil || !held {
		t.Fatalf("%v, %v", held, err)
	}
	pg.Crash(t)
	pg.Restart(t)
	if got := db.Query(t, "SELECT max(acked_lsn) FROM millrace.progress"); got != "0/3000000" {
		t.Errorf("after the crash the target holds %s, though 0/3000000 was answered for", got)
	}
}

// TestHoldBesideARun: what is done beside a run holds whichever instance works on the
// job, but not the load that has replaced its own.
func TestHoldBesideARun(t *testing.T) {
	_, conn := install(t)
	j := create(t, conn)
	if err := record.FirstProgress(t.Context(), conn, j.Fence(), 1, 0x100); err != nil {
		t.Fatal(err)
	}
	if _, _, err := record.Claim(t.Context(), conn, "shop", "a"); err != nil {
		t.Fatal(err)
	}
	aside := j.Fence()
	aside.Epoch = 0
	other := aside
	other.Generation++
	for _, c := range []struct {
		f    record.Fence
		want error
	}{{j.Fence(), record.ErrFenced}, {aside, nil}, {other, record.ErrFenced}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := record.Hold(t.Context(), tx, c.f); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.f, err, c.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
