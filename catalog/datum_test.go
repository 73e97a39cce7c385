package catalog

import (
	"testing"

	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
)

// TestDatumTypes: nested user types reach datum whole, and collations are told
// apart.
func TestDatumTypes(t *testing.T) {
	rig.EachVersion(t, func(t *testing.T, pg *rig.Postgres) {
		db := pg.NewDB(t)
		db.SQL(t, `CREATE TYPE public.mood AS ENUM ('sad', 'ok');
			CREATE TYPE public.pair AS (m public.mood[], n numeric(5,2));
			CREATE DOMAIN public.pairs AS public.pair[];
			CREATE TABLE public.t (p public.pairs, c text COLLATE "C", d text, n name, i int, u text COLLATE ucs_basic)`)
		table := describe(t, open(t, db.URL()), "public", "t")
		p := table.Column("p").Type.Datum()
		if p.Base == nil || p.Base.Elem == nil || len(p.Base.Elem.Fields) != 2 {
			t.Fatalf("pairs is %+v", p)
		}
		fields := p.Base.Elem.Fields
		if m := fields[0].Type.Elem; m == nil || m.Kind != 'e' || len(m.Labels) != 2 || fields[1].Mod != 5<<16+2+4 {
			t.Errorf("fields are %+v", fields)
		}
		for name, want := range map[string]datum.Collation{
			"c": datum.CollationBytes, "n": datum.CollationBytes, "u": datum.CollationBytes, "i": datum.CollationOther,
		} {
			if got := table.Column(name).DatumCollation(); got != want {
				t.Errorf("column %s: collation %v, want %v", name, got, want)
			}
		}
	})
}
