package catalog

import "fmt"

// OIDs of the built-in types that Compatible knows conversions of.
const (
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidCIDR        = 650
	oidFloat4      = 700
	oidFloat8      = 701
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
	oidJSONB       = 3802
)

// Compatible tells what a column like dst does to values of src in silence:
// rounding, cutting, padding, moving to another time zone. It is empty if it
// keeps each value that it takes, and raises an error for the others. A kept
// value is equal, but may be written in another way, as 1 is in numeric(5,2).
// The answer completes the sentence "column c of the target …".
func Compatible(src, dst *Column) string {
	return compatible(declared(src), declared(dst))
}

// Narrower tells in the same way why a value of src may be refused by dst, or
// lose what SQL says does not count: a warning where Compatible finds nothing.
func Narrower(src, dst *Column) string {
	return narrower(declared(src), declared(dst))
}

// modType is a type with its typmod, domains resolved.
type modType struct {
	*Type
	mod  int32
	text string
}

func declared(c *Column) modType {
	m := modType{Type: c.Type.Resolved(), mod: c.Mod, text: c.Declared}
	if c.Type.Base != nil {
		m.mod = c.Type.BaseMod
	}
	if m.text == "" {
		m.text = m.Name
	}
	return m
}

// elem gives the element of an array; the array's typmod belongs to it.
func (m modType) elem() modType {
	return modType{Type: m.Elem.Resolved(), mod: m.elemMod(), text: m.text}
}

func (m modType) elemMod() int32 {
	if m.Elem.Base != nil {
		return m.Elem.BaseMod
	}
	return m.mod
}

func compatible(s, d modType) string {
	switch {
	case s.Elem != nil && d.Elem != nil && s.Category == 'A' && d.Category == 'A':
		return compatible(s.elem(), d.elem())
	case s.OID >= firstUserOID && d.OID >= firstUserOID:
		return compatibleUser(s, d)
	case s.OID == d.OID:
		return sameType(s, d)
	case d.OID == oidText, d.OID == oidVarchar, d.OID == oidBpchar && d.mod < 0, d.Extension == "citext":
		return "" // whatever the source writes is kept as it is written
	case d.OID == oidBpchar:
		return fmt.Sprintf("is %s and pads or cuts blanks of %s", d.text, s.text)
	}
	return otherType(s, d)
}

// compatibleUser compares two types that are not built in, by name: their OIDs
// say nothing.
func compatibleUser(s, d modType) string {
	switch {
	case s.Kind == 'e' && d.Kind == 'e':
		return ""
	case s.Kind == 'c' && d.Kind == 'c':
		return compatibleFields(s, d)
	case s.Kind == d.Kind && s.Name == d.Name && s.Extension == d.Extension:
		return ""
	case d.Extension == "citext":
		return ""
	}
	return unlike(s, d)
}

func compatibleFields(s, d modType) string {
	if len(s.Fields) != len(d.Fields) {
		return fmt.Sprintf("is %s with %d fields and not %d", d.text, len(d.Fields), len(s.Fields))
	}
	for i := range s.Fields {
		sf, df := &s.Fields[i], &d.Fields[i]
		if sf.Name != df.Name {
			return fmt.Sprintf("is %s with field %s and not %s", d.text, df.Name, sf.Name)
		}
		if p := Compatible(sf, df); p != "" {
			return fmt.Sprintf("has field %s that %s", df.Name, p)
		}
	}
	return ""
}

// sameType compares the modifiers of one built-in type.
func sameType(s, d modType) string {
	if s.mod == d.mod || d.mod < 0 {
		return ""
	}
	switch s.OID {
	case oidNumeric:
		if s.mod < 0 || scaleOf(d.mod) < scaleOf(s.mod) {
			return rounds(s, d)
		}
	case oidTime, oidTimetz, oidTimestamp, oidTimestamptz:
		if s.mod < 0 || d.mod < s.mod {
			return rounds(s, d)
		}
	case oidInterval:
		sf, sp := intervalMod(s.mod)
		df, dp := intervalMod(d.mod)
		if df&sf != sf {
			return fmt.Sprintf("is %s and drops fields of %s", d.text, s.text)
		}
		if dp < sp {
			return rounds(s, d)
		}
	case oidBpchar:
		return fmt.Sprintf("is %s and pads or cuts blanks of %s", d.text, s.text)
	}
	return ""
}

// scaleOf reads the scale of numeric(p,s): eleven bits with sign, behind the
// four bytes that every typmod of a varlena type counts.
func scaleOf(mod int32) int32 { return ((mod-4)&0x7ff ^ 1024) - 1024 }

// intervalMod reads fields and precision of an interval's typmod (INTERVAL_RANGE
// and INTERVAL_PRECISION in utils/timestamp.h). The widest of each stands for
// no restriction.
func intervalMod(mod int32) (fields, precision int32) {
	if mod < 0 {
		return 0x7fff, 6
	}
	fields, precision = mod>>16&0x7fff, mod&0xffff
	if precision == 0xffff {
		precision = 6
	}
	return fields, precision
}

// exactly lists the conversions between different built-in types that keep
// every value that they take.
var exactly = map[[2]uint32]bool{
	{oidInt2, oidInt4}: true, {oidInt2, oidInt8}: true, {oidInt4, oidInt8}: true,
	{oidInt4, oidInt2}: true, {oidInt8, oidInt2}: true, {oidInt8, oidInt4}: true, // or raise
	{oidInt2, oidFloat4}: true, {oidInt2, oidFloat8}: true, {oidInt4, oidFloat8}: true,
	{oidFloat4, oidFloat8}: true,
	{oidNumeric, oidInt2}:  true, {oidNumeric, oidInt4}: true, {oidNumeric, oidInt8}: true, // raise on 1.0
	{oidDate, oidTimestamp}: true, {oidJSONB, oidJSON}: true,
	{oidCIDR, oidInet}: true, {oidInet, oidCIDR}: true, // or raise
	{oidBit, oidVarbit}: true, {oidVarbit, oidBit}: true, // or raise
}

// otherType judges two different types, at least one of them built in.
func otherType(s, d modType) string {
	if exactly[[2]uint32{s.OID, d.OID}] {
		return ""
	}
	switch {
	case zoned(s.OID) != zoned(d.OID) && temporal(s.OID) && temporal(d.OID):
		return fmt.Sprintf("is %s and moves %s to another time zone", d.text, s.text)
	case temporal(s.OID) && temporal(d.OID):
		return fmt.Sprintf("is %s and cuts %s", d.text, s.text)
	case d.OID == oidNumeric && isNumber(s.OID):
		if d.mod < 0 || isInteger(s.OID) && scaleOf(d.mod) >= 0 {
			return ""
		}
		return rounds(s, d)
	case isNumber(s.OID) && isNumber(d.OID):
		return rounds(s, d)
	case d.Kind == 'e' && (s.OID == oidText || s.OID == oidVarchar || s.OID == oidName):
		return ""
	}
	return unlike(s, d)
}

func rounds(s, d modType) string { return fmt.Sprintf("is %s and rounds %s", d.text, s.text) }

func unlike(s, d modType) string {
	return fmt.Sprintf("is %s, which is not known to keep %s as it is", d.text, s.text)
}

func temporal(oid uint32) bool {
	switch oid {
	case oidDate, oidTime, oidTimetz, oidTimestamp, oidTimestamptz:
		return true
	}
	return false
}

func zoned(oid uint32) bool { return oid == oidTimetz || oid == oidTimestamptz }

func isInteger(oid uint32) bool { return oid == oidInt2 || oid == oidInt4 || oid == oidInt8 }

func isNumber(oid uint32) bool {
	return isInteger(oid) || oid == oidFloat4 || oid == oidFloat8 || oid == oidNumeric
}

func narrower(s, d modType) string {
	switch {
	case s.Elem != nil && d.Elem != nil && s.Category == 'A' && d.Category == 'A':
		return narrower(s.elem(), d.elem())
	case s.Kind == 'e' && d.Kind == 'e':
		if !hasLabels(d.Type, s.EnumLabels) {
			return fmt.Sprintf("is %s and lacks labels of %s", d.text, s.text)
		}
		return ""
	case d.OID == oidVarchar && d.mod >= 0 && isString(s.OID) && (s.mod < 0 || s.mod > d.mod):
		return fmt.Sprintf("is %s: a longer %s stops the job, unless only blanks at its end are too many: those are cut",
			d.text, s.text)
	case isInteger(d.OID) && isNumber(s.OID) && width(s.OID) > width(d.OID),
		d.OID == oidNumeric && d.mod >= 0 && s.OID == oidNumeric && precisionOf(d.mod) < precisionOf(s.mod),
		(d.OID == oidBit || d.OID == oidVarbit) && d.mod >= 0 && d.mod != s.mod && (s.mod < 0 || d.mod < s.mod || d.OID == oidBit):
		return fmt.Sprintf("is %s: a %s that does not fit stops the job", d.text, s.text)
	}
	return ""
}

func isString(oid uint32) bool {
	return oid == oidText || oid == oidVarchar || oid == oidBpchar || oid == oidName
}

// width orders the number types by how much they take.
func width(oid uint32) int {
	switch oid {
	case oidInt2:
		return 2
	case oidInt4:
		return 4
	case oidInt8:
		return 8
	}
	return 16
}

// precisionOf reads the digits before the point that numeric(p,s) has room
// for; without a typmod there is room for all.
func precisionOf(mod int32) int32 {
	if mod < 0 {
		return 1 << 20
	}
	return (mod-4)>>16&0xffff - scaleOf(mod)
}
