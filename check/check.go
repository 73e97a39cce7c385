// Package check looks at source and target before anything is done, finds every
// prerequisite that is not met, and says what cures it. It changes nothing.
//
// It asks everything that it can: a side that cannot be reached does not hide
// what is wrong with the other one.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/session"
	"github.com/millrace/millrace/snapshot"
)

// Finding is one thing that was found.
type Finding struct {
	Subject string `json:"subject"` // "source", "public.orders", "slot millrace_shop"
	Text    string `json:"text"`
	Cure    string `json:"cure,omitempty"` // SQL, a setting or an advice
}

func (f Finding) String() string { return f.Subject + ": " + f.Text }

// Report is the result. Without problems the job can be started.
type Report struct {
	Problems []Finding `json:"problems"`
	Warnings []Finding `json:"warnings"`
}

// The values of Options.SchemaMode and Options.Mode are those of package
// bootstrap.
const (
	schemaExisting = "existing"
	modeNone       = "none"
)

// Options describe the job as it is configured.
type Options struct {
	Source, Target         *session.Endpoint
	Job                    string
	Slot, Publication      string
	Patterns               catalog.Patterns
	Keys                   catalog.Keys // chosen instead of primary keys
	CreatePublication      bool         // by the configuration or a flag
	AllowRemotePublication bool
	Failover               bool   // the slot is to be copied to standbys
	SchemaMode             string // create or existing
	Mode                   string // consistent or none
	Parallel               int
	PGDump                 string
	Log                    *slog.Logger // may be nil
	// Other is the destination where that is no PostgreSQL target, and Origin the
	// source where that is no PostgreSQL server.
	Other  Destination
	Origin Origin
}

// Origin is a source that only somebody else can look at. job is nil where there is no
// record yet.
type Origin interface {
	Check(ctx context.Context, job *record.Job) (problems, warnings []Finding, err error)
}

// Destination is one that only somebody else can look at.
type Destination interface {
	// Record gives the job's record; nil if there is none.
	Record(ctx context.Context) (*record.Job, millrace.Checkpoint, error)
	// Check looks at everything there. job is nil where there is no record yet.
	Check(ctx context.Context, job *record.Job, tables []*catalog.Table) (problems, warnings []Finding, err error)
}

// checker is one run.
type checker struct {
	Options
	report Report

	source, target       *pgx.Conn // nil when not reachable
	server, targetServer *catalog.Server
	job                  *record.Job // nil: none, or not readable
	held                 millrace.Checkpoint
	recordUnknown        bool // the target could not be asked for it
	replica              bool // the target's role may set session_replication_role
	denied               bool // a right on the source's tables is missing

	pub            *catalog.Publication
	publicationSQL string           // makes it, where there is none
	tables         []*catalog.Table // selected, described
	there          map[millrace.TableName]*catalog.Table
}

// Run looks at everything. An error means that the check itself could not be
// done: what stands in the way of the job is in the report.
func Run(ctx context.Context, o Options) (Report, error) {
	c := &checker{Options: o}
	defer c.close()
	c.connect(ctx)
	steps := []func(context.Context) error{
		c.readRecord,
		c.checkSource,
		c.checkTarget,
		c.checkSameDatabase,
		c.selectTables,
		c.checkPublication,
		c.checkSlot,
		c.checkFailover,
		c.checkSourceTables,
		c.checkKeys,
		c.checkTargetTables,
		c.checkDefinitions,
		c.checkLoad,
	}
	if o.Other != nil {
		steps = []func(context.Context) error{c.readRecord, c.checkSource, c.selectTables, c.checkPublication, c.checkSlot,
			c.checkFailover, c.checkSourceTables, c.checkKeys, c.checkOther}
	}
	if o.Origin != nil {
		steps = []func(context.Context) error{c.readRecord, c.checkTarget, c.checkOrigin}
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				return c.report, context.Cause(ctx)
			}
			c.failed(err)
		}
	}
	c.sort()
	return c.report, nil
}

// loading tells whether the job has no complete first load yet.
func (c *checker) loading() bool { return c.job == nil || c.job.ConsistentFrom == 0 }

// creates tells whether definitions will be copied.
func (c *checker) creates() bool {
	return c.loading() && c.SchemaMode != schemaExisting && c.Mode != modeNone
}

func (c *checker) problem(subject, cure, format string, args ...any) {
	c.report.Problems = append(c.report.Problems, Finding{subject, fmt.Sprintf(format, args...), cure})
}

func (c *checker) warn(subject, cure, format string, args ...any) {
	c.report.Warnings = append(c.report.Warnings, Finding{subject, fmt.Sprintf(format, args...), cure})
}

// problems takes over what another package found.
func (c *checker) problems(found []snapshot.Finding) {
	for _, f := range found {
		c.report.Problems = append(c.report.Problems, Finding(f))
	}
}

// failed makes a problem of an error of one step, so that the others go on.
func (c *checker) failed(err error) {
	subject := "check"
	var e *millrace.Error
	if errors.As(err, &e) && e.Peer != "" {
		subject = string(e.Peer)
	}
	c.problem(subject, cmp.Or(millrace.HintOf(err), failedCure), "%v", err)
}

// failedCure is the advice where a step of the check itself was refused.
const failedCure = "give the role the right to read it, if that is what it says, and check again; the server's log may say more"

// sort puts the servers first and drops repetitions.
func (c *checker) sort() {
	rank := func(f Finding) int {
		switch f.Subject {
		case "source":
			return 0
		case "destination":
			return 1
		}
		return 2
	}
	for _, list := range []*[]Finding{&c.report.Problems, &c.report.Warnings} {
		slices.SortStableFunc(*list, func(a, b Finding) int { return cmp.Compare(rank(a), rank(b)) })
		var unique []Finding
		for _, f := range *list {
			if !slices.Contains(unique, f) {
				unique = append(unique, f)
			}
		}
		*list = unique
	}
}

// connect opens both sides at once: each may take its time to fail.
func (c *checker) connect(ctx context.Context) {
	type result struct {
		conn *pgx.Conn
		err  error
	}
	open := func(e *session.Endpoint) chan result {
		ch := make(chan result, 1)
		go func() {
			conn, err := e.Connect(ctx, session.Check)
			ch <- result{conn, err}
		}()
		return ch
	}
	source := make(chan result, 1)
	if c.Origin == nil {
		source = open(c.Source)
	} else {
		source <- result{}
	}
	target := make(chan result, 1)
	if c.Other == nil {
		target = open(c.Target)
	} else {
		target <- result{}
	}
	for _, side := range []struct {
		name string
		ch   chan result
		conn **pgx.Conn
	}{{"source", source, &c.source}, {"destination", target, &c.target}} {
		r := <-side.ch
		*side.conn = r.conn
		if r.err != nil {
			c.problem(side.name, millrace.HintOf(r.err), "%v", r.err)
		}
	}
}

func (c *checker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for _, conn := range []*pgx.Conn{c.source, c.target} {
		if conn != nil {
			_ = conn.Close(ctx) // nothing depends on it
		}
	}
}

func (c *checker) checkOrigin(ctx context.Context) error {
	problems, warnings, err := c.Origin.Check(ctx, c.job)
	c.report.Problems = append(c.report.Problems, problems...)
	c.report.Warnings = append(c.report.Warnings, warnings...)
	return err
}

func (c *checker) checkOther(ctx context.Context) error {
	problems, warnings, err := c.Other.Check(ctx, c.job, c.tables)
	c.report.Problems = append(c.report.Problems, problems...)
	c.report.Warnings = append(c.report.Warnings, warnings...)
	return err
}

// readRecord finds out whether there is a job already, which decides what the
// other steps expect.
func (c *checker) readRecord(ctx context.Context) (err error) {
	switch {
	case c.Other != nil:
		c.job, c.held, err = c.Other.Record(ctx)
	case c.target == nil:
		c.recordUnknown = true
		return nil
	default:
		c.job, c.held, err = record.Read(ctx, c.target, c.Job)
	}
	if err != nil {
		c.recordUnknown = true
		return err
	}
	if c.job == nil {
		return nil
	}
	if c.job.State == record.Failed || c.job.State == record.ResyncRequired {
		c.warn("job "+c.Job, c.job.Hint, "is in state %s: %s", c.job.State, c.job.Reason)
	}
	if c.job.ConsistentFrom != 0 {
		c.Slot, c.Publication = c.job.Slot, c.job.Publication
	}
	return nil
}
