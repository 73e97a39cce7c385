package main

import (
	"context"
	"errors"
	"os"
	"time"
)

// The contenders, in the order of a round.
const (
	nameRecv     = "pg_recvlogical"
	nameDecode   = "decode only"
	nameNative   = "native"
	nameMillrace = "millrace"
	nameNotEager = "millrace, apply.eager off"
	pipeOne      = "COPY pipe, 1 stream"
)

// contenderNames are the words of -contenders.
var contenderNames = []string{"recv", "decode", "native", "millrace", "noteager", "pipe1", "pipe2", "dump", wordDebezium}

// contender drains the backlog once per run.
type contender interface {
	name() string
	// prepare is called once, before the workload.
	prepare(ctx context.Context, s *stage) error
	run(ctx context.Context, s *stage) (sample, error)
	// delivers tells whether the run leaves a target to compare.
	delivers() bool
}

// applier is what delivers to the target.
type applier interface {
	name() string
	prepare(ctx context.Context, s *stage) error
	// arm makes a slot and a clone of the target, without starting anything.
	arm(ctx context.Context, s *stage) error
	// start lets it flow.
	start(ctx context.Context, s *stage) error
	// broken tells why it can't go on, or nil.
	broken() error
	// observe adds what only a running applier can tell.
	observe(ctx context.Context, s *stage, m *sample)
	// disarm ends it. It is called after every arm.
	disarm(ctx context.Context, s *stage) error
}

// drain times an applier from its start until the marker is visible.
type drain struct{ applier }

func (drain) delivers() bool { return true }

func (d drain) run(ctx context.Context, s *stage) (_ sample, err error) {
	defer func() { err = errors.Join(err, d.disarm(context.WithoutCancel(ctx), s)) }()
	if err := d.arm(ctx, s); err != nil {
		return sample{}, err
	}
	poll, err := s.target.connect(ctx, runDB)
	if err != nil {
		return sample{}, err
	}
	defer poll.Close(context.WithoutCancel(ctx))
	if err := s.quiet(ctx); err != nil {
		return sample{}, err
	}
	m := startMeter(s, int(poll.PgConn().PID()))
	if err := d.start(ctx, s); err != nil {
		return sample{}, err
	}
	if err := s.awaitMarker(ctx, poll, d.broken); err != nil {
		return sample{}, err
	}
	out := m.stop()
	d.observe(ctx, s, &out)
	m.foreign(&out)
	return out, nil
}

// reader is a process that reads the stream to the end and discards it.
type reader struct {
	label   string
	program func(s *stage) string
	args    func(s *stage) []string
}

func (r reader) name() string                        { return r.label }
func (reader) prepare(context.Context, *stage) error { return nil }
func (reader) delivers() bool                        { return false }
func (r reader) run(ctx context.Context, s *stage) (_ sample, err error) {
	defer func() {
		err = errors.Join(err, s.source.dropSlot(context.WithoutCancel(ctx), runSlot))
	}()
	if err := s.source.copySlot(ctx, baseSlot, runSlot); err != nil {
		return sample{}, err
	}
	if err := s.quiet(ctx); err != nil {
		return sample{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m := startMeter(s, 0)
	c, err := startClient(ctx, r.program(s), r.args(s)...)
	if err != nil {
		return sample{}, err
	}
	watch := watchMemory(c.PID())
	cpu, err := c.finish()
	peak, _ := watch.stop()
	if err != nil {
		return sample{}, err
	}
	out := m.stop()
	out.ClientCPU, out.PeakBytes = seconds(cpu), peak
	out.TargetCPU = 0
	m.foreign(&out)
	return out, nil
}

// recvReader is pg_recvlogical with the options that Millrace uses too.
func recvReader() reader {
	return reader{
		label:   nameRecv,
		program: func(s *stage) string { return s.source.Bin("pg_recvlogical") },
		args: func(s *stage) []string {
			return []string{"-d", s.source.URL(sourceDB), "--slot", runSlot, "--start", "--no-loop", "--endpos", s.end,
				"-F", "0", "-f", os.DevNull, "-o", "proto_version=1", "-o", "binary=true", "-o", "publication_names=" + publication}
		},
	}
}

// decodeReader is this program's own capture, see decode.go.
func decodeReader() reader {
	return reader{
		label:   nameDecode,
		program: func(*stage) string { return ownProgram() },
		args: func(s *stage) []string {
			return []string{"decode", s.source.URL(sourceDB), runSlot, publication, s.end}
		},
	}
}

func ownProgram() string {
	p, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return p
}

// meter takes the time and the CPU time of everybody who takes part in a run.
type meter struct {
	s      *stage
	poller int // the poller's backend on the target, not counted
	began  time.Time
	at     usage
	busy   time.Duration
}

type usage struct{ source, target, poller time.Duration }

func (m *meter) usage() usage {
	return usage{cpuOfTree(m.s.source.PID()), cpuOfTree(m.s.target.PID()), cpuOf(m.poller)}
}

func startMeter(s *stage, poller int) *meter {
	m := &meter{s: s, poller: poller}
	m.at, m.busy = m.usage(), machineBusy()
	m.began = time.Now()
	return m
}

func (m *meter) stop() sample {
	wall := time.Since(m.began)
	now := m.usage()
	return sample{
		Seconds:   seconds(wall),
		SourceCPU: seconds(now.source - m.at.source),
		TargetCPU: seconds(now.target - m.at.target - (now.poller - m.at.poller)),
	}
}

// foreign notes the CPU time that nobody of the run used, a sign of noise. The
// bench's own and the poller's are in it.
func (m *meter) foreign(s *sample) {
	s.ForeignCPU = max(0, seconds(machineBusy()-m.busy)-s.SourceCPU-s.TargetCPU-s.ClientCPU)
}

func seconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

// memoryWatch follows the resident memory of a process.
type memoryWatch struct {
	quit chan struct{}
	done chan struct{}
	peak int64
	all  []float64
}

func watchMemory(pid int) *memoryWatch {
	w := &memoryWatch{quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		every := time.NewTicker(50 * time.Millisecond)
		defer every.Stop()
		for {
			w.peak = max(w.peak, memoryOf(pid, "VmHWM"))
			if rss := memoryOf(pid, "VmRSS"); rss > 0 {
				w.all = append(w.all, float64(rss))
			}
			select {
			case <-w.quit:
				w.peak = max(w.peak, memoryOf(pid, "VmHWM"))
				return
			case <-every.C:
			}
		}
	}()
	return w
}

// stop gives the peak and the median.
func (w *memoryWatch) stop() (peak, middle int64) {
	close(w.quit)
	<-w.done
	return w.peak, int64(median(w.all))
}
