package catalog

// firstUserOID is FirstNormalObjectId (access/transam.h): lower OIDs are fixed
// in PostgreSQL's source and mean the same type on every server.
const firstUserOID = 16384

// Two built-in types that look like arrays but are none.
const (
	oidInt2vector = 22
	oidOidvector  = 30
)

// binaryTypes lists the built-in types whose binary form depends neither on
// the version nor on anything in the catalog, by OID. TestBinarySafe carries
// values of each between servers of different versions.
//
// Not here, since they hold OIDs of objects or have no binary form: the reg
// types, aclitem, record, int2vector, oidvector and internal types. Nor tsquery:
// an empty one is sent in a form that tsqueryrecv refuses.
var binaryTypes = map[uint32]string{
	16:   "bool",
	17:   "bytea",
	18:   "char",
	19:   "name",
	20:   "int8",
	21:   "int2",
	23:   "int4",
	25:   "text",
	26:   "oid",
	27:   "tid",
	28:   "xid",
	29:   "cid",
	114:  "json",
	142:  "xml",
	600:  "point",
	601:  "lseg",
	602:  "path",
	603:  "box",
	604:  "polygon",
	628:  "line",
	650:  "cidr",
	700:  "float4",
	701:  "float8",
	718:  "circle",
	774:  "macaddr8",
	790:  "money",
	829:  "macaddr",
	869:  "inet",
	1042: "bpchar",
	1043: "varchar",
	1082: "date",
	1083: "time",
	1114: "timestamp",
	1184: "timestamptz",
	1186: "interval",
	1266: "timetz",
	1560: "bit",
	1562: "varbit",
	1700: "numeric",
	2950: "uuid",
	3220: "pg_lsn",
	3614: "tsvector",
	3802: "jsonb",
	3904: "int4range",
	3906: "numrange",
	3908: "tsrange",
	3910: "tstzrange",
	3912: "daterange",
	3926: "int8range",
	4072: "jsonpath",
	4451: "int4multirange",
	4532: "nummultirange",
	4533: "tsmultirange",
	4534: "tstzmultirange",
	4535: "datemultirange",
	4536: "int8multirange",
	5069: "xid8",
}

// binaryExtensions lists the types of extensions whose binary form is self
// contained: text, or a version number and text. The extension must be the
// same on both sides.
var binaryExtensions = map[string]map[string]bool{
	"citext": {"citext": true},
	"hstore": {"hstore": true},
	"ltree":  {"ltree": true, "lquery": true, "ltxtquery": true},
}

// BinarySafe tells whether the binary form of src's values means the same to
// dst. Only what is known to be safe is; text is always possible instead.
func BinarySafe(src, dst *Type) bool {
	s, d := src.Resolved(), dst.Resolved()
	if !s.HasBinary || !d.HasBinary {
		return false
	}
	switch {
	case s.OID < firstUserOID || d.OID < firstUserOID:
		return s.OID == d.OID && builtinBinary(s)
	case s.Kind == 'e':
		return d.Kind == 'e' && hasLabels(d, s.EnumLabels) // sent as the label
	case s.Kind == 'c':
		return d.Kind == 'c' && sameFields(s.Fields, d.Fields)
	case s.Extension != "":
		return s.Extension == d.Extension && s.Name == d.Name && binaryExtensions[s.Extension][s.Name]
	}
	return false
}

// builtinBinary tells whether a built-in type may go in binary form. An array
// has the OID of its element type in it, which is built in as well.
func builtinBinary(t *Type) bool {
	oid := t.OID
	if t.Elem != nil && oid != oidInt2vector && oid != oidOidvector {
		oid = t.Elem.OID
	}
	return binaryTypes[oid] != ""
}

// sameFields tells whether two composite types hold the same built-in types
// under the same names. Their binary form has the OID of each field's type, so
// nothing else can be read on another server.
func sameFields(src, dst []Column) bool {
	if len(src) != len(dst) {
		return false
	}
	for i := range src {
		s, d := &src[i], &dst[i]
		if s.Name != d.Name || s.Type.OID != d.Type.OID || s.Type.OID >= firstUserOID || !builtinBinary(&s.Type) {
			return false
		}
	}
	return true
}

func hasLabels(enum *Type, labels []string) bool {
	have := make(map[string]bool, len(enum.EnumLabels))
	for _, l := range enum.EnumLabels {
		have[l] = true
	}
	for _, l := range labels {
		if !have[l] {
			return false
		}
	}
	return true
}
