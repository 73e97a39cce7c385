package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// report is one file of bench/results.
type report struct {
	Machine    machine   `json:"machine"`
	PostgreSQL string    `json:"postgresql"`
	Go         string    `json:"go"`
	Settings   []string  `json:"settings"`
	Native     string    `json:"native_options,omitempty"`
	Taken      time.Time `json:"taken"`
	Sets       []set     `json:"sets"`
}

type machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
}

// The kinds of sets.
const (
	kindBacklog   = "backlog"
	kindLatency   = "latency"
	kindLoad      = "load"
	kindMemory    = "memory"
	kindWait      = "wait"
	kindWatch     = "watch"
	kindConnector = "connector"
	kindKafka     = "kafka"
	// kindUnbottle: the way from Kafka beside the direct one. The source's CPU time is
	// the broker's, where that is the source.
	kindUnbottle = "unbottle"
)

// set is what was measured together: figures of different sets can't be
// compared.
type set struct {
	Name         string    `json:"name"`
	Kind         string    `json:"kind"`
	Title        string    `json:"title"`
	Taken        time.Time `json:"taken"`
	Rows         int       `json:"rows,omitempty"`
	Transactions int       `json:"transactions,omitempty"`
	Bytes        int64     `json:"bytes,omitempty"`
	Results      []result  `json:"results"`
}

type result struct {
	Contender string   `json:"contender"`
	Samples   []sample `json:"samples"`
}

// sample is one run. CPU times are those of the whole source server (little
// more than the walsender), the client process, and the whole target server
// without the poller.
type sample struct {
	Seconds     float64  `json:"seconds,omitempty"`
	SourceCPU   float64  `json:"source_cpu_seconds,omitempty"`
	ClientCPU   float64  `json:"client_cpu_seconds,omitempty"`
	TargetCPU   float64  `json:"target_cpu_seconds,omitempty"`
	ForeignCPU  float64  `json:"foreign_cpu_seconds,omitempty"`
	PeakBytes   int64    `json:"peak_bytes,omitempty"`
	MedianBytes int64    `json:"median_bytes,omitempty"`
	RowPath     *int64   `json:"row_path_transactions,omitempty"`
	Latency     *latency `json:"latency_ms,omitempty"`
}

// latency is a distribution in milliseconds.
type latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (s *set) add(contender string, m sample) {
	for i := range s.Results {
		if s.Results[i].Contender == contender {
			s.Results[i].Samples = append(s.Results[i].Samples, m)
			return
		}
	}
	s.Results = append(s.Results, result{contender, []sample{m}})
}

func (s *set) result(contender string) *result {
	for i := range s.Results {
		if s.Results[i].Contender == contender {
			return &s.Results[i]
		}
	}
	return nil
}

// median of one figure over the runs.
func (r *result) median(figure func(sample) float64) float64 {
	var all []float64
	for _, s := range r.Samples {
		all = append(all, figure(s))
	}
	return median(all)
}

func (r *result) seconds() float64 { return r.median(func(s sample) float64 { return s.Seconds }) }

func (r *result) peak() int64 {
	var most int64
	for _, s := range r.Samples {
		most = max(most, s.PeakBytes)
	}
	return most
}

// ratio of the median times of two contenders, or of their median latencies; 0
// when one of them is missing.
func (s *set) ratio(contender, to string) float64 {
	a, b := s.result(contender), s.result(to)
	figure := func(m sample) float64 { return m.Seconds }
	if s.Kind == kindLatency {
		figure = func(m sample) float64 { return m.Latency.P50 }
	}
	if a == nil || b == nil || b.median(figure) == 0 {
		return 0
	}
	return a.median(figure) / b.median(figure)
}

// median is the mean of the two middle values when their number is even.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	all = slices.Clone(all)
	slices.Sort(all)
	h := len(all) / 2
	if len(all)%2 == 1 {
		return all[h]
	}
	return (all[h-1] + all[h]) / 2
}

// put replaces the set of the same name or adds it.
func (r *report) put(s set) {
	for i := range r.Sets {
		if r.Sets[i].Name == s.Name {
			r.Sets[i] = s
			return
		}
	}
	r.Sets = append(r.Sets, s)
}

// loadReport reads a results file; a missing one is an empty report.
func loadReport(path string) (*report, error) {
	var r report
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &r, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, json.Unmarshal(b, &r)
}

func (r *report) save(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // checked in, for everybody to read
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644) //nolint:gosec // likewise
}
