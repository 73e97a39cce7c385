package millrace

import "strings"

// TableName is a table's schema and name, exactly as the catalog holds them.
type TableName struct {
	Schema, Name string
}

// String gives the name as a person would write it in SQL: parts that need
// quotes have them.
func (n TableName) String() string { return DisplayIdent(n.Schema) + "." + DisplayIdent(n.Name) }

// SQL gives the name with both parts quoted.
func (n TableName) SQL() string { return QuoteIdent(n.Schema) + "." + QuoteIdent(n.Name) }

// MarshalText implements encoding.TextMarshaler with the form of String.
func (n TableName) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// QuoteIdent quotes one SQL identifier.
func QuoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// QuoteLiteral quotes a string as an SQL literal that does not depend on
// standard_conforming_strings.
func QuoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}

// DisplayIdent gives an identifier as a person would write it. It quotes only what PostgreSQL's lexer would fold or split. Key
// words are left bare: the result is for reading and for table patterns.
func DisplayIdent(s string) string {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c == '_'
		digit := c >= '0' && c <= '9' || c == '$'
		if !letter && (i == 0 || !digit) {
			return QuoteIdent(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

// Identity is a table's replica identity (pg_class.relreplident).
type Identity byte

// The replica identities, with the letters of the catalog and the protocol.
const (
	IdentityDefault Identity = 'd'
	IdentityNothing Identity = 'n'
	IdentityFull    Identity = 'f'
	IdentityIndex   Identity = 'i'
)

func (i Identity) String() string {
	switch i {
	case IdentityDefault:
		return "default"
	case IdentityNothing:
		return "nothing"
	case IdentityFull:
		return "full"
	case IdentityIndex:
		return "index"
	}
	return "unknown"
}

// Column is one column as the stream sends it.
type Column struct {
	Name string
	Type uint32 // the type's OID at the source
	Mod  int32  // atttypmod
	// TypeName and TypeKind are set for types that are not built in: the name
	// with its schema, and pg_type.typtype. Both are empty when the type is gone
	// from the source since.
	TypeName string
	TypeKind byte
	// Def is what is known of the type beyond its OID: a *datum.Type, or nil for
	// built-in types and where nobody knows. Equal definitions of one source are
	// the same pointer.
	Def any
}

// Relation is one version of a table's shape, as the stream described it. It
// is immutable: a new shape is a new pointer, the same shape the same pointer.
type Relation struct {
	OID      uint32
	Name     TableName
	Identity Identity
	Columns  []Column
	// Key holds the indexes of the columns that the Relation message flags as
	// the replica identity. Under FULL every column is flagged.
	Key []int
}
