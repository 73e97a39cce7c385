package bootstrap

import (
	"log/slog"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
	krecord "github.com/millrace/millrace/kafka/record"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// Whoever applies has connected again, and so claimed the job anew, while the end of
// the load was under way beside it: that is no other instance.
func TestFinishBesideAnotherEpoch(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, "", "CREATE TABLE late (id int PRIMARY KEY)")
	ctx := t.Context()
	o := b.Options
	o.SchemaMode = SchemaExisting
	l := newRun(o)
	defer l.close()
	var err error
	if l.target, err = o.Target.Connect(ctx, session.Copy); err != nil {
		t.Fatal(err)
	}
	if err := record.Install(ctx, l.target); err != nil {
		t.Fatal(err)
	}
	w := &kafka.Written{Job: "in", History: millrace.History{System: "7", Timeline: 1, Generation: 1}, Point: 100, PageSize: 8192, SegmentSize: 16 << 20}
	if err := l.recordWritten(ctx, w); err != nil {
		t.Fatal(err)
	}
	if err := record.AddTable(ctx, l.target, o.Job, record.Table{OID: 7, Name: millrace.TableName{Schema: "public", Name: "late"}, Copied: true}); err != nil {
		t.Fatal(err)
	}
	writing, err := l.target.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writing.Exec(ctx, "LOCK TABLE public.late"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- FinishFromKafka(ctx, o, 200, nil) }()
	rig.Eventually(t, time.Minute, func() bool {
		n, err := b.dst.Server.TryQuery(b.dst.Name, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'public.late'::regclass")
		return err == nil && n == "1"
	}, "the end of the load waits for the table")
	b.dst.SQL(t, "UPDATE millrace.job_state SET epoch = epoch + 1")
	if err := writing.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := b.jobColumns(t, "consistent_from"); got != "0/C8" {
		t.Errorf("consistent_from is %q", got)
	}
}

// TestKeysThatAFormerRunHasLeft: a run can end between the steps in which foreign keys are made. At the end of
// the load one that was added and not validated is validated; and a table that has joined later gets its own from the next run.
func TestKeysThatAFormerRunHasLeft(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, "", `CREATE TABLE owner (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY); CREATE TABLE joined (id int PRIMARY KEY);
		ALTER TABLE late ADD CONSTRAINT fk FOREIGN KEY (id) REFERENCES owner NOT VALID`)
	ctx := t.Context()
	o := b.Options
	o.SchemaMode = SchemaCreate
	l := newRun(o)
	defer l.close()
	var err error
	if l.target, err = o.Target.Connect(ctx, session.Copy); err != nil {
		t.Fatal(err)
	}
	if err := record.Install(ctx, l.target); err != nil {
		t.Fatal(err)
	}
	w := &kafka.Written{Job: "in", History: millrace.History{System: "7", Timeline: 1, Generation: 1}, Point: 100, PageSize: 8192, SegmentSize: 16 << 20}
	if err := l.recordWritten(ctx, w); err != nil {
		t.Fatal(err)
	}
	versions := map[string]*krecord.TableVersion{}
	for oid, name := range map[uint32]string{7: "late", 8: "joined"} {
		if err := record.AddTable(ctx, l.target, o.Job, record.Table{OID: oid, Name: millrace.TableName{Schema: "public", Name: name}, Copied: true}); err != nil {
			t.Fatal(err)
		}
		versions[name] = &krecord.TableVersion{Schema: "public", Table: name, OID: oid,
			Constraints: []krecord.ConstraintDef{{Name: "fk", Kind: "foreign_key", Definition: "FOREIGN KEY (id) REFERENCES public.owner(id)"}}}
	}
	valid := func(table string) string {
		t.Helper()
		return b.dst.Query(t, "SELECT count(*), bool_and(convalidated) FROM pg_constraint WHERE contype = 'f' AND conrelid = 'public."+table+"'::regclass")
	}
	if err := FinishFromKafka(ctx, o, 200, []*krecord.TableVersion{versions["late"]}); err != nil {
		t.Fatal(err)
	}
	if got := valid("late"); got != "1|t" {
		t.Errorf("foreign keys of the table that was loaded: %s", got)
	}
	if err := record.OweKeys(ctx, l.target, o.Job, 8); err != nil {
		t.Fatal(err)
	}
	u := NewUnbottled(o, func() bool { return false })
	defer u.Close()
	if err := u.Described(ctx, versions["joined"]); err != nil {
		t.Fatal(err)
	}
	if got := valid("joined"); got != "1|t" {
		t.Errorf("foreign keys of the table that has joined: %s", got)
	}
	if got := b.dst.Query(t, "SELECT count(*) FROM millrace.chunk"); got != "0" {
		t.Errorf("%s keys are still owed", got)
	}
}

// TestKeysThatTheSourceDoesNotHold: a foreign key that the source has not looked at all rows for,
// or does not look at, is made like that, and again by the next run, without a look at the rows.
func TestKeysThatTheSourceDoesNotHold(t *testing.T) {
	b := newBed(t, rig.Newest, rig.Newest, "", `CREATE TABLE owner (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)`)
	conn, err := b.Target.Connect(t.Context(), session.Watch)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	v := &krecord.TableVersion{Schema: "public", Table: "late", Constraints: []krecord.ConstraintDef{
		{Name: "a", Kind: "foreign_key", Definition: "FOREIGN KEY (id) REFERENCES public.owner(id) NOT VALID"},
		{Name: "b", Kind: "foreign_key", Definition: "FOREIGN KEY (id) REFERENCES public.owner(id) NOT ENFORCED"}}}
	for _, replica := range []bool{true, false} {
		for range 2 {
			if err := addKeys(t.Context(), conn, v, replica, slog.New(slog.DiscardHandler)); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.dst.Query(t, "SELECT string_agg(conname || convalidated || conenforced, ' ' ORDER BY conname) FROM pg_constraint WHERE contype = 'f'"); got != "afalsetrue bfalsefalse" {
			t.Errorf("replica %v: the keys are %s", replica, got)
		}
		b.dst.SQL(t, "ALTER TABLE late DROP CONSTRAINT a, DROP CONSTRAINT b")
	}
}
