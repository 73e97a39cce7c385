package snapshot

import (
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// Reporter is told how a load goes, several times a second and at each change of
// the phase. Calls do not overlap.
type Reporter interface {
	Report(Progress)
}

// Phase is what a load is doing.
type Phase string

// The phases, in their order.
const (
	PhaseSlot        Phase = "creating the slot"
	PhaseDefinitions Phase = "copying definitions"
	PhaseRows        Phase = "copying rows"
	PhaseIndexes     Phase = "creating indexes and constraints"
	PhaseKeys        Phase = "validating foreign keys"
	PhaseAnalyze     Phase = "analyzing"
	PhaseDone        Phase = "done"
)

// Progress is where a load stands.
type Progress struct {
	Phase Phase
	// Held is since when the source keeps old row versions and log for the
	// load; zero before.
	Held   time.Time
	Tables []TableProgress
	// Sums over the tables.
	Rows, Bytes    int64
	EstimatedRows  int64
	EstimatedBytes int64
	TablesDone     int
	BytesPerSecond float64       // of the last seconds; 0 when unknown
	ETA            time.Duration // of the rows; 0 when unknown
	// Steps of phases other than the copy of rows.
	Steps, StepsDone int
}

// TableProgress is where the copy of one table stands.
type TableProgress struct {
	Name           millrace.TableName
	Rows, Bytes    int64
	EstimatedRows  int64 // -1: unknown
	EstimatedBytes int64 // as stored, which is not what travels
	Done           bool
}

// Tracker collects progress and reports it.
type Tracker struct {
	to Reporter

	mu     sync.Mutex
	p      Progress
	index  map[millrace.TableName]int
	rates  [ratePoints]ratePoint
	next   int
	report sync.Mutex // held while reporting
}

type ratePoint struct {
	at    time.Time
	bytes int64
}

const (
	reportEvery = 250 * time.Millisecond
	ratePoints  = 20 // of the last five seconds
)

// NewTracker makes a Tracker; to may be nil.
func NewTracker(to Reporter) *Tracker {
	return &Tracker{to: to, index: map[millrace.TableName]int{}}
}

// Enter begins a phase with a number of steps.
func (t *Tracker) Enter(phase Phase, steps int) {
	t.mu.Lock()
	t.p.Phase, t.p.Steps, t.p.StepsDone = phase, steps, 0
	t.mu.Unlock()
	t.Report()
}

// Step counts one step of the phase.
func (t *Tracker) Step() {
	t.mu.Lock()
	t.p.StepsDone++
	t.mu.Unlock()
}

// Hold says since when the source's snapshot is held.
func (t *Tracker) Hold(since time.Time) {
	t.mu.Lock()
	t.p.Held = since
	t.mu.Unlock()
}

// expect sets the tables and what is expected of them.
func (t *Tracker) expect(tables []*Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Tables, t.p.EstimatedRows, t.p.EstimatedBytes = nil, 0, 0
	for i, table := range tables {
		s := table.Source
		t.index[s.Name] = i
		t.p.Tables = append(t.p.Tables, TableProgress{Name: s.Name, EstimatedRows: s.Rows, EstimatedBytes: s.Bytes})
		t.p.EstimatedRows += max(0, s.Rows)
		t.p.EstimatedBytes += s.Bytes
	}
}

// add counts what of a table was copied; after a failed try the numbers are
// negative.
func (t *Tracker) add(name millrace.TableName, bytes, rows int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.p.Tables[t.index[name]]
	p.Bytes += bytes
	p.Rows += rows
	t.p.Bytes += bytes
	t.p.Rows += rows
}

func (t *Tracker) done(name millrace.TableName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p.Tables[t.index[name]].Done = true
	t.p.TablesDone++
}

// Progress gives the state now.
func (t *Tracker) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.p
	p.Tables = append([]TableProgress(nil), t.p.Tables...)
	oldest := t.rates[t.next]
	if elapsed := time.Since(oldest.at); !oldest.at.IsZero() && elapsed > 0 {
		p.BytesPerSecond = max(0, float64(p.Bytes-oldest.bytes)/elapsed.Seconds())
	}
	if left := p.remaining(); p.BytesPerSecond > 0 && left > 0 {
		p.ETA = time.Duration(left / p.BytesPerSecond * float64(time.Second))
	}
	return p
}

// remaining estimates the bytes still to travel: finished tables tell how what
// travels compares with what is stored.
func (p *Progress) remaining() float64 {
	var traveled, stored, left float64
	for _, t := range p.Tables {
		if t.Done {
			traveled += float64(t.Bytes)
			stored += float64(t.EstimatedBytes)
		} else {
			left += float64(t.EstimatedBytes)
		}
	}
	ratio := 1.0
	if stored > 0 && traveled > 0 {
		ratio = traveled / stored
	}
	left *= ratio
	for _, t := range p.Tables {
		if !t.Done {
			left -= float64(t.Bytes)
		}
	}
	return max(0, left)
}

// Report tells the reporter now.
func (t *Tracker) Report() {
	if t.to == nil {
		return
	}
	t.report.Lock()
	defer t.report.Unlock()
	t.to.Report(t.Progress())
}

// run reports until stop is closed.
func (t *Tracker) run(stop <-chan struct{}) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			t.mu.Lock()
			t.rates[t.next] = ratePoint{time.Now(), t.p.Bytes}
			t.next = (t.next + 1) % ratePoints
			t.mu.Unlock()
			t.Report()
		}
	}
}
