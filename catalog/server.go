package catalog

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// Querier is what the package needs of a connection: *pgx.Conn, pgx.Tx.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Server describes a server and the role that reads it.
type Server struct {
	Version    int // server_version_num, such as 180006
	SystemID   string
	Timeline   int32
	InRecovery bool
	WALLevel   string
	Encoding   string // of the database
	Database   string
	// PageSize and SegmentSize of the WAL, as LSN.Normalize takes them.
	PageSize    uint64
	SegmentSize uint64

	MaxReplicationSlots int
	SlotsUsed           int
	MaxWalSenders       int
	WalSendersUsed      int
	WalSenderTimeout    time.Duration // 0: none
	// MaxSlotWALKeep is max_slot_wal_keep_size in bytes, -1 for no limit.
	MaxSlotWALKeep int64

	Role        string
	Superuser   bool
	Replication bool // the role may open walsender connections
}

// History names the history that the server is writing, for a job's
// generation.
func (s *Server) History(generation int64) millrace.History {
	return millrace.History{System: s.SystemID, Timeline: s.Timeline, Generation: generation}
}

// Major gives the major version, such as 18.
func (s *Server) Major() int { return s.Version / 10000 }

// serverSQL: after a promotion pg_control_checkpoint() shows the old timeline
// until the next checkpoint; the name of the WAL file being written does not.
// A standby has only the former.
const serverSQL = `
SELECT pg_catalog.current_setting('server_version_num')::int,
       (pg_catalog.pg_control_system()).system_identifier::text,
       CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.to_hex((pg_catalog.pg_control_checkpoint()).timeline_id)
            ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8) END,
       pg_catalog.pg_is_in_recovery(),
       pg_catalog.current_setting('server_encoding'),
       pg_catalog.current_database()::text,
       current_user::text,
       r.rolsuper,
       r.rolsuper OR r.rolreplication,
       (SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_replication_slots),
       (SELECT pg_catalog.count(*)::int FROM pg_catalog.pg_stat_replication)
  FROM pg_catalog.pg_roles r
 WHERE r.rolname = current_user`

// The raw numbers of pg_settings, in the unit of each setting; SHOW would give
// them with units. All roles may read them.
const settingsSQL = `
SELECT name, setting FROM pg_catalog.pg_settings
 WHERE name IN ('wal_level', 'wal_block_size', 'wal_segment_size', 'max_replication_slots',
                'max_wal_senders', 'wal_sender_timeout', 'max_slot_wal_keep_size')`

// ReadServer reads what the server says about itself. It needs no privileges.
func ReadServer(ctx context.Context, q Querier) (*Server, error) {
	var s Server
	var timeline string
	err := q.QueryRow(ctx, serverSQL).Scan(&s.Version, &s.SystemID, &timeline, &s.InRecovery, &s.Encoding,
		&s.Database, &s.Role, &s.Superuser, &s.Replication, &s.SlotsUsed, &s.WalSendersUsed)
	if err != nil {
		return nil, fmt.Errorf("read server: %w", err)
	}
	n, err := strconv.ParseInt(timeline, 16, 32)
	if err != nil {
		return nil, fmt.Errorf("read server: timeline %q: %w", timeline, err)
	}
	s.Timeline = int32(n)

	rows, err := q.Query(ctx, settingsSQL)
	if err != nil {
		return nil, fmt.Errorf("read server settings: %w", err)
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { return s.set(name, value) })
	if err != nil {
		return nil, fmt.Errorf("read server settings: %w", err)
	}
	return &s, nil
}

func (s *Server) set(name, value string) error {
	if name == "wal_level" {
		s.WALLevel = value
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	switch name {
	case "wal_block_size":
		s.PageSize = uint64(n)
	case "wal_segment_size":
		s.SegmentSize = uint64(n)
	case "max_replication_slots":
		s.MaxReplicationSlots = int(n)
	case "max_wal_senders":
		s.MaxWalSenders = int(n)
	case "wal_sender_timeout":
		s.WalSenderTimeout = time.Duration(n) * time.Millisecond
	case "max_slot_wal_keep_size":
		s.MaxSlotWALKeep = n
		if n > 0 {
			s.MaxSlotWALKeep = n << 20 // megabytes
		}
	}
	return nil
}

const positionSQL = `
SELECT pg_catalog.pg_is_in_recovery(),
       CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_insert_lsn() END::text,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_block_size')),
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))`

// Position gives the server's position, to compare with positions of the
// stream by >=: the insert position without a page header that is not written
// yet, on a standby the replay position. What was committed before the call,
// asynchronously or not, lies below it.
func Position(ctx context.Context, q Querier) (millrace.LSN, error) {
	var (
		recovery      bool
		text          *string
		page, segment int64
	)
	if err := q.QueryRow(ctx, positionSQL).Scan(&recovery, &text, &page, &segment); err != nil {
		return 0, fmt.Errorf("read position: %w", err)
	}
	if text == nil {
		return 0, fmt.Errorf("read position: the standby has not replayed anything yet")
	}
	lsn, err := millrace.ParseLSN(*text)
	if err != nil {
		return 0, fmt.Errorf("read position: %w", err)
	}
	if recovery {
		return lsn, nil
	}
	return lsn.Normalize(uint64(page), uint64(segment)), nil
}
