package airbyte

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/millrace/millrace"
)

// sameRefresh tells whether a full refresh can go on where the state says. Where
// the platform names no generation, only one that is not done can be meant; where
// it asked for increments, it makes no new one and means all rows (see Full).
func sameRefresh(t *tableState, s *ConfiguredStream) bool {
	generation := s.GenerationID
	switch {
	case s.SyncMode != FullRefresh:
		return false
	case t.Generation != nil && generation != nil:
		return *t.Generation == *generation
	case t.Generation != nil || generation != nil:
		return false
	}
	return !t.done()
}

// Refresh says where the full refresh of a stream goes on, that is read by the
// columns of key: behind a key, nil for the beginning, or not at all, since it is
// done.
func (s *Sink) Refresh(name millrace.TableName, key []string) (after []byte, done bool) {
	st := s.streams[name]
	st.readBy = key
	var r refreshed
	if len(st.state.Load) > 0 && !st.state.done() && json.Unmarshal(st.state.Load, &r) != nil {
		return nil, false // of an incremental read
	}
	if !slices.Equal(r.Key, key) {
		r.After = nil // by another key
	}
	return r.After, st.state.done()
}

// Refreshed writes rows of a full refresh. after is the key of the last one, nil if
// the table has none; a state follows if one is due.
func (s *Sink) Refreshed(ctx context.Context, name millrace.TableName, rows []millrace.Change, upto millrace.LSN, after []byte, done bool) error {
	st := s.streams[name]
	now := time.Now()
	s.stamp.set(upto, now, now)
	for i := range rows {
		if err := s.change(ctx, st, &rows[i]); err != nil {
			return err
		}
	}
	st.state.Rows += int64(len(rows))
	switch {
	case done:
		st.state.Load, st.state.Rows = loadDone, 0
	case after == nil:
		return nil // from the beginning, if it does not come to its end
	default:
		load, err := json.Marshal(refreshed{after, st.readBy})
		if err != nil {
			return err
		}
		st.state.Load = load
	}
	if s.dirty = true; done || s.records >= stateRecords || time.Since(s.last) >= stateEvery {
		return s.state()
	}
	return nil
}
