package airbyte

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
)

// Config is the connector's configuration, as the platform's form gives it. The
// members follow Airbyte's source-postgres where it has the same thing. Members
// that are not known are ignored, as the protocol asks; those that would change
// what is read, and that this version does not act upon, are refused.
type Config struct {
	URL      string `json:"url"` // instead of the parts
	Host     string `json:"host"`
	Port     int    `json:"port"`
	Database string `json:"database"`
	Username string `json:"username"`
	Password string `json:"password"`

	Schemas []string `json:"schemas"` // none: public
	Tables  []string `json:"tables"`  // patterns, as for pg_dump -t; beside schemas
	// Keys are used instead of tables' own: a list, for which platforms have a form.
	Keys []ChosenKey `json:"keys"`

	SSL         SSLMode     `json:"ssl_mode"`
	RequireTLS  *bool       `json:"require_tls"` // nil: true
	Replication Replication `json:"replication_method"`

	Mode       string `json:"mode"`       // ModePoll or ModeContinuous
	StateType  string `json:"state_type"` // StateGlobal or StateStream
	CreateSlot bool   `json:"create_slot"`
	Ack        string `json:"ack"`      // AckNone or AckStdin
	Decimal    string `json:"decimal"`  // DecimalString or DecimalNumber
	Truncate   string `json:"truncate"` // TruncateStop or TruncateIgnore

	Tunnel        Tunnel          `json:"tunnel_method"`
	JDBCURLParams string          `json:"jdbc_url_params"`
	Mask          json.RawMessage `json:"mask"`

	keys catalog.Keys // Keys
}

// ChosenKey names the columns of a table's key.
type ChosenKey struct {
	Table   string   `json:"table"`
	Columns []string `json:"columns"`
}

// SSLMode is libpq's sslmode with the certificates as PEM text.
type SSLMode struct {
	Mode              string `json:"mode"`
	CACertificate     string `json:"ca_certificate"`
	ClientCertificate string `json:"client_certificate"`
	ClientKey         string `json:"client_key"`
	ClientKeyPassword string `json:"client_key_password"`
}

// Replication names the slot and the publication.
type Replication struct {
	Method      string `json:"method"` // CDC
	Slot        string `json:"replication_slot"`
	Publication string `json:"publication"`
}

// Tunnel is source-postgres' SSH tunnel, which this connector does not have.
type Tunnel struct {
	Method string `json:"tunnel_method"`
}

// The values of the members that are choices; the first one is the default.
const (
	ModePoll       = "poll"       // up to the source's position at the start
	ModeContinuous = "continuous" // until it is stopped

	StateGlobal = "global" // one position for all streams
	StateStream = "stream" // the position repeated in each stream's state

	AckNone  = "none"
	AckStdin = "stdin" // {"ack":n} lines

	DecimalString = "string"
	DecimalNumber = "number"

	TruncateStop   = "stop"   // the protocol has no word for a TRUNCATE
	TruncateIgnore = "ignore" // the platform keeps the rows
)

// ParseConfig reads a configuration and finds all that is wrong with it.
func ParseConfig(data []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, configError("config", jsonProblem(err), "it must be a JSON object as the spec describes it")
	}
	c.defaults()
	return c, c.validate()
}

// jsonProblem says what is wrong without quoting the document, which may hold a
// password.
func jsonProblem(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("no JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		where := ""
		if kind.Field != "" {
			where = "member " + kind.Field + ": "
		}
		return fmt.Errorf("%swant %s, got %s", where, jsonKind(kind.Type), kind.Value)
	}
	return errors.New("no JSON object")
}

// jsonKind names what JSON has for a type.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonKind(t.Elem())
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	}
	return "a number"
}

func (c *Config) defaults() {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&c.Mode, ModePoll)
	set(&c.StateType, StateGlobal)
	set(&c.Ack, AckNone)
	set(&c.Decimal, DecimalString)
	set(&c.Truncate, TruncateStop)
	set(&c.Replication.Method, "CDC")
	if c.Port == 0 {
		c.Port = 5432
	}
	if len(c.Schemas) == 0 && len(c.Tables) == 0 {
		c.Schemas = []string{"public"}
	}
}

func (c *Config) validate() error {
	var errs []error
	bad := func(member, hint, format string, args ...any) {
		errs = append(errs, configError(member, fmt.Errorf(format, args...), hint))
	}
	choice := func(member, value string, of ...string) {
		for _, v := range of {
			if v == value {
				return
			}
		}
		bad(member, "use one of them, or leave it out", "want %s, not %q", strings.Join(of, " or "), value)
	}
	choice("mode", c.Mode, ModePoll, ModeContinuous)
	choice("state_type", c.StateType, StateGlobal, StateStream)
	choice("ack", c.Ack, AckNone, AckStdin)
	choice("decimal", c.Decimal, DecimalString, DecimalNumber)
	choice("truncate", c.Truncate, TruncateStop, TruncateIgnore)
	choice("replication_method.method", c.Replication.Method, "CDC")
	if c.URL == "" {
		if c.Host == "" {
			bad("host", "give host and database, or url", "missing")
		}
		if c.Database == "" {
			bad("database", "give host and database, or url", "missing")
		}
	} else if c.Host != "" {
		bad("url", "leave one of them out", "stands beside host")
	}
	if c.Ack == AckStdin && c.Mode != ModeContinuous {
		bad("ack", "use mode: continuous, or leave ack out", "stdin is for mode continuous")
	}
	if m := c.Tunnel.Method; m != "" && m != "NO_TUNNEL" {
		bad("tunnel_method", "make the tunnel outside, and give its address as host", "not available in this version")
	}
	if c.JDBCURLParams != "" {
		bad("jdbc_url_params", "put libpq's parameters into url", "not available here")
	}
	if len(c.Mask) > 0 && string(c.Mask) != "null" {
		bad("mask", "take it out: this version can't do that, and ignores nothing that hides values", "not available in this version")
	}
	texts := map[string][]string{}
	const form = `write [{"table": "public.events", "columns": ["tenant", "id"]}], with names as in tables`
	for _, k := range c.Keys {
		if texts[k.Table] != nil {
			bad("keys", form, "%s: the table is named twice", k.Table)
		}
		texts[k.Table] = k.Columns
	}
	var wrong []error
	c.keys, wrong = catalog.ParseKeys(texts)
	for _, err := range wrong {
		bad("keys", form, "%w", err)
	}
	return errors.Join(errs...)
}

// Secure tells whether TLS is insisted on beyond loopback.
func (c *Config) Secure() bool { return c.RequireTLS == nil || *c.RequireTLS }

// Conn gives the connection string. The certificates are not in it.
func (c *Config) Conn() string {
	if c.URL != "" {
		return c.URL
	}
	u := url.URL{Scheme: "postgres", Host: net.JoinHostPort(c.Host, strconv.Itoa(c.Port)), Path: "/" + c.Database}
	if c.Username != "" {
		u.User = url.UserPassword(c.Username, c.Password)
	}
	if mode := c.SSL.Mode; mode != "" {
		if mode == "require" && c.SSL.CACertificate != "" {
			mode = "verify-ca" // as in libpq
		}
		u.RawQuery = url.Values{"sslmode": {mode}}.Encode()
	}
	return u.String()
}

// Patterns gives the table patterns: those of tables, and everything in schemas.
func (c *Config) Patterns() []string {
	patterns := make([]string, 0, len(c.Schemas)+len(c.Tables))
	for _, s := range c.Schemas {
		patterns = append(patterns, millrace.QuoteIdent(s)+".*")
	}
	return append(patterns, c.Tables...)
}

func configError(member string, err error, hint string) error {
	return &millrace.Error{Kind: millrace.KindConfig, Op: member, Err: err, Hint: hint}
}
