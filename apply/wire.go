package apply

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// wire speaks the extended query protocol on a connection taken over from
// pgconn. It sends many statements in one flight, each with one parameter that
// is encoded straight into the send buffer, COPY among them, and then reads what
// became of them. pgconn's pipeline copies every parameter, gives its buffer to
// the garbage collector after each flush, and can't carry a COPY.
//
// It is not safe for concurrent use. After an error that is not the server's
// the connection can't be used any more.
type wire struct {
	conn net.Conn
	in   *pgproto3.Frontend
	out  []byte
	// msg is where the message that is being built starts, par the parameter.
	msg, par int
	// asked holds what the server still owes an answer for, in order.
	asked  []ask
	failed error // of the connection
	// generation rises when all prepared statements are dropped.
	generation int
	prepared   int
	most       int  // prepared at a time, see maxStatements
	serial     int  // of the last name given to a statement
	status     byte // of the last ReadyForQuery: I idle, T in a transaction, E in a failed one
}

// ask is one thing that was asked of the server in a flight.
type ask struct {
	stmt *stmt // set: a Parse
	// generation is the wire's when the Parse was asked for: its answer may come
	// after statements were dropped.
	generation int
	sync       bool  // a ReadyForQuery ends the flight
	want       int64 // rows that the command must affect, or anyCount
	// counted are the rows that the server makes sure of, see stmt.counted.
	counted int64
	ref     any // for the caller: what the command was
}

// anyCount says that the number of affected rows does not matter.
const anyCount = -1

// stmt is a statement. It is prepared under a name when it is used first, or, if
// it is to be used once, parsed each time.
type stmt struct {
	sql        string
	types      []uint32
	once       bool
	count      *stmt // see counted
	name       string
	generation int // of the wire it is prepared in; 0: nowhere
}

// failure tells which command of a flight did not do what it should.
type failure struct {
	ref  any
	err  error // of the server, or nil when the count was wrong
	want int64
	got  int64 // or unknownCount
}

const unknownCount = -1

func (f *failure) Error() string {
	if f.err != nil {
		return f.err.Error()
	}
	if f.got == unknownCount {
		return fmt.Sprintf("not %d rows affected", f.want)
	}
	return fmt.Sprintf("%d rows affected, want %d", f.got, f.want)
}

func (f *failure) Unwrap() error { return f.err }

// maxStatements bounds how many statements stay prepared at the server, where
// each takes 20 to 35 kB; above it all are dropped. A thousand tables that are
// inserted into and updated need 2,000, and to parse and plan one costs as much
// as some dozens of rows.
const maxStatements = 3000

const (
	flushAbove = 256 << 10 // send when that much is built
	keepBuffer = 8 << 20   // a larger buffer is given back
	maxAsked   = 512       // answers that may be outstanding: they must fit into the socket's buffers
)

func newWire(conn *pgconn.PgConn) (*wire, error) {
	h, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	return &wire{conn: h.Conn, in: h.Frontend, generation: 1, most: maxStatements}, nil
}

func (w *wire) close() error {
	if w.failed == nil {
		_ = w.conn.SetDeadline(time.Now().Add(time.Second)) // Terminate is a courtesy
		w.begin('X')
		w.end()
		_, _ = w.conn.Write(w.out)
	}
	return w.conn.Close()
}

// begin starts a message, end writes its length.
func (w *wire) begin(kind byte) {
	w.out = append(w.out, kind, 0, 0, 0, 0)
	w.msg = len(w.out) - 4
}

func (w *wire) end() {
	binary.BigEndian.PutUint32(w.out[w.msg:], uint32(len(w.out)-w.msg))
}

func (w *wire) cstring(s string) { w.out = append(append(w.out, s...), 0) }
func (w *wire) int16(n int)      { w.out = binary.BigEndian.AppendUint16(w.out, uint16(n)) }
func (w *wire) int32(n int)      { w.out = binary.BigEndian.AppendUint32(w.out, uint32(n)) }

// parse sends a Parse.
func (w *wire) parse(s *stmt) {
	w.begin('P')
	w.cstring(s.name)
	w.cstring(s.sql)
	w.int16(len(s.types))
	for _, t := range s.types {
		w.int32(int(t))
	}
	w.end()
	w.asked = append(w.asked, ask{stmt: s, generation: w.generation})
}

// prepare makes sure that the server has the statement. A name is never used
// twice, so that it does not matter whether a Parse in a failed flight was done.
func (w *wire) prepare(s *stmt) {
	if !s.once {
		if s.generation == w.generation {
			return
		}
		for i := range w.asked {
			if w.asked[i].stmt == s && w.asked[i].generation == w.generation {
				return // in this flight
			}
		}
		w.serial++
		s.name = "m" + strconv.Itoa(w.serial)
	}
	w.parse(s)
}

// bind starts the use of a statement: n parameters follow, each between param
// and paramEnd or as a whole through value.
func (w *wire) bind(s *stmt, n int, binaryFormat bool) {
	w.prepare(s)
	w.begin('B')
	w.cstring("")
	w.cstring(s.name)
	w.int16(1)
	if binaryFormat {
		w.int16(1)
	} else {
		w.int16(0)
	}
	w.int16(n)
}

func (w *wire) param() {
	w.par = len(w.out)
	w.int32(0)
}

func (w *wire) paramEnd() {
	binary.BigEndian.PutUint32(w.out[w.par:], uint32(len(w.out)-w.par-4))
}

// value adds a whole parameter; nil is NULL.
func (w *wire) value(v []byte) {
	if v == nil {
		w.int32(-1)
		return
	}
	w.int32(len(v))
	w.out = append(w.out, v...)
}

// execute ends the Bind and runs the portal.
func (w *wire) execute(want int64, ref any) {
	w.int16(0) // no result columns in binary
	w.end()
	w.run(want, ref)
}

// executeCounted is execute for a statement that counts at the server.
func (w *wire) executeCounted(rows int64, ref any) {
	w.execute(1, ref) // the row with the quotient
	w.asked[len(w.asked)-1].counted = rows
}

func (w *wire) run(want int64, ref any) {
	w.begin('E')
	w.cstring("")
	w.int32(0)
	w.end()
	w.asked = append(w.asked, ask{want: want, ref: ref})
}

// command runs a statement without parameters, parsed anew.
func (w *wire) command(sql string, want int64, ref any) {
	w.bind(&stmt{sql: sql, once: true}, 0, false)
	w.execute(want, ref)
}

// sync ends a flight. Without it the server would wait with its answers.
func (w *wire) sync() {
	w.begin('S')
	w.end()
	w.asked = append(w.asked, ask{sync: true})
}

// spill sends what is built so far when it has become much.
func (w *wire) spill(ctx context.Context) error {
	if len(w.out) < flushAbove {
		return nil
	}
	return w.flush(ctx)
}

func (w *wire) flush(ctx context.Context) error {
	if w.failed != nil || len(w.out) == 0 {
		return w.failed
	}
	stop := w.watch(ctx)
	_, err := w.conn.Write(w.out)
	if stopped := stop(); err == nil && !stopped {
		err = ctx.Err()
	}
	if err != nil {
		return w.fail(ctx, err)
	}
	if cap(w.out) > keepBuffer {
		w.out = nil
	}
	w.out = w.out[:0]
	return nil
}

// watch lets the end of ctx interrupt reads and writes.
func (w *wire) watch(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { _ = w.conn.SetDeadline(time.Unix(1, 0)) })
}

func (w *wire) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	w.failed = fmt.Errorf("connection lost: %w", err)
	return w.failed
}

// read flushes and reads the answers up to the next sync. A *failure is the
// first command that went wrong; what follows it in the flight was not done.
func (w *wire) read(ctx context.Context) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	stop := w.watch(ctx)
	first, err := w.answers()
	if stopped := stop(); err == nil && !stopped {
		err = ctx.Err()
	}
	if err != nil {
		return w.fail(ctx, err)
	}
	if first != nil {
		return first
	}
	return nil
}

// answers reads up to a ReadyForQuery. The error is one of the connection.
func (w *wire) answers() (first *failure, err error) {
	next := 0 // the oldest thing that is not answered yet
	for {
		msg, err := w.in.Receive()
		if err != nil {
			return nil, err
		}
		switch msg := msg.(type) {
		case *pgproto3.ParseComplete:
			if next < len(w.asked) {
				w.parsed(&w.asked[next])
			}
			next++
		case *pgproto3.CommandComplete:
			if next >= len(w.asked) || w.asked[next].sync {
				return nil, fmt.Errorf("unexpected answer %s", msg.CommandTag)
			}
			a := &w.asked[next]
			got := pgconn.NewCommandTag(string(msg.CommandTag)).RowsAffected()
			if a.want != anyCount && got != a.want && first == nil {
				first = &failure{ref: a.ref, want: a.want, got: got}
			}
			next++
		case *pgproto3.ErrorResponse:
			pgErr := pgconn.ErrorResponseToPgError(msg)
			if fatal(pgErr) {
				return nil, pgErr
			}
			if first == nil {
				first = w.refused(next, pgErr)
			}
			for next < len(w.asked) && !w.asked[next].sync {
				next++ // skipped by the server
			}
		case *pgproto3.ReadyForQuery:
			w.status = msg.TxStatus
			for next < len(w.asked) && !w.asked[next].sync {
				next++
			}
			w.asked = w.asked[:copy(w.asked, w.asked[min(next+1, len(w.asked)):])]
			return first, nil
		}
	}
}

// refused is the failure of asked[next] with an error of the server.
func (w *wire) refused(next int, err *pgconn.PgError) *failure {
	if next >= len(w.asked) {
		return &failure{err: err}
	}
	if n := w.asked[next].counted; n > 0 && err.Code == "22012" {
		return &failure{ref: w.asked[next].ref, want: n, got: unknownCount}
	}
	return &failure{ref: w.refFrom(next), err: err}
}

// fatal tells whether the server ends the session with this error.
func fatal(err *pgconn.PgError) bool {
	return err.Severity == "FATAL" || err.Severity == "PANIC" ||
		err.SeverityUnlocalized == "FATAL" || err.SeverityUnlocalized == "PANIC"
}

// refFrom gives the reference of the command that asked[i] belongs to: that of
// a Parse is with the command behind it.
func (w *wire) refFrom(i int) any {
	for ; i < len(w.asked) && !w.asked[i].sync; i++ {
		if w.asked[i].stmt == nil {
			return w.asked[i].ref
		}
	}
	return nil
}

func (w *wire) parsed(a *ask) {
	if s := a.stmt; s != nil && !s.once && a.generation == w.generation {
		s.generation = w.generation
		w.prepared++
	}
}

// tidy drops the prepared statements once there are too many; it belongs
// between two flights.
func (w *wire) tidy() {
	if w.prepared <= w.most {
		return
	}
	w.command("DEALLOCATE ALL", anyCount, nil)
	w.generation++
	w.prepared = 0
}
