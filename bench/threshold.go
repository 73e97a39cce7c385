package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// thresholds are what a run may not exceed. They are generous: quick runs of a
// second on a busy machine scatter.
type thresholds struct {
	// Ratios holds, by workload and then by peer, the most that Millrace's time
	// may be, as a multiple of the peer's.
	Ratios map[string]map[string]float64 `json:"ratios"`
	// PeakBytes is the most resident memory that Millrace may ever take.
	PeakBytes int64 `json:"peak_bytes"`
}

func loadThresholds(path string) (*thresholds, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var t thresholds
	if err := json.Unmarshal(b, &t); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &t, nil
}

// checkRatios compares backlog and load sets with their limits.
func (t *thresholds) checkRatios(sets []set) error {
	var errs []error
	for _, s := range sets {
		for peer, limit := range t.Ratios[s.Name] {
			for _, r := range s.Results {
				if !ours(r.Contender) {
					continue
				}
				if got := s.ratio(r.Contender, peer); got > limit {
					errs = append(errs, fmt.Errorf("%s: %s takes %.2f times as long as %s, allowed are %.2f", s.Name, r.Contender, got, peer, limit))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func (t *thresholds) checkMemory(sets []set) error {
	var errs []error
	for _, s := range sets {
		for _, r := range s.Results {
			if got := r.peak(); ours(r.Contender) && got > t.PeakBytes {
				errs = append(errs, fmt.Errorf("%s: %s takes %s of memory, allowed are %s", s.Name, r.Contender, megabytes(got), megabytes(t.PeakBytes)))
			}
		}
	}
	return errors.Join(errs...)
}
