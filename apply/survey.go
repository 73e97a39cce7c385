package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// surveyValid is how long a description that was made ahead is believed. After
// that the table is described again when its first change comes.
const surveyValid = 10 * time.Second

// describe reads a table of the destination. With the first one the other tables
// of the job are read as well: one by one, a thousand of them would take longer
// than what they have to say.
func (x *router) describe(ctx context.Context, name millrace.TableName) (*target, error) {
	names := []millrace.TableName{name}
	if x.surveyed == nil {
		for _, t := range x.tables {
			names = append(names, t.Name)
		}
	} else if t := x.surveyed[name]; t != nil && time.Since(x.surveyedAt) < surveyValid {
		return t, nil
	}
	found, err := catalog.DescribeByName(ctx, x.conn, names)
	if err != nil {
		return nil, session.Wrap("describe table "+name.String(), millrace.PeerDestination, err)
	}
	targets := map[millrace.TableName]*target{}
	for n, table := range found {
		if table.Kind == 'r' || table.Kind == 'p' {
			targets[n] = newTarget(table)
		}
	}
	if err := x.readFacts(ctx, targets); err != nil {
		return nil, session.Wrap("describe table "+name.String(), millrace.PeerDestination, err)
	}
	t := targets[name]
	if x.surveyed == nil {
		x.survey(ctx, targets)
		delete(x.surveyed, name)
	}
	switch {
	case found[name] == nil:
		return nil, dataError(name, errors.New("no such table at the destination"),
			"create it there, with the columns of the source's table"+goesOn)
	case t == nil:
		return nil, dataError(name, errors.New("at the destination this is not a table"),
			"rename or drop it there and create the table"+goesOn)
	case t.Persistence == 'u':
		return nil, dataError(name, errors.New("it is unlogged at the destination: a crash there would empty it"),
			"ALTER TABLE "+t.sql+" SET LOGGED, after making sure that it holds what the source does"+goesOn)
	case t.ruled:
		return nil, dataError(name, errors.New("a rule at the destination would rewrite its changes"),
			"ALTER TABLE "+t.sql+" DISABLE RULE for its rules, or let the role SET session_replication_role"+goesOn)
	}
	return t, nil
}

// survey keeps descriptions of tables that no change has come for, with the
// plans for their primary keys. It must not wait for a table that somebody has
// locked: that may not even be one that changes.
func (x *router) survey(ctx context.Context, targets map[millrace.TableName]*target) {
	x.surveyed, x.surveyedAt = maps.Clone(targets), time.Now()
	var probes []probe
	for _, t := range targets {
		if pk := t.PrimaryKey(); pk != nil && pk.Immediate && pk.Valid {
			probes = append(probes, probe{t, pk})
		}
	}
	if _, err := x.conn.Exec(ctx, "SET lock_timeout = '200ms'"); err != nil {
		return // the next statement on the connection tells
	}
	if err := x.explain(ctx, probes); err != nil {
		x.log.Debug("plans are looked at one by one", "cause", err)
	}
	_, _ = x.conn.Exec(ctx, "SET lock_timeout = 0") // as above
}

// factsSQL reads what package catalog does not know: the row type, whether
// constraints can be deferred, whether foreign keys act or check at once, and
// whether row triggers and rules are in force in this session's role, on the
// table or its partitions.
//
// Each catalog is read once: searched table by table, for a thousand tables that
// would take most of the time until the first change is applied.
const factsSQL = `
WITH keys AS MATERIALIZED (
    SELECT conrelid, confrelid, condeferrable,
           contype = 'f' AND (NOT condeferrable OR confdeltype IN ('c', 'n', 'd') OR confupdtype IN ('c', 'n', 'd')) AS acts
      FROM pg_catalog.pg_constraint WHERE condeferrable OR contype = 'f'),
ends AS MATERIALIZED (
    SELECT rel, bool_or(condeferrable) AS deferrable, bool_or(acts) AS acts
      FROM (SELECT conrelid AS rel, condeferrable, acts FROM keys
             UNION ALL SELECT confrelid, condeferrable, acts FROM keys) e
     GROUP BY rel),
triggered AS MATERIALIZED (
    SELECT DISTINCT tgrelid FROM pg_catalog.pg_trigger
     WHERE NOT tgisinternal AND tgtype & 1 = 1 AND tgenabled::text = ANY ($2::text[])),
ruled AS MATERIALIZED (
    SELECT DISTINCT ev_class FROM pg_catalog.pg_rewrite
     WHERE ev_type <> '1' AND ev_enabled::text = ANY ($2::text[]))
SELECT c.oid::int8, c.reltype::int8, COALESCE(e.deferrable, false), COALESCE(e.acts, false),
       c.oid IN (SELECT tgrelid FROM triggered)
         OR c.relkind = 'p' AND EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) p JOIN triggered g ON g.tgrelid = p.relid),
       c.oid IN (SELECT ev_class FROM ruled)
  FROM pg_catalog.pg_class c LEFT JOIN ends e ON e.rel = c.oid
 WHERE c.oid = ANY ($1::pg_catalog.oid[])`

func (x *router) readFacts(ctx context.Context, targets map[millrace.TableName]*target) error {
	firing := []string{"A", "O"}
	if x.replica {
		firing = []string{"A", "R"}
	}
	byOID := map[uint32]*target{}
	oids := make([]uint32, 0, len(targets))
	for _, t := range targets {
		byOID[t.OID] = t
		oids = append(oids, t.OID)
	}
	rows, err := x.conn.Query(ctx, factsSQL, oids, firing)
	if err != nil {
		return err
	}
	var oid, rowType int64
	var deferrable, foreign, triggers, rules bool
	_, err = pgx.ForEachRow(rows, []any{&oid, &rowType, &deferrable, &foreign, &triggers, &rules}, func() error {
		t := byOID[uint32(oid)]
		t.rowType, t.deferrable, t.ruled = uint32(rowType), deferrable, rules
		t.strict = triggers || foreign && !x.replica
		return nil
	})
	if err != nil {
		return err
	}
	refusing := map[uint32]bool{}
	for _, t := range targets {
		if t.rowType == 0 {
			return errors.New("a table was dropped while it was described")
		}
		refuses, err := x.refusesNull(ctx, t, refusing)
		if err != nil {
			return err
		}
		t.judge(refuses)
	}
	return nil
}

// refusesNull tells whether a column's domain takes no NULL. The array of the
// table's row type holds NULL where nothing was sent, and reading it would fail.
func (x *router) refusesNull(ctx context.Context, t *target, known map[uint32]bool) (bool, error) {
	for i := range t.Columns {
		ty := &t.Columns[i].Type
		if ty.Kind != 'd' {
			continue
		}
		refuses, tried := known[ty.OID]
		if !tried {
			_, err := x.conn.Exec(ctx, "SELECT NULL::"+millrace.QuoteIdent(ty.Schema)+"."+millrace.QuoteIdent(ty.Name))
			refuses = strings.HasPrefix(session.SQLState(err), "23")
			if err != nil && !refuses {
				return false, err
			}
			known[ty.OID] = refuses
		}
		if refuses {
			return true, nil
		}
	}
	return false, nil
}

// probe is a question to the planner: does it search the index for a set?
type probe struct {
	to    *target
	index *catalog.Index
}

func (p probe) sql() string {
	conds := make([]string, len(p.index.Columns))
	for n, num := range p.index.Columns {
		name := millrace.QuoteIdent(p.to.ByNum(num).Name)
		conds[n] = "t." + name + " " + operator(p.index.Operators[n]) + " u." + name
	}
	return "EXPLAIN (GENERIC_PLAN, COSTS off, FORMAT json) DELETE FROM " + p.to.only + " AS t USING pg_catalog.unnest($1::" +
		p.to.sql + "[]) AS u WHERE " + strings.Join(conds, " AND ")
}

// explain asks the planner how sets are matched with tables; anything but a
// search in an index would read the whole table for each row. An index is asked
// about once: later its table may be locked by our own transaction.
func (x *router) explain(ctx context.Context, probes []probe) error {
	var asked []probe
	var sql []string
	for _, p := range probes {
		if _, known := p.to.searched[p.index.OID]; !known {
			asked, sql = append(asked, p), append(sql, p.sql())
		}
	}
	if len(asked) == 0 {
		return nil
	}
	// The simple protocol leaves the parameter as it is.
	results, err := x.conn.PgConn().Exec(ctx, strings.Join(sql, "; ")).ReadAll()
	if err != nil {
		return session.Wrap("apply", millrace.PeerDestination, fmt.Errorf("look at plans: %w", err))
	}
	for i, p := range asked {
		var plans []struct{ Plan planNode }
		if err := json.Unmarshal(results[i].Rows[0][0], &plans); err != nil {
			return fmt.Errorf("read the plan of table %s: %w", p.to.Name, err)
		}
		if p.to.searched == nil {
			p.to.searched = map[uint32]bool{}
		}
		p.to.searched[p.index.OID] = len(plans) == 1 && plans[0].Plan.searches()
	}
	return nil
}

type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Cond     string     `json:"Index Cond"`
	Plans    []planNode `json:"Plans"`
}

// searches tells whether every table below the node is searched by an index.
func (n *planNode) searches() bool {
	if n.Relation != "" && n.Type != "ModifyTable" && n.Cond == "" {
		return false
	}
	for i := range n.Plans {
		if !n.Plans[i].searches() {
			return false
		}
	}
	return true
}
