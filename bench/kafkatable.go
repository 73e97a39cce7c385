package main

import (
	"fmt"
	"strings"
)

// Between these lines of the document stands what -mode kafka has measured.
const (
	beginKafka = "<!-- bench-kafka: begin -->"
	endKafka   = "<!-- bench-kafka: end -->"
)

// kafkaMarkdown is the report of -mode kafka.
func (r *report) kafkaMarkdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d × %s, %d GiB, Linux %s; PostgreSQL %s (%s); Kafka %s; Go %s; %s.\n",
		r.Machine.Cores, r.Machine.CPU, r.Machine.MemoryBytes>>30, r.Machine.Kernel, r.PostgreSQL, strings.Join(r.Settings, ", "),
		kafkaVersion, r.Go, r.Taken.Format("2006-01-02"))
	for _, kind := range []struct{ kind, heading string }{{kindKafka, "Into Kafka"}, {kindUnbottle, "From Kafka into PostgreSQL"}} {
		b.WriteString(r.section(kind.kind, kind.heading))
	}
	return b.String()
}

// kafkaRow are the figures that only this kind of set has, beside Debezium's.
func (s *set) kafkaRow(r *result) []string {
	times, cpu := "–", "–"
	if peer := s.result(nameDebezium); peer != nil && r.Contender != nameDebezium {
		own := r.median(func(m sample) float64 { return m.ClientCPU })
		times = fmt.Sprintf("%.1f", peer.seconds()/r.seconds())
		cpu = fmt.Sprintf("1/%.1f", peer.median(func(m sample) float64 { return m.ClientCPU })/own)
	}
	return []string{times, r.cpu(), cpu, r.foreign(), megabytes(r.peak())}
}

// foreign is the CPU time that nobody of the run used.
func (r *result) foreign() string {
	return fmt.Sprintf("%.2f", r.median(func(m sample) float64 { return m.ForeignCPU }))
}
