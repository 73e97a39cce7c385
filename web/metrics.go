package web

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

// Numbers are the counters of a running instance. A nil pointer is a metric
// that does not exist yet.
type Numbers struct {
	Relay *relay.Stats
	// Applied counts source transactions by the path they took: set, row or ahead.
	Applied map[string]int64
	// Executions and their seconds are those of target transactions.
	Executions    *uint64
	ExecSeconds   float64
	InflightBytes *int64
	SpoolBytes    *int64
	Errors        map[string]int64 // by kind
	// ConfirmedAge is how long confirmed_flush_lsn has not moved.
	ConfirmedAge *float64
}

// states are all states a job can be in, so that each is 0 or 1.
var states = []string{"preflight", "bootstrapping", "catching_up", "streaming", "paused", "stopped", "error", "resync_required"}

var conditions = []string{relay.SourceUnreachable, relay.DestinationUnreachable, relay.WaitingForSlot, relay.ChangingTables, relay.Converging}

// maxTableSeries bounds the series that have a table as label.
const maxTableSeries = 500

// metrics is the registry of one job. Everything but the histogram is read from
// the status when it is asked for.
type metrics struct {
	status   func() *Status
	waiting  func() int64
	opt      Options
	registry *prometheus.Registry
	waits    *prometheus.HistogramVec
	descs    map[string]*prometheus.Desc
}

func newMetrics(opt Options, status func() *Status, waiting func() int64) *metrics {
	pipeline := prometheus.Labels{"pipeline": opt.Job}
	m := &metrics{opt: opt, status: status, waiting: waiting, registry: prometheus.NewRegistry(), descs: make(map[string]*prometheus.Desc)}
	m.waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "millrace_wait_seconds", Help: "Time that answers of /wait took, by status code.",
		ConstLabels: pipeline,
		Buckets:     []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300},
	}, []string{"code"})
	for name, d := range descriptions {
		m.descs[name] = prometheus.NewDesc("millrace_"+name, d.help, d.labels, pipeline)
	}
	m.registry.MustRegister(m, m.waits, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

type description struct {
	help   string
	labels []string
}

var descriptions = map[string]description{
	"build_info":                  {"The version that runs.", []string{"version"}},
	"up":                          {"1 while the job's process lives.", nil},
	"state":                       {"1 for the state that the job is in.", []string{"state"}},
	"source_transactions_total":   {"Source transactions received.", nil},
	"source_changes_total":        {"Changes received, by operation.", []string{"op"}},
	"source_bytes_total":          {"Bytes of received changes.", nil},
	"lag_seconds":                 {"Age of the oldest transaction that is not durable at the destination.", nil},
	"lag_bytes":                   {"WAL between the source's position and what the destination holds.", nil},
	"lag_transactions":            {"Transactions received and not durable yet.", nil},
	"retained_wal_bytes":          {"WAL that the slot keeps at the source.", nil},
	"safe_wal_size_bytes":         {"WAL that can be written before the slot is lost.", nil},
	"source_disk_free_bytes":      {"What the disk with the source's WAL has left, where that can be seen.", nil},
	"slot_active":                 {"1 while a walsender uses the slot.", nil},
	"confirmed_flush_age_seconds": {"Time since confirmed_flush_lsn moved.", nil},
	"snapshot_rows_total":         {"Rows copied by the first load.", nil},
	"snapshot_remaining_bytes":    {"Bytes that the first load has still to copy, estimated.", nil},
	"load_paused":                 {"1 while the load beside the stream rests.", nil},
	"apply_transactions_total":    {"Source transactions applied, by path: in sets, row by row, or ahead of their commit.", []string{"path"}},
	"apply_seconds":               {"Time that target transactions took.", nil},
	"reconnects_total":            {"Lost or refused connections.", []string{"peer"}},
	"inflight_bytes":              {"Memory of received changes that are not applied.", nil},
	"spool_bytes":                 {"Bytes of transactions on disk.", nil},
	"errors_total":                {"Errors, by what they ask for.", []string{"kind"}},
	"table_changes_total":         {"Changes received, by table of the job's set, while that has at most 500.", []string{"table"}},
	"condition":                   {"1 for what the job waits for while it tries again.", []string{"condition"}},
	"alarm":                       {"1 for each alarm that is on.", []string{"alarm"}},
	"lag_waits_for":               {"1 for what the lag waits for, while that is known.", []string{"reason"}},
	"slot_lost_after_seconds":     {"Time until the slot is lost if it rests and WAL is written as now.", nil},
	"heartbeat_timestamp_seconds": {"When the sign of life was last written to the destination.", nil},
	"waiting":                     {"Requests that wait on /wait now.", nil},
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) waited(code int, seconds float64) {
	m.waits.WithLabelValues(strconv.Itoa(code)).Observe(seconds)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	e := emitter{m, ch}
	st := m.status()
	e.gauge("build_info", 1, m.opt.Version)
	e.gauge("up", 1)
	for _, s := range states {
		e.gauge("state", number(s == st.State), s)
	}
	known(st.Lag.Seconds, func(v float64) { e.gauge("lag_seconds", v) })
	known(st.Lag.Bytes, func(v int64) { e.gauge("lag_bytes", float64(v)) })
	known(st.Lag.Transactions, func(v int64) { e.gauge("lag_transactions", float64(v)) })
	known(st.Source.RetainedWALBytes, func(v int64) { e.gauge("retained_wal_bytes", float64(v)) })
	known(st.Source.SafeWALSizeBytes, func(v int64) { e.gauge("safe_wal_size_bytes", float64(v)) })
	known(st.Source.DiskFreeBytes, func(v int64) { e.gauge("source_disk_free_bytes", float64(v)) })
	known(st.Source.SlotActive, func(v bool) { e.gauge("slot_active", number(v)) })
	known(st.LoadRows, func(v int64) { e.counter("snapshot_rows_total", float64(v)) })
	known(st.LoadRest, func(v int64) { e.gauge("snapshot_remaining_bytes", float64(v)) })
	known(st.Source.SecondsUntilLost, func(v float64) { e.gauge("slot_lost_after_seconds", v) })
	known(st.HeartbeatAt, func(v Time) { e.gauge("heartbeat_timestamp_seconds", float64(v.UnixMicro())/1e6) })
	e.gauge("load_paused", number(st.LoadPaused != nil))
	e.gauge("waiting", float64(m.waiting()))
	for _, c := range conditions {
		e.gauge("condition", number(st.Condition != nil && *st.Condition == c), c)
	}
	for _, a := range st.Alarms {
		e.gauge("alarm", 1, a.Name)
	}
	known(st.Lag.WaitsFor, func(now string) {
		for word := range waitWords {
			e.gauge("lag_waits_for", number(word == now), word)
		}
	})
	if len(st.Tables) <= maxTableSeries {
		for _, t := range st.Tables {
			known(t.Changes, func(v int64) { e.counter("table_changes_total", float64(v), t.Table) })
		}
	}
	if m.opt.Numbers != nil {
		e.numbers(m.opt.Numbers())
	}
}

type emitter struct {
	m  *metrics
	ch chan<- prometheus.Metric
}

func (e emitter) numbers(n Numbers) {
	if n.Relay != nil {
		e.counter("source_transactions_total", float64(n.Relay.Transactions()))
		e.counter("source_bytes_total", float64(n.Relay.Bytes()))
		for op, v := range n.Relay.Changes() {
			e.counter("source_changes_total", float64(v), op.String())
		}
		for peer, v := range n.Relay.Reconnects() {
			if peer == millrace.PeerSource || peer == millrace.PeerDestination {
				e.counter("reconnects_total", float64(v), string(peer))
			}
		}
	}
	for path, v := range n.Applied {
		e.counter("apply_transactions_total", float64(v), path)
	}
	for kind, v := range n.Errors {
		e.counter("errors_total", float64(v), kind)
	}
	known(n.Executions, func(count uint64) {
		e.ch <- prometheus.MustNewConstSummary(e.m.descs["apply_seconds"], count, n.ExecSeconds, nil)
	})
	known(n.InflightBytes, func(v int64) { e.gauge("inflight_bytes", float64(v)) })
	known(n.SpoolBytes, func(v int64) { e.gauge("spool_bytes", float64(v)) })
	known(n.ConfirmedAge, func(v float64) { e.gauge("confirmed_flush_age_seconds", v) })
}

func (e emitter) gauge(name string, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(e.m.descs[name], prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(name string, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(e.m.descs[name], prometheus.CounterValue, v, labels...)
}

func known[T any](v *T, f func(T)) {
	if v != nil {
		f(*v)
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
