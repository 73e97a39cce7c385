package main

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// Between these lines of the document everything is generated.
const (
	beginMark = "<!-- bench: begin -->"
	endMark   = "<!-- bench: end -->"
)

// writeDocs replaces the generated part of the document.
func writeDocs(path string, r *report) error {
	return replaceBetween(path, beginMark, endMark, r.markdown())
}

func replaceBetween(path, begin, end, text string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(b, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the lines %s and %s", path, begin, end)
	}
	var out bytes.Buffer
	out.Write(head)
	fmt.Fprintf(&out, "%s\n\n%s\n%s", begin, text, end)
	out.Write(tail)
	return os.WriteFile(path, out.Bytes(), 0o644) //nolint:gosec // a document
}

// markdown is the whole report.
func (r *report) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d × %s, %d GiB, Linux %s; PostgreSQL %s on both sides (%s); Go %s; %s.\n",
		r.Machine.Cores, r.Machine.CPU, r.Machine.MemoryBytes>>30, r.Machine.Kernel, r.PostgreSQL,
		strings.Join(r.Settings, ", "), r.Go, r.Taken.Format("2006-01-02"))
	for _, kind := range []struct{ kind, heading string }{
		{kindBacklog, "Backlog"},
		{kindLatency, "Latency"},
		{kindLoad, "First load"},
		{kindWait, "Waiting for a commit"},
		{kindWatch, "Being watched"},
		{kindConnector, "The connector"},
		{kindMemory, "Memory"},
	} {
		b.WriteString(r.section(kind.kind, kind.heading))
	}
	return b.String()
}

// section is the table of all sets of a kind; nothing without any.
func (r *report) section(kind, heading string) string {
	var sets []set
	for _, s := range r.Sets {
		if s.Kind == kind {
			sets = append(sets, s)
		}
	}
	if len(sets) == 0 {
		return ""
	}
	return fmt.Sprintf("\n### %s\n\n%s", heading, tableOf(kind, sets).markdown())
}

// text is the set for the terminal.
func (s *set) text() string { return tableOf(s.Kind, []set{*s}).text() + "\n" }

// grid is a table of texts; the first row is the heading.
type grid [][]string

func tableOf(kind string, sets []set) grid {
	var g grid
	switch kind {
	case kindBacklog, kindConnector, kindMemory:
		g = grid{{"workload", "contender", "n", "seconds (min–max)", "rows/s", "tx/s", "× recv", "× native", "CPU s source/client/target", "peak MB", "row path"}}
	case kindLoad:
		g = grid{{"load", "contender", "n", "seconds (min–max)", "rows/s", "MB/s", "× pipe", "× native", "CPU s source/client/target", "peak MB"}}
	case kindLatency:
		g = grid{{"rate", "contender", "n", "p50 ms", "p95 ms", "p99 ms", "max ms", "CPU s source/client/target", "peak MB"}}
	case kindWait:
		g = grid{{"load", "waited for", "n", "p50 ms", "p95 ms", "p99 ms", "max ms"}}
	case kindKafka:
		g = grid{{"workload", "contender", "n", "seconds (min–max)", "rows/s", "rows/s × Debezium", "CPU s source/client/broker", "client CPU × Debezium", "foreign CPU s", "peak MB"}}
	case kindUnbottle:
		g = grid{{"workload", "way", "n", "seconds (min–max)", "rows/s", "rows/s × direct", "CPU s source/client/target", "foreign CPU s", "peak MB"}}
	case kindWatch:
		g = grid{{"load", "watched", "n", "p50 ms", "p95 ms", "p99 ms", "max ms", "CPU s client"}}
	}
	for i := range sets {
		s := &sets[i]
		sortSets(s)
		for j := range s.Results {
			g = append(g, s.row(&s.Results[j]))
		}
	}
	return g
}

// sortSets puts our own results last.
func sortSets(s *set) {
	slices.SortStableFunc(s.Results, func(a, b result) int {
		if ours(a.Contender) == ours(b.Contender) {
			return 0
		}
		if ours(a.Contender) {
			return 1
		}
		return -1
	})
}

func ours(contender string) bool { return strings.HasPrefix(contender, nameMillrace) }

func (s *set) row(r *result) []string {
	row := []string{s.Title, r.Contender, fmt.Sprint(len(r.Samples))}
	if s.Kind == kindLatency || s.Kind == kindWait || s.Kind == kindWatch {
		for _, f := range []func(*latency) float64{
			func(l *latency) float64 { return l.P50 },
			func(l *latency) float64 { return l.P95 },
			func(l *latency) float64 { return l.P99 },
			func(l *latency) float64 { return l.Max },
		} {
			row = append(row, fmt.Sprintf("%.2f", r.median(func(m sample) float64 { return f(m.Latency) })))
		}
		switch s.Kind {
		case kindLatency:
			row = append(row, r.cpu(), megabytes(r.peak()))
		case kindWatch:
			row = append(row, fmt.Sprintf("%.3f", r.median(func(m sample) float64 { return m.ClientCPU })))
		}
		return row
	}
	took := r.seconds()
	row = append(row, r.spread(), rate(s.Rows, took))
	switch s.Kind {
	case kindKafka:
		return append(row, s.kafkaRow(r)...)
	case kindUnbottle:
		return append(row, ratioText(s.ratio(nameDirect, r.Contender)), r.cpu(), r.foreign(), megabytes(r.peak()))
	}
	base := nameRecv
	if s.Kind == kindLoad {
		base = pipeOne
		row = append(row, fmt.Sprintf("%.0f", float64(s.Bytes)/took/1e6))
	} else {
		row = append(row, rate(s.Transactions, took))
	}
	row = append(row, ratioText(s.ratio(r.Contender, base)), ratioText(s.ratio(r.Contender, nameNative)), r.cpu(), megabytes(r.peak()))
	if s.Kind != kindLoad {
		row = append(row, r.rowPath(s.Transactions))
	}
	return row
}

// spread is the median with the extremes.
func (r *result) spread() string {
	low, high := math.Inf(1), 0.0
	for _, s := range r.Samples {
		low, high = min(low, s.Seconds), max(high, s.Seconds)
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", r.seconds(), low, high)
}

func (r *result) cpu() string {
	part := func(figure func(sample) float64) string {
		if v := r.median(figure); v > 0 {
			return fmt.Sprintf("%.2f", v)
		}
		return "–"
	}
	return part(func(s sample) float64 { return s.SourceCPU }) + " / " +
		part(func(s sample) float64 { return s.ClientCPU }) + " / " +
		part(func(s sample) float64 { return s.TargetCPU })
}

// rowPath is the share of transactions that were not applied in sets.
func (r *result) rowPath(transactions int) string {
	var most *int64
	for _, s := range r.Samples {
		if s.RowPath != nil && (most == nil || *s.RowPath > *most) {
			most = s.RowPath
		}
	}
	if most == nil || transactions == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(*most)/float64(transactions))
}

// rate is things per second, in three digits or so.
func rate(count int, took float64) string {
	if count < 2 || took == 0 {
		return "–"
	}
	v := float64(count) / took
	if v >= 10_000 {
		return fmt.Sprintf("%.0fk", v/1000)
	}
	return fmt.Sprintf("%.0f", v)
}

func ratioText(r float64) string {
	if r == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", r)
}

func megabytes(b int64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", float64(b)/(1<<20))
}

func (g grid) markdown() string {
	var b strings.Builder
	for i, row := range g {
		if i > 1 && row[0] == g[i-1][0] {
			row = slices.Concat([]string{""}, row[1:])
		}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}

func (g grid) text() string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range g {
		_, err := fmt.Fprintln(w, strings.Join(row, "\t"))
		if err != nil {
			return err.Error()
		}
	}
	if err := errors.Join(w.Flush()); err != nil {
		return err.Error()
	}
	return b.String()
}
