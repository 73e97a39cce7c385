package kafka

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
)

// maxTopic is the longest name that Kafka takes
// (org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH).
const maxTopic = 249

// CheckPrefix says what is wrong with a prefix.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return fmt.Errorf("a prefix of topics is missing: kafka://host:9092/PREFIX")
	}
	for i := range len(prefix) {
		if !isPlain(prefix[i]) {
			return fmt.Errorf("prefix %q: want letters, digits, _ and - only", prefix)
		}
	}
	if len(prefix) > 100 {
		return fmt.Errorf("prefix of %d characters: want at most 100", len(prefix))
	}
	return nil
}

// isPlain tells the characters that stay as they are. A dot, which Kafka takes as
// well, separates the parts of a name.
func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// TopicOf gives the topic of a table: PREFIX.schema.table, in which each
// character outside [A-Za-z0-9_-] is _u<hex>_, and the first underscore of what
// would read as such an escape is escaped itself.
func TopicOf(prefix string, table millrace.TableName) string {
	return prefix + "." + escape(table.Schema) + "." + escape(table.Name)
}

func escape(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '_' && readsAsEscape(s[i:]):
			b.WriteString("_u5f_")
		case r < 0x80 && isPlain(byte(r)):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, "_u%x_", r)
		}
	}
	return b.String()
}

// readsAsEscape tells whether s, once its later characters are escaped, begins
// like an escape.
func readsAsEscape(s string) bool {
	rest, ok := strings.CutPrefix(s, "_u")
	if !ok {
		return false
	}
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789abcdef"))
	if digits < 1 || digits > 6 || digits == len(rest) {
		return false
	}
	next := rest[digits]
	return next == '_' || !isPlain(next) // whose escape begins with one
}

// escapeAt gives the length of the escape that s begins with, or 0.
func escapeAt(s string) int {
	if !strings.HasPrefix(s, "_u") {
		return 0
	}
	end := strings.IndexByte(s[2:], '_')
	if end < 1 || end > 6 {
		return 0
	}
	for _, c := range []byte(s[2 : 2+end]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return 0
		}
	}
	return end + 3
}

// TableOf is the reverse of TopicOf; ok is false for topics of other kinds.
func TableOf(prefix, topic string) (table millrace.TableName, ok bool) {
	rest, ok := strings.CutPrefix(topic, prefix+".")
	if !ok {
		return table, false
	}
	schema, name, ok := strings.Cut(rest, ".")
	if !ok || strings.Contains(name, ".") {
		return table, false
	}
	return millrace.TableName{Schema: unescape(schema), Name: unescape(name)}, true
}

func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		n := 0
		if s[i] == '_' {
			n = escapeAt(s[i:])
		}
		if n == 0 {
			b.WriteByte(s[i])
			i++
			continue
		}
		code, _ := strconv.ParseUint(s[i+2:i+n-1], 16, 32) // escapeAt has looked
		b.WriteRune(rune(code))
		i += n
	}
	return b.String()
}

// The topics of a prefix that are no table's.
func transactionTopic(prefix string) string  { return prefix + ".transaction" }
func streamTopic(prefix string) string       { return prefix + ".stream" }
func schemaTopic(prefix string) string       { return prefix + ".schema" }
func controlTopic(prefix, job string) string { return controlPrefix(prefix) + job }
func controlPrefix(prefix string) string     { return prefix + ".millrace." }

// transactionalID is what fences writers of one job from each other.
func transactionalID(prefix, job string) string { return "millrace." + prefix + "." + job }

// CheckTopics finds names that Kafka would refuse or mix up: too long ones, and
// those that differ in dots and underscores only. names says where a table goes
// that is not to go where TopicOf says.
func CheckTopics(prefix string, tables []millrace.TableName, names map[millrace.TableName]string) []error {
	var problems []error
	seen := map[string]millrace.TableName{}
	for _, t := range tables {
		topic := topicName(prefix, t, names)
		if names[t] != "" && reserved(prefix, topic) {
			problems = append(problems, fmt.Errorf("table %v: topic %s is one of the job's own", t, topic))
		}
		collides := strings.ReplaceAll(topic, ".", "_")
		other, taken := seen[collides]
		seen[collides] = t
		switch {
		case len(topic) > maxTopic:
			problems = append(problems, fmt.Errorf("table %v: its topic's name has %d bytes, Kafka takes %d", t, len(topic), maxTopic))
		case taken:
			problems = append(problems, fmt.Errorf("tables %v and %v: Kafka can't tell the topics %s and %s apart",
				other, t, topicName(prefix, other, names), topic))
		}
	}
	return problems
}

// reserved tells whether a topic is, or would be, one that is no table's.
func reserved(prefix, topic string) bool {
	return topic == transactionTopic(prefix) || topic == streamTopic(prefix) || topic == schemaTopic(prefix) ||
		strings.HasPrefix(topic, controlPrefix(prefix))
}

func topicName(prefix string, t millrace.TableName, names map[millrace.TableName]string) string {
	if n := names[t]; n != "" {
		return n
	}
	return TopicOf(prefix, t)
}
