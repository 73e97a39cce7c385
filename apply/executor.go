package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
)

// executor owns the connection to the target and executes one batch at a time.
//
// A target transaction is one batch of whole source transactions, or the parts
// of one large source transaction, batch by batch, each behind a savepoint. Its
// last statement but COMMIT inserts the progress row. A small batch of nothing but
// sets has everything checked at the server and is one flight, COMMIT included.
// Otherwise COMMIT waits until the answers are read and right; if the next batch
// is there already, it goes out in one flight with that.
type executor struct {
	sender
	prepareStmts
	job      string
	log      *slog.Logger
	stats    *counters
	origin   bool // the session tags its transactions
	commits  func(millrace.Checkpoint)
	stumbled func()             // sets have failed: what is known of tables may be old
	redo     func(millrace.LSN) // the transaction is to come again, row by row
	fallback func(Fallback)
	// mayClash tells whether a load's rows that were refused may be read again.
	mayClash func() bool
	// ahead gives what was applied of a transaction while it was open.
	ahead       func(xid uint32) *ahead
	aheadFailed func(xid uint32)
	// render gives values as text, on a connection of its own.
	render func(context.Context, *route, millrace.Row) string

	beginStmt, commitStmt, progressStmt, originStmt, markStmt, doneStmt stmt

	// cp is the checkpoint with the progress row that was written last, be it
	// committed or not.
	cp       millrace.Checkpoint
	state    txState
	sent     bool // COMMIT was sent ahead of the next batch and its answer not read
	untold   bool // the batch's own flight has committed it, see publish
	deferred bool // SET CONSTRAINTS ALL DEFERRED holds
	batches  int  // of the open target transaction that have succeeded
	// stored are to be called once what x.cp is the progress of is committed.
	stored []func(committed bool)
	// oneFlight is the most changes of a batch that is counted at the server.
	oneFlight int
	// forced is the transaction whose parts all go row by row.
	forced millrace.LSN
	// counted is the large transaction that was counted as one on the row path.
	counted millrace.LSN
}

// txState is where the target transaction stands.
type txState byte

const (
	txNone  txState = iota
	txOpen          // begun; the source transaction goes on in the next batch
	txReady         // all is done and verified but COMMIT
)

func newExecutor(w *wire, cp millrace.Checkpoint) *executor {
	x := &executor{cp: cp, prepareStmts: newPrepareStmts(), oneFlight: oneFlight,
		beginStmt:    stmt{sql: "BEGIN"},
		commitStmt:   stmt{sql: "COMMIT"},
		progressStmt: stmt{sql: record.AppendSQL, types: record.AppendTypes},
		markStmt:     stmt{sql: record.SetMarkSQL, types: record.MarkTypes},
		doneStmt:     stmt{sql: record.DoneMarkSQL, types: record.DoneTypes},
		originStmt: stmt{sql: "SELECT pg_catalog.pg_replication_origin_xact_setup($1, $2)",
			types: []uint32{oidLSN, oidTimestamptz}},
	}
	x.sender = sender{wire: w, await: x.awaitAll}
	return x
}

const (
	oidTimestamptz = 1184
	oidLSN         = 3220
)

// The references of commands that belong to no table.
type mark string

const (
	markCommit      mark = "commit"
	markConstraints mark = "check deferred constraints"
	markProgress    mark = "write the progress"
	markOther       mark = "apply"
)

// errRedo says that a large transaction has to come again from its start, to be
// applied row by row.
var errRedo = errors.New("it is applied again from its start, row by row")

// execute does a batch. After an error the connection is not used any more.
func (x *executor) execute(ctx context.Context, b *batch) error {
	began, sets, rows := time.Now(), x.setRows, x.rowRows
	defer func() {
		x.stats.busy.Add(int64(time.Since(began)))
		x.stats.setRows.Add(x.setRows - sets)
		x.stats.rowRows.Add(x.rowRows - rows)
	}()
	if b.phase == millrace.AppliedAhead {
		return x.adopt(ctx, b)
	}
	x.batch = b
	clear(x.byName)
	x.atServer, x.careful = x.inOneFlight(b), false
	if b.phase == millrace.CommitPrepared || b.phase == millrace.RollbackPrepared {
		if err := x.decide(ctx, b); err != nil || b.phase == millrace.RollbackPrepared {
			return err
		}
	}
	err := x.attempt(ctx, b)
	var f *failure
	if errors.As(err, &f) && !x.passing(f) {
		err = x.fallBack(ctx, b, f)
	} else if err == nil {
		x.count(b, false)
	}
	if err != nil {
		return x.wrap(b, err)
	}
	x.batches++
	if !b.open && x.state == txOpen {
		x.state = txReady
	}
	return nil
}

// oneFlight: counting at the server saves a round trip a batch and costs a row
// some tenths of a microsecond, so that it is for small batches.
const oneFlight = 512

// inOneFlight tells whether a batch may be committed before its answers are read.
func (x *executor) inOneFlight(b *batch) bool {
	return !b.large && b.phase == millrace.Committed && b.byRow == 0 && !b.merges && b.changes <= x.oneFlight && x.state != txOpen
}

// count counts a batch that was applied, as it was planned or row by row.
func (x *executor) count(b *batch, byRow bool) {
	rows := b.byRow
	if byRow {
		rows = b.complete
	}
	if b.large && (byRow || rows > 0) { // its parts are one transaction
		rows = 0
		if commit := b.txns[0].Commit; x.counted != commit {
			x.counted, rows = commit, 1
		}
	}
	changes := 0
	for _, t := range b.txns {
		changes += len(t.Changes)
	}
	x.stats.transactions.Add(uint64(b.complete))
	x.stats.fallbackTransactions.Add(uint64(rows))
	x.stats.changes.Add(uint64(changes))
	if byRow {
		return
	}
	for i := range b.stages {
		for _, w := range b.stages[i].works {
			if w.hasSets() {
				w.to.worked()
			}
		}
	}
}

// passing tells whether a failure is no answer to the question whether the
// changes can be applied.
func (x *executor) passing(f *failure) bool {
	if f.ref == markPrepare && session.SQLState(f.err) == "53200" {
		return false // no place for one more: what would make room comes behind it
	}
	return f.ref == markCommit || f.ref == markProgress || f.err != nil && session.Retryable(f.err)
}

// attempt executes the batch as it was planned.
func (x *executor) attempt(ctx context.Context, b *batch) error {
	x.begin(b)
	if b.unfoldable || x.forced != 0 && !b.empty() && b.txns[0].Commit == x.forced {
		return &failure{ref: markOther, err: errUnfoldable}
	}
	for i := range b.stages {
		st := &b.stages[i]
		var err error
		switch {
		case st.truncate != nil:
			err = x.change(ctx, st.truncate)
		case st.rows != nil:
			err = x.changes(ctx, st.rows)
		default:
			err = x.stage(ctx, st)
		}
		if err != nil {
			return err
		}
	}
	return x.finish(ctx, b)
}

var errUnfoldable = errors.New("the changes can't be folded")

// begin opens the target transaction, behind the COMMIT of the one before, or a
// savepoint in the one that is open.
func (x *executor) begin(b *batch) {
	switch x.state {
	case txOpen:
		if x.batches > 1 {
			x.command("RELEASE SAVEPOINT part", anyCount, markOther)
		}
		x.command("SAVEPOINT part", anyCount, markOther)
	case txReady:
		x.sendCommit()
		fallthrough
	case txNone:
		x.open()
	}
	x.deferConstraints(b)
}

func (x *executor) open() {
	x.tidy()
	x.bind(&x.beginStmt, 0, false)
	x.wire.execute(anyCount, markOther)
	x.state, x.deferred, x.batches = txOpen, false, 0
}

// deferConstraints makes checks wait for the end: the source's own order within
// a transaction need not satisfy them, and sets have another.
func (x *executor) deferConstraints(b *batch) {
	if b.deferrable && !x.deferred {
		x.command("SET CONSTRAINTS ALL DEFERRED", anyCount, markOther)
		x.deferred = true
	}
}

// finish ends a batch: the checks that were deferred and the progress row, if a
// source transaction ends with it, and the answers to all of it.
func (x *executor) finish(ctx context.Context, b *batch) error {
	commit := x.atServer && len(x.byName) == 0
	x.confirmNames()
	if b.phase == millrace.Prepared && !b.open {
		return x.finishPrepare(ctx, b)
	}
	cp := x.after(b)
	if !b.open {
		if x.deferred {
			x.command("SET CONSTRAINTS ALL IMMEDIATE", anyCount, markConstraints)
		}
		x.forget(b)
		x.writeMarks(b)
		x.writeProgress(cp)
	}
	if commit {
		x.askCommit(cp)
	}
	x.sync()
	if err := x.await(ctx); err != nil {
		return err
	}
	if !b.open {
		x.cp = cp
		x.awaitStored(b)
	}
	if commit {
		x.state, x.untold = txNone, true
	}
	return nil
}

// after gives the checkpoint that the batch leads to.
func (x *executor) after(b *batch) millrace.Checkpoint {
	cp := x.cp
	cp.Seq++
	if t := b.source(); t != nil {
		cp = moved(cp, t)
	}
	cp.Acked = max(cp.Acked, cp.End, b.idle)
	if b.history != nil {
		cp.Timeline = b.history.Timeline
	}
	if n := len(b.txns); n > 0 && b.txns[n-1].Cursor != nil {
		cp.Cursor = b.txns[n-1].Cursor
	}
	return cp
}

// moved gives the checkpoint behind a transaction.
func moved(cp millrace.Checkpoint, t *millrace.Txn) millrace.Checkpoint {
	cp.Commit, cp.End, cp.LastXID = t.Commit, t.End, t.XID
	cp.Acked = max(cp.Acked, cp.End)
	cp.LastTime = 0
	if !t.Time.IsZero() {
		cp.LastTime = t.Time.UnixMicro()
	}
	if t.From != nil {
		cp.Timeline = t.From.Timeline
	}
	return cp
}

// writeMarks writes how far the loads of tables have come, the newest of each.
func (x *executor) writeMarks(b *batch) {
	var marks map[millrace.TableName]millrace.Mark
	for _, t := range b.txns {
		if len(t.Marks) == 0 {
			continue
		}
		if marks == nil {
			marks = make(map[millrace.TableName]millrace.Mark, len(t.Marks))
		}
		maps.Copy(marks, t.Marks)
	}
	for _, m := range marks {
		s, args := &x.markStmt, record.MarkArgs(x.job, &m)
		if m.Done {
			s, args = &x.doneStmt, record.DoneArgs(x.job, &m)
		}
		x.bind(s, len(args), false)
		for _, a := range args {
			x.value(a)
		}
		x.wire.execute(anyCount, markProgress)
	}
}

func (x *executor) writeProgress(cp millrace.Checkpoint) {
	args := record.AppendArgs(x.job, &cp)
	x.bind(&x.progressStmt, len(args), false)
	for _, a := range args {
		x.value(a)
	}
	x.wire.execute(1, markProgress)
}

// askCommit adds COMMIT for what cp is the progress of. The tag comes last:
// PostgreSQL 16 and later move the origin forward even if the transaction aborts.
func (x *executor) askCommit(cp millrace.Checkpoint) {
	if x.origin {
		x.bind(&x.originStmt, 2, false)
		x.value([]byte(cp.Acked.String()))
		at := time.Now()
		if cp.LastTime != 0 {
			at = time.UnixMicro(cp.LastTime)
		}
		x.value(at.UTC().AppendFormat(nil, "2006-01-02 15:04:05.999999Z07:00"))
		x.wire.execute(anyCount, markCommit)
	}
	x.bind(&x.commitStmt, 0, false)
	x.wire.execute(anyCount, markCommit)
}

// sendCommit sends COMMIT for what x.cp is the progress of.
func (x *executor) sendCommit() {
	x.askCommit(x.cp)
	x.sync()
	x.sent = true
}

// commit commits what is ready, without waiting for a next batch.
func (x *executor) commit(ctx context.Context) error {
	if x.state != txReady {
		return nil
	}
	x.sendCommit()
	if err := x.readCommit(ctx); err != nil {
		return x.wrap(nil, err)
	}
	x.state = txNone
	return nil
}

func (x *executor) readCommit(ctx context.Context) error {
	x.sent = false
	if err := x.read(ctx); err != nil {
		return err
	}
	return x.told()
}

// publish tells of a COMMIT that was in the batch's own flight, once the batch is
// counted and released.
func (x *executor) publish() error {
	if !x.untold {
		return nil
	}
	x.untold = false
	return x.wrap(nil, x.told())
}

// told publishes what x.cp is the progress of.
func (x *executor) told() error {
	if x.status != 'I' {
		return fmt.Errorf("the session is in state %q after COMMIT", x.status)
	}
	x.stats.groups.Add(1)
	x.commits(x.cp)
	for _, stored := range x.stored {
		stored(true)
	}
	clear(x.stored)
	x.stored = x.stored[:0]
	return nil
}

// awaitStored takes from the batch's chunks what is called behind its COMMIT.
func (x *executor) awaitStored(b *batch) {
	for _, t := range b.txns {
		if t.Chunk == nil {
			continue
		}
		if stored := t.Stored(); stored != nil {
			x.stored = append(x.stored, stored)
		}
	}
}

// awaitAll reads the answer to a COMMIT that went ahead, if there was one, and
// then those to the rest of the flight.
func (x *executor) awaitAll(ctx context.Context) error {
	if x.sent {
		if err := x.readCommit(ctx); err != nil {
			return err
		}
	}
	return x.read(ctx)
}

// settle reads what is outstanding after a failure, so that the next flight
// starts in step with the server.
func (x *executor) settle(ctx context.Context) error {
	if len(x.asked) == 0 && len(x.out) == 0 {
		return nil
	}
	x.sync()
	err := x.await(ctx)
	var f *failure
	if errors.As(err, &f) && f.ref != markCommit {
		return nil // another consequence of what has failed already
	}
	return err
}

// rollback gives up an open target transaction.
func (x *executor) rollback(ctx context.Context) error {
	if err := x.settle(ctx); err != nil {
		return err
	}
	if x.state == txNone {
		return nil
	}
	x.command("ROLLBACK", anyCount, markOther)
	x.sync()
	x.state = txNone
	return x.await(ctx)
}
