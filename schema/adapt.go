package schema

import "strings"

// adapt rewrites an entry's definition for a target of an older major version:
// what it cannot take is put in its older form where there is one that means
// the same to a replica. An entry that is left out gives "" and says so in note;
// one for which nothing older will do gives a problem.
func adapt(e *entry, target int) (sql, note, problem string) {
	sql = e.defn
	if target < 18 {
		sql, note, problem = adaptBefore18(e)
	}
	if target < 17 && e.desc == "SEQUENCE" && isPartitionedIdentity(e) {
		return "", "the identity of a partitioned table's column is left out: PostgreSQL 16 has none", ""
	}
	return sql, note, problem
}

func adaptBefore18(e *entry) (sql, note, problem string) {
	switch e.desc {
	case "TABLE":
		return adaptTable(e.defn), "", ""
	case "INDEX", "CONSTRAINT", "CHECK CONSTRAINT":
	default:
		return e.defn, "", ""
	}
	tokens := lex(e.defn)
	last := statementTail(tokens)
	switch {
	case hasWords(tokens, "WITHOUT", "OVERLAPS"):
		return "", "", "a key WITHOUT OVERLAPS needs PostgreSQL 18 on the target"
	case endsWith(last, "NOT", "ENFORCED"):
		return "", "a constraint that is not enforced is left out: it needs PostgreSQL 18", ""
	case e.desc != "INDEX" && isInvalidNotNull(last):
		return "", "a NOT NULL constraint that is not validated is left out: it needs PostgreSQL 18", ""
	}
	return join(dropNewOptions(tokens)), "", ""
}

// statementTail gives the tokens of the first statement, without the semicolon.
func statementTail(tokens []token) []token {
	for i, t := range tokens {
		if t.is(";") {
			return tokens[:i]
		}
	}
	return tokens
}

func hasWords(tokens []token, words ...string) bool {
	for i := range tokens {
		if len(tokens)-i >= len(words) && endsWith(tokens[i:i+len(words)], words...) {
			return true
		}
	}
	return false
}

// isInvalidNotNull recognizes ADD CONSTRAINT name NOT NULL column NOT VALID.
func isInvalidNotNull(tokens []token) bool {
	if !endsWith(tokens, "NOT", "VALID") {
		return false
	}
	for i, t := range tokens {
		if t.is("CONSTRAINT") && i+3 < len(tokens) {
			return tokens[i+2].is("NOT") && tokens[i+3].is("NULL")
		}
	}
	return false
}

// isPartitionedIdentity recognizes the statement that makes a column of a
// partitioned table an identity.
func isPartitionedIdentity(e *entry) bool {
	return e.partitioned && strings.Contains(e.defn, " ADD GENERATED ")
}

// adaptTable rewrites CREATE TABLE: virtual generated columns become stored
// ones, which have the same values; names and NO INHERIT of NOT NULL constraints
// go; those that stand on their own follow as ALTER TABLE.
func adaptTable(sql string) string {
	tokens := lex(sql)
	open := 0
	for open < len(tokens) && !tokens[open].is("(") {
		open++
	}
	// A table without columns has its parentheses too; one of a type (OF) may
	// have none.
	if open == len(tokens) || !tokens[0].is("CREATE") {
		return sql
	}
	parts, closing := elements(tokens, open)
	if closing < 0 {
		return sql
	}
	var kept []string
	var after strings.Builder
	for _, p := range parts {
		if column, ok := ownNotNull(p); ok {
			after.WriteString("\nALTER TABLE ONLY " + tableName(tokens[:open]) +
				" ALTER COLUMN " + column + " SET NOT NULL;\n")
			continue
		}
		kept = append(kept, adaptColumn(p))
	}
	return join(tokens[:open+1]) + strings.Join(kept, ",") + join(dropNewOptions(tokens[closing:])) + after.String()
}

// tableName takes the name out of CREATE [UNLOGGED] TABLE name.
func tableName(head []token) string {
	var b strings.Builder
	for _, t := range head {
		if !t.is("CREATE") && !t.is("UNLOGGED") && !t.is("TABLE") {
			b.WriteString(t.text)
		}
	}
	return b.String()
}

// ownNotNull recognizes [CONSTRAINT name] NOT NULL column.
func ownNotNull(p []token) (column string, ok bool) {
	if len(p) > 2 && p[0].is("CONSTRAINT") {
		p = p[2:]
	}
	if len(p) >= 3 && p[0].is("NOT") && p[1].is("NULL") {
		return p[2].text, true
	}
	return "", false
}

func adaptColumn(p []token) string {
	if len(p) > 0 && p[0].is("CONSTRAINT") {
		return join(p)
	}
	p = removeWords(p, "NO", "INHERIT")
	outer := 0
	if len(p) > 0 {
		outer = p[0].depth
	}
	for i := range p {
		if !p[i].is("AS") || p[i].depth != outer || i < 2 || !p[i-1].is("ALWAYS") || !p[i-2].is("GENERATED") {
			continue
		}
		end := i + 1
		for end < len(p) && !(p[end].is(")") && p[end].depth == outer) {
			end++
		}
		if end < len(p) && !(end+1 < len(p) && p[end+1].is("STORED")) {
			return join(p[:end+1]) + " STORED" + join(p[end+1:])
		}
	}
	return join(p)
}

// removeWords takes the words out where they follow NOT NULL.
func removeWords(p []token, words ...string) []token {
	for i := 2; i+len(words) <= len(p); i++ {
		if p[i-2].is("NOT") && p[i-1].is("NULL") && endsWith(p[i:i+len(words)], words...) {
			return append(append([]token{}, p[:i]...), p[i+len(words):]...)
		}
	}
	return p
}

// newOptions are the storage parameters that came with PostgreSQL 18. They tune
// vacuum and change nothing that a replica holds.
var newOptions = map[string]bool{
	"autovacuum_vacuum_max_threshold":      true,
	"vacuum_max_eager_freeze_failure_rate": true,
}

// dropNewOptions takes them out of WITH (…).
func dropNewOptions(tokens []token) []token {
	for i := 1; i < len(tokens); i++ {
		if !tokens[i].is("(") || !tokens[i-1].is("WITH") || tokens[i].depth != 0 {
			continue
		}
		parts, closing := elements(tokens, i)
		if closing < 0 {
			return tokens
		}
		var kept [][]token
		for _, p := range parts {
			if !isNewOption(p) {
				kept = append(kept, p)
			}
		}
		if len(kept) == len(parts) {
			return tokens
		}
		out := append([]token{}, tokens[:i-1]...)
		for n, p := range kept {
			if n == 0 {
				out = append(out, tokens[i-1], tokens[i])
			} else {
				out = append(out, token{text: ",", depth: 1})
			}
			out = append(out, p...)
		}
		if len(kept) > 0 {
			out = append(out, tokens[closing])
		}
		return append(out, tokens[closing+1:]...)
	}
	return tokens
}

// isNewOption looks at the name in front of the equals sign, without toast.
func isNewOption(p []token) bool {
	for i, t := range p {
		if t.is("=") && i > 0 {
			return newOptions[p[i-1].text]
		}
	}
	return false
}
