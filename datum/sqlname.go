package datum

import (
	"strconv"

	"github.com/millrace/millrace"
)

// SQLName writes a type as SQL does, fully qualified, with its modifiers. The
// fields of an interval's modifier are left out: values without them fit.
func (t *Type) SQLName(mod int32) string {
	if t.Elem != nil && t.OID != oidInt2vector && t.OID != oidOidvector {
		return t.Elem.SQLName(mod) + "[]"
	}
	name := millrace.QuoteIdent(t.Schema) + "." + millrace.QuoteIdent(t.Name)
	if mod < 0 {
		return name
	}
	switch t.OID {
	case oidBpchar, oidVarchar:
		return name + "(" + strconv.Itoa(int(mod-4)) + ")"
	case oidNumeric:
		if precision, scale, ok := numericMod(mod); ok {
			return name + "(" + strconv.Itoa(precision) + "," + strconv.Itoa(scale) + ")"
		}
	case oidBit, oidVarbit, oidTime, oidTimetz, oidTimestamp, oidTimestamptz:
		return name + "(" + strconv.Itoa(int(mod)) + ")"
	}
	return name
}
