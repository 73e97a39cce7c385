package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/rig/pgserver"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestDistribution(t *testing.T) {
	var d []time.Duration
	for i := 100; i > 0; i-- {
		d = append(d, time.Duration(i)*time.Millisecond)
	}
	if got, want := *distribution(d), (latency{100, 50, 95, 99, 100}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestCtidRanges(t *testing.T) {
	got, err := ctidRanges("11", 2)
	want := []string{" WHERE ctid >= '(0,0)' AND ctid < '(5,0)'", " WHERE ctid >= '(5,0)'"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// A limit for a set that does not exist would never fail.
func TestThresholdsNameSets(t *testing.T) {
	limits, err := loadThresholds("thresholds.json")
	if err != nil {
		t.Fatal(err)
	}
	for mode, sets := range limits.Ratios {
		for name := range sets {
			if word, _, _ := strings.Cut(name, "-"); !slices.Contains(setNames(), word) || mode != "quick" && mode != "full" {
				t.Errorf("no set is called %q in mode %q", name, mode)
			}
		}
	}
	for _, w := range workloads {
		if limits.Ratios["quick"][w.name][nameNative] == 0 {
			t.Errorf("workload %q has no limit", w.name)
		}
		if len(workloadSQL(w.name)) == 0 || w.full%100 != 0 || w.quick%100 != 0 {
			t.Errorf("workload %q: sizes %d and %d", w.name, w.quick, w.full)
		}
	}
}

func TestThresholds(t *testing.T) {
	limits := &thresholds{Margin: 1.25, PeakBytes: 100}
	yardstick := set{Name: "small"}
	yardstick.add(nameNative, sample{Seconds: 2})
	yardstick.add(nameMillrace, sample{Seconds: 1.6})
	limits.accept("quick", []set{yardstick})
	sets := func(ours float64, peak int64) []set {
		s := set{Name: "small"}
		s.add(nameNative, sample{Seconds: 2, PeakBytes: 1000})
		s.add(nameMillrace, sample{Seconds: ours, PeakBytes: peak})
		return []set{s}
	}
	for _, c := range []struct {
		ours           float64
		peak           int64
		slower, larger bool
	}{{1.9, 100, false, false}, {2.1, 100, true, false}, {1, 101, false, true}} {
		s := sets(c.ours, c.peak)
		if err := limits.checkRatios("quick", s); (err != nil) != c.slower {
			t.Errorf("%v: ratio: %v", c, err)
		}
		if err := limits.checkMemory(s); (err != nil) != c.larger {
			t.Errorf("%v: memory: %v", c, err)
		}
	}
}

func TestWriteDocs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	before := "head\n" + beginMark + "\nold\n" + endMark + "\ntail\n"
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	s := set{Name: "small", Kind: kindBacklog, Title: "things", Rows: 300, Transactions: 100}
	s.add(nameMillrace, sample{Seconds: 1, PeakBytes: 3 << 20, RowPath: new(int64)})
	s.add(nameNative, sample{Seconds: 2})
	if err := writeDocs(path, &report{Sets: []set{s}}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, want := range []string{"head\n", "\ntail\n", "| things | native | 1 | 2.00 (2.00–2.00) |", "| 0.50 |", "| 3 | 0.0 % |"} {
		if !strings.Contains(got, want) {
			t.Errorf("the document lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "old") {
		t.Error("what was generated before is still there")
	}
}

// The whole way at the smallest size, with the peers that need nothing of ours.
func TestBacklogOfPeers(t *testing.T) {
	if !pgserver.Have(major) {
		t.Fatalf("no PostgreSQL %d: run `make rig`", major)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "bench"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bench", "thresholds.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{only: []string{"small"}, contenders: []string{"recv", "native"}, rounds: 1, scale: 0.01, verify: "all", write: true, root: root}
	if err := run(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	r, err := loadReport(filepath.Join(root, "bench", "results", "quick.json"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, res := range r.Sets[0].Results {
		seen[res.Contender] = res.seconds() > 0
	}
	if want := map[string]bool{nameRecv: true, nameNative: true}; !maps.Equal(seen, want) {
		t.Errorf("got %v, want %v", seen, want)
	}
}
