package catalog

import "github.com/millrace/millrace/datum"

// Datum gives what package datum needs to know of the type.
func (t *Type) Datum() *datum.Type {
	if t == nil {
		return nil
	}
	if b := datum.Builtin(t.OID); b != nil {
		return b
	}
	d := &datum.Type{
		OID: t.OID, Schema: t.Schema, Name: t.Name, Kind: t.Kind, Delim: t.Delim, Extension: t.Extension,
		Base: t.Base.Datum(), BaseMod: t.BaseMod, Elem: t.Elem.Datum(), Range: t.RangeOver.Datum(),
	}
	if t.Kind == 'e' {
		d.Labels = t.EnumLabels
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		d.Fields = append(d.Fields, datum.Field{Name: f.Name, Type: f.Type.Datum(), Mod: f.Mod})
	}
	return d
}

// DatumCollation gives how text of the column compares.
func (c *Column) DatumCollation() datum.Collation {
	switch c.Collate {
	case 'c':
		return datum.CollationBytes
	case 'n':
		return datum.CollationNondeterministic
	}
	return datum.CollationOther
}
