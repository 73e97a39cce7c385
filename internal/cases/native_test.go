package cases

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig"
)

// subscription is PostgreSQL's own logical replication behind the face of a
// job: an oracle for the cases, and a check of the runner.
type subscription struct {
	source, target *rig.DB
}

func newSubscription(t *testing.T, source, target *rig.DB) *subscription {
	t.Helper()
	return &subscription{source: source, target: target}
}

func (s *subscription) Start(t testing.TB) {
	t.Helper()
	n := s.source.Name
	s.source.SQL(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", n))
	s.target.SQL(t, fmt.Sprintf("CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION millrace_%[1]s WITH (create_slot = false, slot_name = '%[1]s', streaming = on)", n, s.source.URL()))
}

func (s *subscription) Wait(timeout time.Duration) error {
	lsn, err := s.source.Server.TryQuery(s.source.Name, "SELECT pg_current_wal_lsn()")
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		flushed, err := s.source.Server.TryQuery(s.source.Name, fmt.Sprintf("SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots WHERE slot_name = '%s'", lsn, s.source.Name))
		if err != nil {
			return err
		}
		loading, err := s.target.Server.TryQuery(s.target.Name, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'")
		if err != nil {
			return err
		}
		if flushed == "t" && loading == "0" {
			return nil
		}
	}
	return fmt.Errorf("not caught up within %v", timeout)
}

func (s *subscription) Refusal(testing.TB) (string, error) {
	return "", errors.New("a subscription does not refuse, it retries")
}
