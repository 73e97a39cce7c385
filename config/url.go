package config

import (
	"os"
	"strconv"
	"strings"
)

// FromURLs makes a configuration of two connection strings, without a file. An
// empty job is named after the source's database.
func FromURLs(from, to, job string, tables []string) (*Config, Problems) {
	var p Problems
	c := Default()
	c.SetSource(from)
	c.SetTables(tables)
	c.SetDestination(to)
	c.Job = job
	if c.Job == "" && from != "" {
		c.Job = CleanJob(databaseOf(from)) // of a Kafka URL that is the prefix
		if c.Job == "" {
			p.add("job", "the source names no database; give a job name with --job")
		}
	}
	return c, p
}

// CleanJob makes a job name of any text: lower case, with _ for each character
// that a job name cannot have, cut at 47. It is empty if nothing is left.
func CleanJob(s string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, s)
	clean = strings.Trim(clean, "_")
	return strings.TrimRight(clean[:min(len(clean), 47)], "_")
}

// databaseOf reads the database's name off a connection string, "" if it is
// not there. It is only used for a default, so it need not understand what
// libpq's parser does.
func databaseOf(conn string) string {
	scheme, rest, isURL := strings.Cut(conn, "://")
	if isURL && !strings.ContainsAny(scheme, " =") {
		return databaseOfURL(rest)
	}
	for word := range strings.FieldsSeq(conn) {
		if name, ok := strings.CutPrefix(word, "dbname="); ok {
			return strings.Trim(name, "'")
		}
	}
	return os.Getenv("PGDATABASE")
}

func databaseOfURL(rest string) string {
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	if _, name, ok := strings.Cut(rest, "/"); ok && name != "" {
		return unescape(name)
	}
	for pair := range strings.SplitSeq(query, "&") {
		if name, ok := strings.CutPrefix(pair, "dbname="); ok {
			return unescape(name)
		}
	}
	return os.Getenv("PGDATABASE")
}

// unescape resolves %XX; what is malformed stays.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
