package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
)

// thresholds are what a run may not exceed.
type thresholds struct {
	// Margin is how much worse than Ratios a run may be: 1.4 means by 40 %. Runs
	// of a second on a busy machine scatter.
	Margin float64 `json:"margin"`
	// Ratios holds what was measured, by mode, set and peer: Millrace's median
	// time as a multiple of the peer's, or its median latency.
	Ratios map[string]map[string]map[string]float64 `json:"ratios"`
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

func (t *thresholds) save(path string) error {
	b, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644) //nolint:gosec // checked in, for everybody to read
}

// limited are the peers that a set is held against.
func limited(kind string) []string {
	if kind == kindLoad {
		return []string{pipeOne, nameNative}
	}
	return []string{nameNative, nameRecv}
}

// ratios gives a set's ratios, by peer: the worst of our contenders against it.
func ratios(s *set) map[string]float64 {
	found := map[string]float64{}
	for _, peer := range limited(s.Kind) {
		for i := range s.Results {
			if c := s.Results[i].Contender; ours(c) {
				if r := s.ratio(c, peer); r > 0 {
					found[peer] = max(found[peer], r)
				}
			}
		}
	}
	return found
}

// accept makes what was measured the yardstick.
func (t *thresholds) accept(mode string, sets []set) {
	for i := range sets {
		for peer, r := range ratios(&sets[i]) {
			if t.Ratios == nil {
				t.Ratios = map[string]map[string]map[string]float64{}
			}
			if t.Ratios[mode] == nil {
				t.Ratios[mode] = map[string]map[string]float64{}
			}
			if t.Ratios[mode][sets[i].Name] == nil {
				t.Ratios[mode][sets[i].Name] = map[string]float64{}
			}
			t.Ratios[mode][sets[i].Name][peer] = math.Round(r*100) / 100
		}
	}
}

// checkRatios compares sets with what was measured before.
func (t *thresholds) checkRatios(mode string, sets []set) error {
	var errs []error
	for i := range sets {
		name := sets[i].Name
		found := ratios(&sets[i])
		for peer, before := range t.Ratios[mode][name] {
			if got, limit := found[peer], before*t.Margin; got > limit {
				errs = append(errs, fmt.Errorf("%s: %.2f × %s, was %.2f, allowed are %.2f", name, got, peer, before, limit))
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
				errs = append(errs, fmt.Errorf("%s: %s takes %s MB of memory, allowed are %s", s.Name, r.Contender, megabytes(got), megabytes(t.PeakBytes)))
			}
		}
	}
	return errors.Join(errs...)
}
