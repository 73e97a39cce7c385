package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/session"
)

// bodiesUnchecked lets functions be made before what their bodies name.
const bodiesUnchecked = `SET LOCAL check_function_bodies = off`

// ApplyBefore makes everything that rows need, in one transaction.
func (p *Plan) ApplyBefore(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return session.Wrap("create definitions", millrace.PeerDestination, err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, bodiesUnchecked); err != nil {
		return session.Wrap("create definitions", millrace.PeerDestination, err)
	}
	for _, s := range p.Before {
		if err := s.run(ctx, conn); err != nil {
			return err
		}
	}
	return session.Wrap("create definitions", millrace.PeerDestination, tx.Commit(ctx))
}

// ApplyAfter makes indexes and constraints over the copied rows, in parallel
// sessions where tables have nothing to do with each other. done is called
// after each statement, if it is not nil, and must be safe for that. After a
// lost connection ApplyAfter can be called again: it goes on where it was.
func (p *Plan) ApplyAfter(ctx context.Context, target *session.Endpoint, parallel int, done func(Statement)) error {
	group, ctx := errgroup.WithContext(ctx)
	work := make(chan []Statement)
	group.Go(func() error {
		defer close(work)
		for _, g := range p.Indexes {
			select {
			case work <- g:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	for range max(1, min(parallel, len(p.Indexes))) {
		group.Go(func() error {
			conn, err := target.Connect(ctx, session.Copy)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			for g := range work {
				if err := p.runAll(ctx, conn, g, done); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// ApplyKeys adds the foreign keys and then validates them. It can be called again
// as well.
func (p *Plan) ApplyKeys(ctx context.Context, conn *pgx.Conn, done func(Statement)) error {
	if err := p.runAll(ctx, conn, p.Keys, done); err != nil {
		return err
	}
	return p.runAll(ctx, conn, p.Validate, done)
}

func (p *Plan) runAll(ctx context.Context, conn *pgx.Conn, statements []Statement, done func(Statement)) error {
	for _, s := range statements {
		before := p.begin(s)
		if before == finished {
			continue
		}
		err := s.run(ctx, conn)
		if err != nil && !(before == tried && exists(err)) {
			return err
		}
		p.end(s)
		if done != nil {
			done(s)
		}
	}
	return nil
}

// What is known of a statement that was begun.
const (
	tried    = 1 + iota // its outcome may have been lost with a connection
	finished            // it has taken effect
)

// begin marks a statement as tried and tells what it was before.
func (p *Plan) begin(s Statement) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.states == nil {
		p.states = map[Statement]int{}
	}
	state := p.states[s]
	p.states[s] = max(state, tried)
	return state
}

func (p *Plan) end(s Statement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states[s] = finished
}

// exists tells whether a statement failed since its object is there: a relation,
// another object, or a primary key.
func exists(err error) bool {
	switch session.SQLState(err) {
	case "42P07", "42710", "42P16":
		return true
	}
	return false
}

// run sends the text as it is: one entry of a dump can be several statements.
func (s Statement) run(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.PgConn().Exec(ctx, s.SQL).ReadAll()
	if err == nil {
		return nil
	}
	return s.explain(err)
}

// explain adds what usually cures an error of a definition.
func (s Statement) explain(err error) error {
	wrapped := session.Wrap("create "+s.Object, millrace.PeerDestination, err)
	e, ok := wrapped.(*millrace.Error) //nolint:errorlint // Wrap gives nothing else for an error of the server
	if !ok || e.Hint != "" {
		return wrapped
	}
	switch session.SQLState(err) {
	case "42501":
		e.Kind = millrace.KindPreflight
		e.Hint = "give the destination's role the right, or create the object beforehand: an equal one is kept"
	case "58P01", "0A000", "22023":
		e.Hint = "create it beforehand in a form that the target can take: an equal one is kept; or use destination.postgres.schema: existing"
	case "23503":
		e.Hint = fmt.Sprintf("the rows of the source break this foreign key as well: look there for rows without a match (%s)", s.Object)
	}
	return wrapped
}
