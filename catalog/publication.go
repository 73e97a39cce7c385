package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
)

// Publication describes a publication and what it publishes now.
type Publication struct {
	OID       uint32
	Name      string
	Owner     string
	AllTables bool
	Insert    bool
	Update    bool
	Delete    bool
	Truncate  bool
	ViaRoot   bool // publish_via_partition_root
	// GenCols is pubgencols: 'n' for none or 's' for stored generated columns.
	// Servers before 18 have only 'n'.
	GenCols byte
	Schemas []string // of FOR TABLES IN SCHEMA
	// Tables are the relations whose changes it sends, by name: partitions, or
	// with ViaRoot the roots. Only ordinary and partitioned tables are there.
	Tables []PublishedTable
}

// PublishedTable is one table of a publication.
type PublishedTable struct {
	OID     uint32
	Name    millrace.TableName
	Columns []string // of a column list; nil: all columns
	Filter  string   // the row filter as SQL, or ""
}

// Table finds a published table by OID, or nil.
func (p *Publication) Table(oid uint32) *PublishedTable {
	for i := range p.Tables {
		if p.Tables[i].OID == oid {
			return &p.Tables[i]
		}
	}
	return nil
}

// publicationSQL takes pubgencols through jsonb, since servers before 18 do not
// have it.
const publicationSQL = `
SELECT p.oid::int8, pg_catalog.pg_get_userbyid(p.pubowner)::text, p.puballtables,
       p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
       COALESCE(pg_catalog.to_jsonb(p) ->> 'pubgencols', 'n'),
       ARRAY(SELECT n.nspname::text
               FROM pg_catalog.pg_publication_namespace s
               JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
              WHERE s.pnpubid = p.oid ORDER BY 1)
  FROM pg_catalog.pg_publication p
 WHERE p.pubname = $1`

// publishedSQL: the view gives a list of columns in any case. There is a column
// list if the table's entry has one, or if columns are missing that would be
// published without one (a list inherited from a partitioned table).
const publishedSQL = `
SELECT c.oid::int8, v.schemaname::text, v.tablename::text, COALESCE(v.rowfilter, ''),
       CASE WHEN listed.yes OR EXISTS (
                 SELECT FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
                    AND a.attname <> ALL (COALESCE(v.attnames, '{}')))
            THEN COALESCE(v.attnames::text[], '{}') END
  FROM pg_catalog.pg_publication_tables v
  JOIN pg_catalog.pg_namespace n ON n.nspname = v.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = v.tablename
 CROSS JOIN LATERAL (
       SELECT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r
                       WHERE r.prpubid = $2::pg_catalog.oid AND r.prrelid = c.oid AND r.prattrs IS NOT NULL)) listed (yes)
 WHERE v.pubname = $1
 ORDER BY v.schemaname, v.tablename`

// ReadPublication reads a publication; nil if there is none of that name.
func ReadPublication(ctx context.Context, q Querier, name string) (*Publication, error) {
	p := &Publication{Name: name}
	var gencols string
	err := q.QueryRow(ctx, publicationSQL, name).Scan(&p.OID, &p.Owner, &p.AllTables,
		&p.Insert, &p.Update, &p.Delete, &p.Truncate, &p.ViaRoot, &gencols, &p.Schemas)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read publication %s: %w", name, err)
	}
	p.GenCols = letter(gencols)

	rows, err := q.Query(ctx, publishedSQL, name, p.OID)
	if err != nil {
		return nil, fmt.Errorf("read tables of publication %s: %w", name, err)
	}
	p.Tables, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t PublishedTable, err error) {
		err = row.Scan(&t.OID, &t.Name.Schema, &t.Name.Name, &t.Filter, &t.Columns)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read tables of publication %s: %w", name, err)
	}
	return p, nil
}
