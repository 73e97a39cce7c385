package replication

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
)

// Conn sends replication commands. It must have been opened with
// replication=database, and is not safe for concurrent use.
type Conn struct {
	pg *pgconn.PgConn
}

// New takes over a connection.
func New(pg *pgconn.PgConn) *Conn { return &Conn{pg: pg} }

// Close ends the connection. After Start it does nothing: the Stream has it.
func (c *Conn) Close(ctx context.Context) error { return c.pg.Close(ctx) }

// System is what IDENTIFY_SYSTEM says.
type System struct {
	ID       string // system identifier, decimal
	Timeline int32
	Flushed  millrace.LSN // the position up to which the server's log is flushed
	Database string
}

// IdentifySystem asks the server who it is.
func (c *Conn) IdentifySystem(ctx context.Context) (System, error) {
	row, err := c.row(ctx, "IDENTIFY_SYSTEM", 4)
	if err != nil {
		return System{}, err
	}
	timeline, err := strconv.ParseInt(row[1], 10, 32)
	if err != nil {
		return System{}, fmt.Errorf("timeline of the server: %w", err)
	}
	flushed, err := millrace.ParseLSN(row[2])
	if err != nil {
		return System{}, fmt.Errorf("position of the server: %w", err)
	}
	return System{ID: row[0], Timeline: int32(timeline), Flushed: flushed, Database: row[3]}, nil
}

// Switch is the end of a timeline: history went on as another one at End.
type Switch struct {
	Timeline int32
	End      millrace.LSN
}

// TimelineHistory gives the switches that led to the timeline, oldest first.
func (c *Conn) TimelineHistory(ctx context.Context, timeline int32) ([]Switch, error) {
	if timeline == 1 {
		return nil, nil // has no history file
	}
	row, err := c.row(ctx, fmt.Sprintf("TIMELINE_HISTORY %d", timeline), 2)
	if err != nil {
		return nil, err
	}
	return parseHistory(row[1])
}

// parseHistory reads a timeline history file: a line has the timeline, the
// position where it was left, and the reason; comments begin with #.
func parseHistory(content string) ([]Switch, error) {
	var switches []Switch
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 2 {
			return nil, fmt.Errorf("timeline history: line %q has no position", strings.TrimSpace(line))
		}
		timeline, err := strconv.ParseInt(fields[0], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("timeline history: %w", err)
		}
		end, err := millrace.ParseLSN(fields[1])
		if err != nil {
			return nil, fmt.Errorf("timeline history: %w", err)
		}
		switches = append(switches, Switch{Timeline: int32(timeline), End: end})
	}
	return switches, nil
}

// Slot is a slot that was created.
type Slot struct {
	Name string
	// ConsistentPoint is where its stream starts: what commits after it comes.
	ConsistentPoint millrace.LSN
	// Snapshot shows the database exactly as it is at ConsistentPoint. It can
	// be imported until the connection gets its next command or ends.
	Snapshot string
}

// CreateSlotCommand is the command that CreateSlot sends.
func CreateSlotCommand(name string, failover bool) string {
	options := "SNAPSHOT 'export'"
	if failover {
		options += ", FAILOVER true"
	}
	return "CREATE_REPLICATION_SLOT " + millrace.QuoteIdent(name) + " LOGICAL pgoutput (" + options + ")"
}

// CreateSlot makes a slot of the pgoutput plugin and exports its snapshot. It
// waits for all transactions that are writing just now; the server's
// lock_timeout bounds that, its statement_timeout does not. On a standby it
// waits, without a bound, until the primary has logged which transactions run.
// With failover the slot is copied to standbys that ask for it; servers before
// 17, and standbys, refuse that.
func (c *Conn) CreateSlot(ctx context.Context, name string, failover bool) (Slot, error) {
	row, err := c.row(ctx, CreateSlotCommand(name, failover), 4)
	if err != nil {
		return Slot{}, err
	}
	point, err := millrace.ParseLSN(row[1])
	if err != nil {
		return Slot{}, fmt.Errorf("consistent point of the slot: %w", err)
	}
	return Slot{Name: row[0], ConsistentPoint: point, Snapshot: row[2]}, nil
}

// DropSlot removes a slot. With wait it waits until the slot is not in use,
// otherwise that is an error.
func (c *Conn) DropSlot(ctx context.Context, name string, wait bool) error {
	sql := "DROP_REPLICATION_SLOT " + millrace.QuoteIdent(name)
	if wait {
		sql += " WAIT"
	}
	_, err := c.pg.Exec(ctx, sql).ReadAll()
	return err
}

// SlotPID gives the process that serves a slot, 0 for none: whether this
// connection reached the same server as the one that streams from it.
func (c *Conn) SlotPID(ctx context.Context, slot string) (uint32, error) {
	row, err := c.row(ctx, "SELECT COALESCE(pg_catalog.max(active_pid), 0) FROM pg_catalog.pg_replication_slots WHERE slot_name = "+
		millrace.QuoteLiteral(slot), 1)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.ParseUint(row[0], 10, 32)
	return uint32(pid), err
}

// senderTimeout gives the server's wal_sender_timeout, 0 for none.
func (c *Conn) senderTimeout(ctx context.Context) (time.Duration, error) {
	row, err := c.row(ctx, "SELECT (EXTRACT(epoch FROM pg_catalog.current_setting('wal_sender_timeout')::pg_catalog.interval) * 1000)::pg_catalog.int8", 1)
	if err != nil {
		return 0, err
	}
	ms, err := strconv.ParseInt(row[0], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("wal_sender_timeout: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// row runs a command that answers with one row of n columns.
func (c *Conn) row(ctx context.Context, sql string, n int) ([]string, error) {
	results, err := c.pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < n {
		return nil, errors.New("unexpected answer to " + sql)
	}
	row := make([]string, n)
	for i := range row {
		row[i] = string(results[0].Rows[0][i])
	}
	return row, nil
}
