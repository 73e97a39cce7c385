package record

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// State is a job's state as users see it.
type State string

// The states of a job.
const (
	Preflight      State = "preflight"
	Bootstrapping  State = "bootstrapping"
	CatchingUp     State = "catching_up"
	Streaming      State = "streaming"
	Paused         State = "paused"
	Stopped        State = "stopped"
	Failed         State = "error"
	ResyncRequired State = "resync_required"
)

// Job is a job's slow state. Its progress is the Checkpoint that Read returns
// beside it.
type Job struct {
	Name       string
	Format     int
	Generation int64
	Epoch      int64
	State      State
	Reason     string
	Hint       string
	SystemID   string // of the source
	Timeline   int32
	// PageSize and SegmentSize are those of the source's WAL; zero means
	// 8192 and 16 MiB. wait_for needs them to normalise tokens.
	PageSize, SegmentSize uint64
	Slot, Publication     string
	Mode                  string // snapshot.mode
	Early                 bool   // of a prefix: records say whether they may come before their rows
	Tables                []Table
	ConsistentPoint       millrace.LSN // of the slot, 0 until it exists
	ConsistentFrom        millrace.LSN // 0 until the target is consistent
	OwnsSlot              bool
	OwnsPublication       bool
	// Follows, if it is not 0, is the generation that Create takes instead of the
	// next one: that of the records which the source holds.
	Follows              int64
	Set                  int64     // number of the set of tables; RaiseSet raises it
	LoadStarted          time.Time // zero: not started
	CreatedAt, UpdatedAt time.Time
}

// Fence gives what a writer must hold to write for the job.
func (j *Job) Fence() Fence {
	return Fence{Job: j.Name, Generation: j.Generation, Epoch: j.Epoch}
}

// Table is one table of the job's set, named by its OID at the source.
type Table struct {
	OID       uint32
	Name      millrace.TableName // at the source, and so on the target
	TargetOID uint32             // 0: not known yet
	Filenode  uint32             // at the source when Shape was recorded
	Shape     string             // catalog.ShapeOf
	Copied    bool
	Adding    bool  // see BeginAdding
	Rows      int64 // copied
	Bytes     int64
}

// ErrNoJob says that the target holds no record of the job.
var ErrNoJob = errors.New("no record of the job")

// ErrFenced says that another instance took the job over.
var ErrFenced = errors.New("another instance has taken over")

const selectJob = `
SELECT s.format, s.generation, s.epoch, s.state, coalesce(s.reason, ''), coalesce(s.hint, ''),
       s.system_id, s.timeline, s.page_size, s.segment_size, s.slot, s.publication, s.mode,
       s.consistent_point::text, s.consistent_from::text, s.owns_slot, s.owns_publication,
       s.table_set, s.load_started, s.created_at, greatest(s.updated_at, p.written_at),
       coalesce(p.seq, 0), coalesce(p.timeline, s.timeline), p.commit_lsn::text, p.committed_lsn::text,
       p.acked_lsn::text, coalesce(p.last_xid, 0), p.last_commit_ts, p.cursor
  FROM millrace.job_state s
  LEFT JOIN LATERAL (SELECT q.* FROM millrace.progress q WHERE q.job = s.job ORDER BY q.seq DESC LIMIT 1) p ON true
 WHERE s.job = $1`

// Read gives the job's record and checkpoint, or nil when there is none, be it
// for want of the schema. It takes two statements: inside a repeatable read
// transaction they agree, outside the tables may be newer than the rest.
func Read(ctx context.Context, q Querier, job string) (*Job, millrace.Checkpoint, error) {
	const op = "read the job's record"
	var none millrace.Checkpoint
	found, err := installed(ctx, q)
	if err != nil || !found {
		return nil, none, err
	}
	j := &Job{Name: job}
	cp := millrace.Checkpoint{}
	var point, from, commit, committed, acked *string
	var started, last *time.Time
	var xid, page, segment int64
	err = q.QueryRow(ctx, selectJob, job).Scan(&j.Format, &j.Generation, &j.Epoch, &j.State, &j.Reason, &j.Hint,
		&j.SystemID, &j.Timeline, &page, &segment, &j.Slot, &j.Publication, &j.Mode,
		&point, &from, &j.OwnsSlot, &j.OwnsPublication, &j.Set, &started, &j.CreatedAt, &j.UpdatedAt,
		&cp.Seq, &cp.Timeline, &commit, &committed, &acked, &xid, &last, &cp.Cursor)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, none, nil
	}
	if err != nil {
		return nil, none, wrap(op, err)
	}
	cp.System, cp.Generation, cp.Epoch, cp.LastXID = j.SystemID, j.Generation, j.Epoch, uint32(xid)
	j.PageSize, j.SegmentSize, j.Timeline = uint64(page), uint64(segment), cp.Timeline
	for _, l := range []struct {
		to   *millrace.LSN
		text *string
	}{{&j.ConsistentPoint, point}, {&j.ConsistentFrom, from}, {&cp.Commit, commit}, {&cp.End, committed}, {&cp.Acked, acked}} {
		if l.text == nil {
			continue
		}
		if *l.to, err = millrace.ParseLSN(*l.text); err != nil {
			return nil, none, wrap(op, err)
		}
	}
	if started != nil {
		j.LoadStarted = started.UTC()
	}
	if last != nil {
		cp.LastTime = last.UnixMicro()
	}
	j.CreatedAt, j.UpdatedAt = j.CreatedAt.UTC(), j.UpdatedAt.UTC()
	if j.Tables, err = Tables(ctx, q, job); err != nil {
		return nil, none, err
	}
	cp.Tables, err = Marks(ctx, q, job)
	return j, cp, err
}

// Tables gives the job's set of tables, in the order of their names.
func Tables(ctx context.Context, q Querier, job string) ([]Table, error) {
	rows, err := q.Query(ctx, `
		SELECT oid, schema_name, table_name, target_oid, filenode, shape, copied, adding, rows, bytes
		  FROM millrace.job_table WHERE job = $1 ORDER BY schema_name, table_name`, job)
	if err != nil {
		return nil, wrap("read the job's tables", err)
	}
	defer rows.Close()
	var tables []Table
	for rows.Next() {
		var t Table
		var oid, target, filenode int64
		if err := rows.Scan(&oid, &t.Name.Schema, &t.Name.Name, &target, &filenode, &t.Shape,
			&t.Copied, &t.Adding, &t.Rows, &t.Bytes); err != nil {
			return nil, wrap("read the job's tables", err)
		}
		t.OID, t.TargetOID, t.Filenode = uint32(oid), uint32(target), uint32(filenode)
		tables = append(tables, t)
	}
	return tables, wrap("read the job's tables", rows.Err())
}

// Create records a new generation of the job, before its slot exists: durably,
// since a slot whose record is lost holds up the source for ever. It sets Format, Generation and Epoch in j. j.Generation must be the generation that
// Read gave, 0 for none: what that one left is removed; if another instance was
// faster, Create fails and changes nothing. With Follows a generation may come
// again: the caller has ended the former writers (Seize), which it would not fence.
func Create(ctx context.Context, db DB, j *Job) error {
	const op = "record the job"
	if j.PageSize == 0 {
		j.PageSize = 8192
	}
	if j.SegmentSize == 0 {
		j.SegmentSize = 16 << 20
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer tx.Rollback(ctx)
	if err := durably(ctx, tx); err != nil {
		return wrap(op, err)
	}
	generation, epoch := int64(0), int64(0)
	err = tx.QueryRow(ctx, `
		INSERT INTO millrace.generation AS g (job, last) VALUES ($1, 1)
		ON CONFLICT (job) DO UPDATE SET last = g.last + 1 RETURNING last`, j.Name).Scan(&generation)
	if err != nil {
		return wrap(op, err)
	}
	if j.Follows != 0 {
		generation = j.Follows
	}
	var previous int64
	err = tx.QueryRow(ctx, `SELECT generation, epoch FROM millrace.job_state WHERE job = $1`, j.Name).
		Scan(&previous, &epoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return wrap(op, err)
	}
	if previous != j.Generation {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: op, Peer: millrace.PeerDestination,
			Err: fmt.Errorf("another instance has just recorded job %s", j.Name)}
	}
	if err := remove(ctx, tx, j.Name); err != nil {
		return wrap(op, err)
	}
	now := time.Now()
	var started *time.Time
	if !j.LoadStarted.IsZero() {
		started = &j.LoadStarted
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO millrace.job_state (job, format, generation, epoch, state, reason, hint, system_id, timeline,
		    page_size, segment_size, slot, publication, mode, owns_slot, owns_publication, load_started)
		VALUES ($1, $2, $3, $4, $5, nullif($6, ''), nullif($7, ''), $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`,
		j.Name, Format, generation, epoch+1, string(j.State), j.Reason, j.Hint, j.SystemID, j.Timeline,
		int64(j.PageSize), int64(j.SegmentSize), j.Slot, j.Publication, j.Mode, j.OwnsSlot, j.OwnsPublication, started)
	if err != nil {
		return wrap(op, err)
	}
	if err := insertTables(ctx, tx, j.Name, j.Tables); err != nil {
		return wrap(op, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return wrap(op, err)
	}
	j.Format, j.Generation, j.Epoch, j.CreatedAt, j.UpdatedAt = Format, generation, epoch+1, now, now
	return nil
}

// AddTable records one more table.
func AddTable(ctx context.Context, db DB, job string, t Table) error {
	return wrap("record table "+t.Name.String(), insertTables(ctx, db, job, []Table{t}))
}

func insertTables(ctx context.Context, db DB, job string, tables []Table) error {
	for i := range tables {
		t := &tables[i]
		_, err := db.Exec(ctx, `
			INSERT INTO millrace.job_table (job, oid, schema_name, table_name, target_oid, filenode, shape, copied, rows, bytes)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			job, int64(t.OID), t.Name.Schema, t.Name.Name, int64(t.TargetOID), int64(t.Filenode), t.Shape,
			t.Copied, t.Rows, t.Bytes)
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete removes the job's records and, where the role may, its replication
// origin. What stays is the number of its last generation.
func Delete(ctx context.Context, db DB, job string) error {
	const op = "remove the job's record"
	found, err := installed(ctx, db)
	if err != nil || !found {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return wrap(op, err)
	}
	defer tx.Rollback(ctx)
	if err := remove(ctx, tx, job); err != nil {
		return wrap(op, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return wrap(op, err)
	}
	return dropOrigin(ctx, db, job)
}

func remove(ctx context.Context, db DB, job string) error {
	if err := dropAllStaging(ctx, db, job); err != nil {
		return err
	}
	for _, table := range []string{"progress", "prepared", "chunk", "job_table", "runtime", "job_state"} {
		if _, err := db.Exec(ctx, `DELETE FROM millrace.`+table+` WHERE job = $1`, job); err != nil {
			return err
		}
	}
	return nil
}
