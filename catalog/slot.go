package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// Slot describes a replication slot.
type Slot struct {
	Name           string
	Plugin         string // "" for a physical slot
	Database       string // "" for a physical slot
	Active         bool
	ActivePID      int32 // 0 when not active
	ConfirmedFlush millrace.LSN
	Restart        millrace.LSN // 0 once the slot is lost
	XMin           string       // "" for none
	CatalogXMin    string
	WALStatus      string // reserved, extended, unreserved, lost
	// SafeWALSize is how many bytes of WAL can be written before the slot may
	// be lost; nil without max_slot_wal_keep_size, and once it is lost.
	SafeWALSize *int64
	// InvalidationReason is the server's word for why the slot is lost, or "".
	// Servers before 17 do not tell; 16 has "conflict" only.
	InvalidationReason string
	Temporary          bool
	TwoPhase           bool
	Failover           bool // never before 17
	// Synced is set on a standby for the copy of a slot of its primary, which
	// nobody can read from before a promotion.
	Synced bool
	// RetainedBytes is the WAL from Restart to the server's position.
	RetainedBytes int64
}

// slotSQL takes through jsonb what not all servers have.
const slotSQL = `
SELECT s.slot_name::text, COALESCE(s.plugin::text, ''), COALESCE(s.database::text, ''), s.active,
       COALESCE(s.active_pid, 0), s.confirmed_flush_lsn::text, s.restart_lsn::text,
       COALESCE(s.xmin::text, ''), COALESCE(s.catalog_xmin::text, ''),
       COALESCE(s.wal_status, ''), s.safe_wal_size,
       COALESCE(j ->> 'invalidation_reason', CASE WHEN (j ->> 'conflicting')::bool THEN 'conflict' END, ''),
       s.temporary, COALESCE(s.two_phase, false), COALESCE((j ->> 'failover')::bool, false), COALESCE((j ->> 'synced')::bool, false),
       COALESCE(pg_catalog.pg_wal_lsn_diff(
           CASE WHEN pg_catalog.pg_is_in_recovery()
                THEN pg_catalog.pg_last_wal_replay_lsn()
                ELSE pg_catalog.pg_current_wal_insert_lsn() END, s.restart_lsn), 0)::int8
  FROM pg_catalog.pg_replication_slots s
 CROSS JOIN LATERAL pg_catalog.to_jsonb(s) j
 WHERE s.slot_name = $1`

// ReadSlot reads a replication slot; nil if there is none of that name. Slots
// belong to the whole server: the one found can be of another database.
func ReadSlot(ctx context.Context, q Querier, name string) (*Slot, error) {
	var s Slot
	var confirmed, restart *string
	err := q.QueryRow(ctx, slotSQL, name).Scan(&s.Name, &s.Plugin, &s.Database, &s.Active,
		&s.ActivePID, &confirmed, &restart, &s.XMin, &s.CatalogXMin,
		&s.WALStatus, &s.SafeWALSize, &s.InvalidationReason,
		&s.Temporary, &s.TwoPhase, &s.Failover, &s.Synced, &s.RetainedBytes)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read slot %s: %w", name, err)
	}
	for _, f := range []struct {
		text *string
		lsn  *millrace.LSN
	}{{confirmed, &s.ConfirmedFlush}, {restart, &s.Restart}} {
		if f.text == nil {
			continue
		}
		if *f.lsn, err = millrace.ParseLSN(*f.text); err != nil {
			return nil, fmt.Errorf("read slot %s: %w", name, err)
		}
	}
	return &s, nil
}
