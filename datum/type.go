package datum

// Type is what must be known of a type to understand its values. Types that are
// built in come from Builtin; the catalog package makes the others.
type Type struct {
	OID    uint32
	Schema string
	Name   string
	Kind   byte // pg_type.typtype: b, c, d, e, p, r, m
	Delim  byte // between elements of an array of this type: ',' except for box
	// Extension is the name of the extension that the type belongs to, or "".
	Extension string
	Base      *Type    // the base type under a domain, never a domain itself
	BaseMod   int32    // the typmod that the domain gives it
	Elem      *Type    // of an array
	Range     *Type    // the subtype of a range or multirange
	Labels    []string // of an enum, in order
	Fields    []Field  // of a composite type
}

// Field is one attribute of a composite type.
type Field struct {
	Name string
	Type *Type
	Mod  int32
}

// resolve takes a domain down to its base type, with the typmod that holds
// there.
func (t *Type) resolve(mod int32) (*Type, int32) {
	for t.Base != nil {
		t, mod = t.Base, t.BaseMod
	}
	return t, mod
}

// The OIDs of built-in types that the code names (catalog/pg_type.dat).
const (
	oidBool        = 16
	oidBytea       = 17
	oidChar        = 18
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt2vector  = 22
	oidInt4        = 23
	oidText        = 25
	oidOid         = 26
	oidTid         = 27
	oidXid         = 28
	oidCid         = 29
	oidOidvector   = 30
	oidJSON        = 114
	oidXML         = 142
	oidPoint       = 600
	oidLseg        = 601
	oidPath        = 602
	oidBox         = 603
	oidPolygon     = 604
	oidLine        = 628
	oidCidr        = 650
	oidFloat4      = 700
	oidFloat8      = 701
	oidCircle      = 718
	oidMacaddr8    = 774
	oidMoney       = 790
	oidMacaddr     = 829
	oidInet        = 869
	oidBpchar      = 1042
	oidVarchar     = 1043
	oidDate        = 1082
	oidTime        = 1083
	oidTimestamp   = 1114
	oidTimestamptz = 1184
	oidInterval    = 1186
	oidTimetz      = 1266
	oidBit         = 1560
	oidVarbit      = 1562
	oidNumeric     = 1700
	oidUUID        = 2950
	oidPgLSN       = 3220
	oidTsvector    = 3614
	oidJSONB       = 3802
	oidJSONPath    = 4072
	oidXid8        = 5069
)

// builtin is one row of the table of built-in types: its array type, and for
// ranges and multiranges the subtype.
type builtin struct {
	oid, array uint32
	name       string
	sub        uint32
	kind       byte
}

var builtins = []builtin{
	{16, 1000, "bool", 0, 'b'}, {17, 1001, "bytea", 0, 'b'}, {18, 1002, "char", 0, 'b'}, {19, 1003, "name", 0, 'b'},
	{20, 1016, "int8", 0, 'b'}, {21, 1005, "int2", 0, 'b'}, {22, 1006, "int2vector", 0, 'b'}, {23, 1007, "int4", 0, 'b'},
	{24, 1008, "regproc", 0, 'b'}, {25, 1009, "text", 0, 'b'}, {26, 1028, "oid", 0, 'b'}, {27, 1010, "tid", 0, 'b'},
	{28, 1011, "xid", 0, 'b'}, {29, 1012, "cid", 0, 'b'}, {30, 1013, "oidvector", 0, 'b'}, {114, 199, "json", 0, 'b'},
	{142, 143, "xml", 0, 'b'}, {600, 1017, "point", 0, 'b'}, {601, 1018, "lseg", 0, 'b'}, {602, 1019, "path", 0, 'b'},
	{603, 1020, "box", 0, 'b'}, {604, 1027, "polygon", 0, 'b'}, {628, 629, "line", 0, 'b'}, {650, 651, "cidr", 0, 'b'},
	{700, 1021, "float4", 0, 'b'}, {701, 1022, "float8", 0, 'b'}, {718, 719, "circle", 0, 'b'}, {774, 775, "macaddr8", 0, 'b'},
	{790, 791, "money", 0, 'b'}, {829, 1040, "macaddr", 0, 'b'}, {869, 1041, "inet", 0, 'b'}, {1033, 1034, "aclitem", 0, 'b'},
	{1042, 1014, "bpchar", 0, 'b'}, {1043, 1015, "varchar", 0, 'b'}, {1082, 1182, "date", 0, 'b'}, {1083, 1183, "time", 0, 'b'},
	{1114, 1115, "timestamp", 0, 'b'}, {1184, 1185, "timestamptz", 0, 'b'}, {1186, 1187, "interval", 0, 'b'},
	{1266, 1270, "timetz", 0, 'b'}, {1560, 1561, "bit", 0, 'b'}, {1562, 1563, "varbit", 0, 'b'}, {1700, 1231, "numeric", 0, 'b'},
	{1790, 2201, "refcursor", 0, 'b'}, {2202, 2207, "regprocedure", 0, 'b'}, {2203, 2208, "regoper", 0, 'b'},
	{2204, 2209, "regoperator", 0, 'b'}, {2205, 2210, "regclass", 0, 'b'}, {2206, 2211, "regtype", 0, 'b'},
	{2950, 2951, "uuid", 0, 'b'}, {2970, 2949, "txid_snapshot", 0, 'b'}, {3220, 3221, "pg_lsn", 0, 'b'},
	{3614, 3643, "tsvector", 0, 'b'}, {3615, 3645, "tsquery", 0, 'b'}, {3642, 3644, "gtsvector", 0, 'b'},
	{3734, 3735, "regconfig", 0, 'b'}, {3769, 3770, "regdictionary", 0, 'b'}, {3802, 3807, "jsonb", 0, 'b'},
	{4072, 4073, "jsonpath", 0, 'b'}, {4089, 4090, "regnamespace", 0, 'b'}, {4096, 4097, "regrole", 0, 'b'},
	{4191, 4192, "regcollation", 0, 'b'}, {5038, 5039, "pg_snapshot", 0, 'b'}, {5069, 271, "xid8", 0, 'b'},
	{3904, 3905, "int4range", 23, 'r'}, {3906, 3907, "numrange", 1700, 'r'}, {3908, 3909, "tsrange", 1114, 'r'},
	{3910, 3911, "tstzrange", 1184, 'r'}, {3912, 3913, "daterange", 1082, 'r'}, {3926, 3927, "int8range", 20, 'r'},
	{4451, 6150, "int4multirange", 23, 'm'}, {4532, 6151, "nummultirange", 1700, 'm'}, {4533, 6152, "tsmultirange", 1114, 'm'},
	{4534, 6153, "tstzmultirange", 1184, 'm'}, {4535, 6155, "datemultirange", 1082, 'm'}, {4536, 6157, "int8multirange", 20, 'm'},
}

var builtinTypes = func() map[uint32]*Type {
	all := make(map[uint32]*Type, 2*len(builtins))
	for _, b := range builtins {
		t := &Type{OID: b.oid, Schema: "pg_catalog", Name: b.name, Kind: b.kind, Delim: ','}
		if b.oid == oidBox {
			t.Delim = ';'
		}
		if b.sub != 0 {
			t.Range = all[b.sub]
		}
		all[b.oid] = t
		all[b.array] = &Type{OID: b.array, Schema: "pg_catalog", Name: "_" + b.name, Kind: 'b', Delim: ',', Elem: t}
	}
	return all
}()

// Builtin gives a type that every server has under the same OID, or nil. The
// result is shared: do not change it.
func Builtin(oid uint32) *Type { return builtinTypes[oid] }

// Unknown stands for a type that nobody can describe any more: its values are
// opaque text.
func Unknown(oid uint32, name string) *Type {
	return &Type{OID: oid, Name: name, Kind: 'b', Delim: ','}
}
