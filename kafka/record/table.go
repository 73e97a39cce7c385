package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/datum"
)

// TableVersion is the value of a record in PREFIX.schema: one version of one
// table, with all that is needed to read its records and to make the table
// elsewhere.
type TableVersion struct {
	Format   int          `json:"format"` // tableFormat
	Schema   string       `json:"schema"`
	Table    string       `json:"table"`
	Version  int          `json:"version"`    // 1, 2, … of this table
	Commit   millrace.LSN `json:"commit_lsn"` // of the first transaction with records of this version
	Topic    string       `json:"topic"`
	OID      uint32       `json:"oid"`
	Identity string       `json:"identity"`         // default, nothing, full, index
	Columns  []ColumnDef  `json:"columns"`          // in the order of rows
	Flagged  []string     `json:"identity_columns"` // those of the replica identity
	Key      []string     `json:"key"`              // those of the record key
	// What records look like: see Options.
	RecordFormat Format `json:"record_format"`
	Decimal      string `json:"decimal"` // string, bytes
	Lossy        bool   `json:"lossy,omitempty"`
	// Constraints are there if the catalog was read with the table.
	Constraints []ConstraintDef `json:"constraints"`
	Types       []TypeDef       `json:"types"` // that are not built in, parts before what they make up
}

// tableFormat is the version of the structure itself.
const tableFormat = 1

// ColumnDef is a column that records have.
type ColumnDef struct {
	Name    string `json:"name"`
	Type    string `json:"type"` // as SQL
	OID     uint32 `json:"type_oid"`
	Mod     int32  `json:"typmod"`
	NotNull bool   `json:"not_null"`
}

// ConstraintDef is a constraint as SQL.
type ConstraintDef struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"` // primary_key, unique, foreign_key
	Definition string `json:"definition"`
}

// TypeDef is a type that is not built in.
type TypeDef struct {
	OID       uint32     `json:"oid"`
	Schema    string     `json:"schema"`
	Name      string     `json:"name"`
	Kind      string     `json:"kind"` // pg_type.typtype
	Delim     string     `json:"delim,omitempty"`
	Extension string     `json:"extension,omitempty"`
	Base      uint32     `json:"base,omitempty"`
	BaseMod   int32      `json:"base_typmod,omitempty"`
	Elem      uint32     `json:"element,omitempty"`
	Range     uint32     `json:"subtype,omitempty"`
	Labels    []string   `json:"labels,omitempty"`
	Fields    []FieldDef `json:"fields,omitempty"`
}

// FieldDef is an attribute of a composite type.
type FieldDef struct {
	Name string `json:"name"`
	OID  uint32 `json:"type_oid"`
	Mod  int32  `json:"typmod"`
}

// NewTableVersion describes a relation whose records have the given key. Version
// and Commit are left to the caller. table and constraints may be nil: then what
// only the catalog knows is missing.
func NewTableVersion(o Options, rel *millrace.Relation, key []int, table *catalog.Table, constraints []catalog.Constraint) *TableVersion {
	v := &TableVersion{
		Format: tableFormat, Schema: rel.Name.Schema, Table: rel.Name.Name, Topic: o.Topic(rel.Name), OID: rel.OID,
		Identity: rel.Identity.String(), RecordFormat: o.Format, Decimal: "string", Lossy: o.Lossy,
		Flagged: columnNames(rel, rel.Key), Key: columnNames(rel, key),
		Constraints: []ConstraintDef{}, Types: []TypeDef{},
	}
	if o.Decimal == datum.DecimalBytes {
		v.Decimal = "bytes"
	}
	seen := map[uint32]bool{}
	for i := range rel.Columns {
		c := &rel.Columns[i]
		t := TypeOf(c)
		v.addType(t, seen)
		def := ColumnDef{Name: c.Name, Type: t.SQLName(c.Mod), OID: c.Type, Mod: c.Mod}
		if table != nil {
			if at := table.Column(c.Name); at != nil && at.Type.OID == c.Type && at.Mod == c.Mod {
				def.NotNull, def.Type = at.NotNull, at.Declared
			}
		}
		v.Columns = append(v.Columns, def)
	}
	kinds := map[byte]string{'p': "primary_key", 'u': "unique", 'f': "foreign_key"}
	for _, c := range constraints {
		v.Constraints = append(v.Constraints, ConstraintDef{c.Name, kinds[c.Kind], c.Definition})
	}
	return v
}

func columnNames(rel *millrace.Relation, at []int) []string {
	names := make([]string, len(at))
	for i, k := range at {
		names[i] = rel.Columns[k].Name
	}
	return names
}

// addType adds a type behind all that it is made of.
func (v *TableVersion) addType(t *datum.Type, seen map[uint32]bool) {
	if t == nil || seen[t.OID] || datum.Builtin(t.OID) != nil {
		return
	}
	seen[t.OID] = true
	d := TypeDef{OID: t.OID, Schema: t.Schema, Name: t.Name, Kind: string(rune(t.Kind)), Extension: t.Extension, Labels: t.Labels}
	if t.Delim != 0 && t.Delim != ',' {
		d.Delim = string(rune(t.Delim))
	}
	for _, part := range []struct {
		t  *datum.Type
		at *uint32
	}{{t.Base, &d.Base}, {t.Elem, &d.Elem}, {t.Range, &d.Range}} {
		if part.t != nil {
			v.addType(part.t, seen)
			*part.at = part.t.OID
		}
	}
	if t.Base != nil {
		d.BaseMod = t.BaseMod
	}
	for _, f := range t.Fields {
		v.addType(f.Type, seen)
		d.Fields = append(d.Fields, FieldDef{f.Name, f.Type.OID, f.Mod})
	}
	v.Types = append(v.Types, d)
}

// Name is the table's.
func (v *TableVersion) Name() millrace.TableName {
	return millrace.TableName{Schema: v.Schema, Name: v.Table}
}

// Marshal gives key and value of the record.
func (v *TableVersion) Marshal() (key, value []byte, err error) {
	key, err = json.Marshal(struct {
		Schema  string `json:"schema"`
		Table   string `json:"table"`
		Version int    `json:"version"`
	}{v.Schema, v.Table, v.Version})
	if err != nil {
		return nil, nil, err
	}
	value, err = json.Marshal(v)
	return key, value, err
}

// ParseTableVersion reads the value of a record of PREFIX.schema.
func ParseTableVersion(value []byte) (*TableVersion, error) {
	v := &TableVersion{}
	if err := json.Unmarshal(value, v); err != nil {
		return nil, fmt.Errorf("record of a table's schema: %w", err)
	}
	if v.Format != tableFormat {
		return nil, fmt.Errorf("record of table %v has format %d, this version reads %d", v.Name(), v.Format, tableFormat)
	}
	return v, nil
}

// Same tells whether two versions describe the same table, so that the later
// one need not be written.
func (v *TableVersion) Same(o *TableVersion) bool {
	a, b := *v, *o
	a.Version, b.Version, a.Commit, b.Commit = 0, 0, 0, 0
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// Relation gives what the changes of this version refer to, the record key, and
// the options that its records were written with.
func (v *TableVersion) Relation() (rel *millrace.Relation, key []int, o Options, err error) {
	types, err := v.types()
	if err != nil {
		return nil, nil, o, err
	}
	identities := map[string]millrace.Identity{"default": 'd', "nothing": 'n', "full": 'f', "index": 'i'}
	rel = &millrace.Relation{OID: v.OID, Name: v.Name(), Identity: identities[v.Identity]}
	for _, c := range v.Columns {
		col := millrace.Column{Name: c.Name, Type: c.OID, Mod: c.Mod}
		if t := types[c.OID]; t != nil {
			col.Def, col.TypeKind = t, t.Kind
			col.TypeName = millrace.TableName{Schema: t.Schema, Name: t.Name}.String()
		}
		rel.Columns = append(rel.Columns, col)
	}
	if rel.Key, err = v.indexes(v.Flagged); err != nil {
		return nil, nil, o, err
	}
	if key, err = v.indexes(v.Key); err != nil {
		return nil, nil, o, err
	}
	o = Options{Format: v.RecordFormat, Lossy: v.Lossy, Toast: Placeholder}
	if v.Decimal == "bytes" {
		o.Decimal = datum.DecimalBytes
	}
	return rel, key, o, nil
}

func (v *TableVersion) indexes(names []string) ([]int, error) {
	var all []int
	for _, n := range names {
		i := slices.IndexFunc(v.Columns, func(c ColumnDef) bool { return c.Name == n })
		if i < 0 {
			return nil, fmt.Errorf("record of table %v: key column %s is no column", v.Name(), n)
		}
		all = append(all, i)
	}
	return all, nil
}

var errTypes = errors.New("types are not in order")

// types ties the definitions together.
func (v *TableVersion) types() (map[uint32]*datum.Type, error) {
	all := map[uint32]*datum.Type{}
	bad := false
	get := func(oid uint32) *datum.Type {
		if t := datum.Builtin(oid); t != nil || oid == 0 {
			return t
		}
		t := all[oid]
		bad = bad || t == nil
		return t
	}
	for _, d := range v.Types {
		if len(d.Kind) != 1 {
			return nil, fmt.Errorf("record of table %v: type %s has kind %q", v.Name(), d.Name, d.Kind)
		}
		t := &datum.Type{
			OID: d.OID, Schema: d.Schema, Name: d.Name, Kind: d.Kind[0], Delim: ',', Extension: d.Extension,
			Base: get(d.Base), BaseMod: d.BaseMod, Elem: get(d.Elem), Range: get(d.Range), Labels: d.Labels,
		}
		if d.Delim != "" {
			t.Delim = d.Delim[0]
		}
		for _, f := range d.Fields {
			t.Fields = append(t.Fields, datum.Field{Name: f.Name, Type: get(f.OID), Mod: f.Mod})
		}
		all[d.OID] = t
	}
	if bad {
		return nil, fmt.Errorf("record of table %v: %w", v.Name(), errTypes)
	}
	return all, nil
}

// CreateTypes gives the statements that make the extensions, schemas and types
// which the table needs, each of which may fail because it is there already
// (SQLSTATE 42710, 42P06).
func (v *TableVersion) CreateTypes() ([]string, error) {
	types, err := v.types()
	if err != nil {
		return nil, err
	}
	var sql []string
	add := func(s string) {
		if !slices.Contains(sql, s) {
			sql = append(sql, s)
		}
	}
	add("CREATE SCHEMA IF NOT EXISTS " + millrace.QuoteIdent(v.Schema))
	for _, d := range v.Types {
		t := types[d.OID]
		add("CREATE SCHEMA IF NOT EXISTS " + millrace.QuoteIdent(d.Schema))
		name := millrace.QuoteIdent(d.Schema) + "." + millrace.QuoteIdent(d.Name)
		switch {
		case d.Extension != "":
			add("CREATE EXTENSION IF NOT EXISTS " + millrace.QuoteIdent(d.Extension) + " SCHEMA " + millrace.QuoteIdent(d.Schema))
		case t.Kind == 'e':
			labels := make([]string, len(t.Labels))
			for i, l := range t.Labels {
				labels[i] = millrace.QuoteLiteral(l)
			}
			add("CREATE TYPE " + name + " AS ENUM (" + strings.Join(labels, ", ") + ")")
		case t.Kind == 'd':
			// Without its checks: values have passed them at the source.
			add("CREATE DOMAIN " + name + " AS " + t.Base.SQLName(t.BaseMod))
		case t.Kind == 'c':
			fields := make([]string, len(t.Fields))
			for i, f := range t.Fields {
				fields[i] = millrace.QuoteIdent(f.Name) + " " + f.Type.SQLName(f.Mod)
			}
			add("CREATE TYPE " + name + " AS (" + strings.Join(fields, ", ") + ")")
		case t.Kind == 'r':
			add("CREATE TYPE " + name + " AS RANGE (subtype = " + t.Range.SQLName(-1) + ")")
		case t.Elem != nil, t.Kind == 'm': // comes with its element or range
		default:
			return nil, fmt.Errorf("table %v: type %s can't be made from its description", v.Name(), name)
		}
	}
	return sql, nil
}

// CreateTable gives the statement that makes the table with its primary key and
// unique constraints, and those that add its foreign keys, which need the other
// tables and hold once all rows are there.
func (v *TableVersion) CreateTable() (table string, foreignKeys []string) {
	name := v.Name().SQL()
	var parts []string
	for _, c := range v.Columns {
		p := millrace.QuoteIdent(c.Name) + " " + c.Type
		if c.NotNull {
			p += " NOT NULL"
		}
		parts = append(parts, p)
	}
	for _, c := range v.Constraints {
		def := "CONSTRAINT " + millrace.QuoteIdent(c.Name) + " " + c.Definition
		if c.Kind == "foreign_key" {
			foreignKeys = append(foreignKeys, "ALTER TABLE "+name+" ADD "+def)
		} else {
			parts = append(parts, def)
		}
	}
	return "CREATE TABLE " + name + " (" + strings.Join(parts, ", ") + ")", foreignKeys
}
