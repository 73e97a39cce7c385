package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// nativeApplier is CREATE SUBSCRIPTION with its fastest settings.
type nativeApplier struct {
	subscribed bool
}

func (*nativeApplier) name() string                          { return nameNative }
func (*nativeApplier) prepare(context.Context, *stage) error { return nil }
func (*nativeApplier) broken() error                         { return nil }

// nativeOptions are the best that PostgreSQL 18 has for throughput.
const nativeOptions = "binary = true, streaming = parallel, synchronous_commit = off"

func (a *nativeApplier) arm(ctx context.Context, s *stage) error {
	if err := s.target.recreate(ctx, runDB, baseDB); err != nil {
		return err
	}
	if err := s.source.copySlot(ctx, baseSlot, runSlot); err != nil {
		return err
	}
	err := s.target.exec(ctx, runDB, fmt.Sprintf(
		"CREATE SUBSCRIPTION bench CONNECTION '%s' PUBLICATION %s WITH (enabled = false, create_slot = false, slot_name = '%s', copy_data = false, %s)",
		s.source.URL(sourceDB), publication, runSlot, nativeOptions))
	a.subscribed = err == nil
	return err
}

func (*nativeApplier) start(ctx context.Context, s *stage) error {
	return s.target.exec(ctx, runDB, "ALTER SUBSCRIPTION bench ENABLE")
}

// observe notes the memory of the workers without the shared buffers that they
// touched: not the same measure as a client's resident memory.
func (*nativeApplier) observe(ctx context.Context, s *stage, m *sample) {
	pids, err := s.target.value(ctx, runDB, "SELECT string_agg(pid::text, ' ') FROM pg_stat_subscription")
	if err != nil {
		return
	}
	for _, f := range strings.Fields(pids) {
		if pid, err := strconv.Atoi(f); err == nil {
			m.PeakBytes += memoryOf(pid, "RssAnon")
		}
	}
}

func (a *nativeApplier) disarm(ctx context.Context, s *stage) error {
	if !a.subscribed {
		return s.source.dropSlot(ctx, runSlot)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a.subscribed = false
	return errors.Join(
		s.target.exec(ctx, runDB, "ALTER SUBSCRIPTION bench DISABLE", "ALTER SUBSCRIPTION bench SET (slot_name = NONE)", "DROP SUBSCRIPTION bench"),
		s.source.dropSlot(ctx, runSlot))
}
