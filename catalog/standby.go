package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Standby is what a hot standby says of its place behind a primary.
type Standby struct {
	// Feedback is hot_standby_feedback: the primary keeps what is needed here.
	Feedback bool
	// PrimarySlot is primary_slot_name, "" for none.
	PrimarySlot string
	// Receiving tells whether a WAL receiver runs.
	Receiving bool
	// StreamingDelay is max_standby_streaming_delay in milliseconds, -1 for no
	// limit: how long replay waits for a query that is in its way.
	StreamingDelay int64
	// SyncSlots is sync_replication_slots, never before 17.
	SyncSlots bool
}

const standbySQL = `
SELECT pg_catalog.current_setting('hot_standby_feedback')::bool,
       pg_catalog.current_setting('primary_slot_name'),
       EXISTS (SELECT FROM pg_catalog.pg_stat_wal_receiver),
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'max_standby_streaming_delay'),
       COALESCE(pg_catalog.current_setting('sync_replication_slots', true)::bool, false)`

// ReadStandby reads it. It needs no privileges.
func ReadStandby(ctx context.Context, q Querier) (*Standby, error) {
	var s Standby
	err := q.QueryRow(ctx, standbySQL).Scan(&s.Feedback, &s.PrimarySlot, &s.Receiving, &s.StreamingDelay, &s.SyncSlots)
	if err != nil {
		return nil, fmt.Errorf("read standby: %w", err)
	}
	return &s, nil
}

// PhysicalSlots names the slots that standbys read from.
func PhysicalSlots(ctx context.Context, q Querier) ([]string, error) {
	rows, err := q.Query(ctx, `SELECT slot_name::text FROM pg_catalog.pg_replication_slots WHERE slot_type = 'physical' AND NOT temporary ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("read physical slots: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read physical slots: %w", err)
	}
	return names, nil
}
