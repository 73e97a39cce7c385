package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/hooks"
	"github.com/millrace/millrace/session"
)

const minimal = `
job: shop
source: {postgres: {url: "host=/run/a dbname=shop"}}
destination: {postgres: {url: "host=/run/b dbname=shop"}}
`

// full names every key there is.
const full = `
job: shop
source:
  postgres:
    url: "postgres://app@127.0.0.1/shop"
    tables: ["public.*", "!public.audit"]
    slot: my_slot
    publication: My publication
    failover: false
    streaming: off
    two_phase: on
    origin: none
keys: {public.events: [tenant, id], '"Odd".t': ['"K"']}
snapshot: {mode: none, parallel: 4, timeout: 90m, rate: 10MiB}
apply: {group: 1, eager: off, max_batch_rows: 50, max_batch_bytes: 2MiB, truncate: delete}
destination:
  postgres: {url: "host=127.0.0.1 dbname=copy", schema: existing}
resources:
  memory_budget: 256MiB
  max_inflight: 32MiB
  channel_capacity: 64
  buffer_size: 64KiB
  max_message: 8MiB
  connection_timeout: 3s
  retry_backoff: {min: 100ms, max: 10s}
  max_replication_lag: 2GiB
  wal_retention_alarm: 3GiB
  spool: {dir: /srv/spool, limit: 20GiB}
safety:
  require_tls: false
  insecure_skip_tls_verify: true
  auto_create_publication: true
  allow_remote_publication_create: true
  wal_retention_action: alarm
  heartbeat_interval: 5s
http: {listen: "127.0.0.1:0", token: abc, actions: false}
hooks: {webhook: {url: "http://127.0.0.1:9/x", authorization: Bearer x}, command: [/usr/bin/logger, -t, millrace]}
`

// checks are those that the command uses.
var checks = Checks{
	Patterns: func(texts []string) []error {
		_, errs := catalog.ParsePatterns(texts)
		return errs
	},
	Keys: func(texts map[string][]string) []error {
		_, errs := catalog.ParseKeys(texts)
		return errs
	},
	Conn: func(peer millrace.Peer, conn string, s Safety) error {
		e := session.Static(peer, conn, "x")
		e.TLS = session.TLSPolicy{Require: s.RequireTLS, InsecureSkipVerify: s.InsecureSkipTLSVerify}
		if _, err := e.Config(); err != nil {
			return errors.Unwrap(err)
		}
		return nil
	},
	Webhook: func(url string, s Safety) error { return hooks.CheckURL(url, s.RequireTLS) },
}

func report(c *Config, p Problems) string { return p.Plus(c.Validate(checks)).String() }

func TestDefaultsAreValid(t *testing.T) {
	c, p := Parse([]byte(minimal))
	if r := report(c, p); r != "" {
		t.Fatal(r)
	}
	want := Default()
	want.Job = "shop"
	want.Source.Postgres.URL = Template("host=/run/a dbname=shop")
	want.Destination.Postgres.URL = Template("host=/run/b dbname=shop")
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Error(diff)
	}
	if c.Slot() != "millrace_shop" || c.Publication() != "millrace_shop" {
		t.Error(c.Slot(), c.Publication())
	}
	if addr, configured := c.Listen(); addr != DefaultListen || configured {
		t.Error(addr, configured)
	}
	empty, p := Parse(nil)
	if got := report(empty, p); got != "destination.postgres.url: missing\njob: missing\nsource.postgres.url: missing" {
		t.Error(got)
	}
}

// TestEager: without a word it is on where transactions come while they are open, and
// nothing else applies them differently.
func TestEager(t *testing.T) {
	for yaml, want := range map[string]bool{
		"":                                     true,
		"apply: {eager: on}":                   true,
		"apply: {eager: off}":                  false,
		"source: {postgres: {streaming: off}}": false,
		"source: {postgres: {streaming: parallel}}":                 true,
		"source: {postgres: {two_phase: on}}":                       false,
		"apply: {eager: off}\nsource: {postgres: {streaming: off}}": false,
	} {
		c, p := Parse([]byte(yaml))
		if len(p) > 0 || c.Eager() != want {
			t.Errorf("%q: %t %v", yaml, c.Eager(), p)
		}
	}
}

func TestEveryKey(t *testing.T) {
	c, p := Parse([]byte(full))
	if r := report(c, p); r != "" {
		t.Fatal(r)
	}
	want := &Config{
		Job: "shop",
		Source: Source{Postgres: SourcePostgres{
			URL: Template("postgres://app@127.0.0.1/shop"), Tables: []string{"public.*", "!public.audit"},
			Slot: "my_slot", Publication: "My publication", Failover: false, Streaming: "off", TwoPhase: true, Origin: "none",
		}, Kafka: defaultKafka()},
		Keys:        map[string][]string{"public.events": {"tenant", "id"}, `"Odd".t`: {`"K"`}},
		Snapshot:    Snapshot{"none", 4, 90 * time.Minute, 10 * mib},
		Apply:       Apply{1, 50, 2 * mib, "off", "delete"},
		Destination: Destination{Postgres: DestinationPostgres{Template("host=127.0.0.1 dbname=copy"), "existing"}, Kafka: defaultKafka()},
		Resources: Resources{
			256 * mib, 32 * mib, 64, 64 * kib, 8 * mib, 3 * time.Second,
			Backoff{100 * time.Millisecond, 10 * time.Second}, 2 * gib, 3 * gib, Spool{"/srv/spool", 20 * gib},
		},
		Safety: Safety{false, true, true, true, "alarm", 5 * time.Second},
		HTTP:   HTTP{"127.0.0.1:0", Template("abc"), false},
		Hooks: Hooks{Webhook{Template("http://127.0.0.1:9/x"), Template("Bearer x")},
			[]string{"/usr/bin/logger", "-t", "millrace"}},
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Error(diff)
	}
	if c.Slot() != "my_slot" || c.Publication() != "My publication" {
		t.Error(c.Slot(), c.Publication())
	}
	for path := range fieldsOf(Default()) {
		if strings.HasPrefix(path, "destination.kafka.") || strings.HasPrefix(path, "source.kafka.") {
			continue // of the other ends
		}
		key := path[strings.LastIndexByte(path, '.')+1:] + ":"
		if !strings.Contains(full, key) {
			t.Errorf("%s is not in the test", path)
		}
	}
}

const fullKafka = `
job: shop
source: {postgres: {url: host=/run/a dbname=shop}}
destination:
  kafka:
    brokers: ["a:9092", "b:9092"]
    prefix: shop
    layout: tables
    format: avro
    registry: {url: "https://registry", user: r, password: q}
    partitions: 6
    replication: 3
    retention: 720h
    compact: true
    decimal: bytes
    toast: omit
    types: debezium
    topics: {public.orders: shop.orders}
    tls: {enable: true, ca: /ca, cert: /cert, key: /key, server_name: broker}
    sasl: {mechanism: SCRAM-SHA-256, user: me, password: "${KAFKA_PW}"}
`

func TestEveryKeyOfKafka(t *testing.T) {
	t.Setenv("KAFKA_PW", "pw")
	c, p := Parse([]byte(fullKafka))
	if r := report(c, p); r != "" {
		t.Fatal(r)
	}
	want := Kafka{Brokers: []string{"a:9092", "b:9092"}, Prefix: "shop", Layout: "tables", Format: "avro", Partitions: 6, Replication: 3,
		Retention: 720 * time.Hour, Compact: true, Decimal: "bytes", Toast: "omit", Types: TypesDebezium, Consistency: "transaction", Topics: map[string]string{"public.orders": "shop.orders"},
		TLS: KafkaTLS{true, "/ca", "/cert", "/key", "broker"}, SASL: KafkaSASL{"SCRAM-SHA-256", "me", Template("${KAFKA_PW}")}, Registry: KafkaRegistry{"https://registry", "r", Template("q")}}
	if diff := cmp.Diff(want, c.Destination.Kafka, cmp.AllowUnexported(Secret{})); diff != "" {
		t.Error(diff)
	}
	for path := range fieldsOf(Default()) {
		key := path[strings.LastIndexByte(path, '.')+1:] + ":"
		if strings.HasPrefix(path, "destination.kafka.") && !strings.Contains(fullKafka, key) {
			t.Errorf("%s is not in the test", path)
		}
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"nonsense: 1", "nonsense: unknown key"},
		{"snapshot: {parallels: 3}", "snapshot.parallels: unknown key; did you mean parallel?"},
		{"resources: {retry_backof: {min: 1s}}", "resources.retry_backof: unknown key; did you mean retry_backoff?"},
		{"safety: {1: 2}", "safety.1: unknown key"},
		{"snapshot: 3", "snapshot: want a mapping of keys to values"},
		{"snapshot: {parallel: {a: 1}}", "snapshot.parallel: want a whole number"},
		{"[1, 2]", "file: want a mapping of keys to values"},
		{"job: [a]", "job: want text; put it in quotes"},
		{"job: 7", "job: want text; put it in quotes"},
		{"job: Shop", "job: want 1 to 47 characters of a-z, 0-9 and _"},
		{"job: " + strings.Repeat("a", 48), "job: want 1 to 47 characters of a-z, 0-9 and _"},
		{"source: {postgres: {slot: a-b}}", "source.postgres.slot: want 1 to 63 characters of a-z, 0-9 and _"},
		{"source: {postgres: {publication: " + strings.Repeat("p", 64) + "}}", "source.postgres.publication: want at most 63 bytes"},
		{"source: {postgres: {tables: public.a}}", "source.postgres.tables: want a list of texts"},
		{"source: {postgres: {tables: [1]}}", "source.postgres.tables: item 1: want text; put it in quotes"},
		{
			`source: {postgres: {tables: [a, "b.\"c"]}}`, "source.postgres.tables: table pattern \"a\": the schema is missing, as in public.orders or *.orders\n" +
				"source.postgres.tables: table pattern \"b.\\\"c\": the closing double quote is missing",
		},
		{"snapshot: {parallel: 0}", "snapshot.parallel: 0 is out of range, want 1 to 64"},
		{"snapshot: {timeout: -1s}", "snapshot.timeout: -1s is out of range, want 0s to 1000h0m0s"},
		{"snapshot: {timeout: 6}", "snapshot.timeout: want a duration such as 10s, 5m or 6h"},
		{"snapshot: {mode: all}", "snapshot.mode: want consistent or incremental or none"},
		{"apply: {group: 2}", "apply.group: want auto or 1"},
		{"apply: {max_batch_bytes: 4MB}", "apply.max_batch_bytes: want a size such as 64MiB (units B, KiB, MiB, GiB, TiB)"},
		{"apply: {max_batch_bytes: 99999999TiB}", "apply.max_batch_bytes: too large"},
		{"apply: {truncate: drop}", "apply.truncate: want truncate or delete"},
		{"destination: {postgres: {schema: replace}}", "destination.postgres.schema: want create or existing"},
		{"resources: {retry_backoff: {min: 1m}}", "resources.retry_backoff: min is more than max"},
		{"safety: {require_tls: 1}", "safety.require_tls: want true or false"},
		{"safety: {heartbeat_interval: 1h}", "safety.heartbeat_interval: 1h0m0s is out of range, want 1s to 1m0s"},
		{"http: {listen: 8642}", "http.listen: want text; put it in quotes"},
		{"http: {listen: nowhere}", "http.listen: want host:port, such as 127.0.0.1:8642"},
		{`http: {listen: "127.0.0.1:99999"}`, "http.listen: want a port from 0 to 65535"},
		{`http: {listen: ":8642"}`, "http.token: needed to listen beyond loopback (http.listen is :8642)"},
		{`http: {listen: "0.0.0.0:1", token: "${EMPTY}"}`, "http.token: needed to listen beyond loopback (http.listen is 0.0.0.0:1)"},
		{`http: {listen: "[::1]:1"}`, ""},

		{"mask: {public.users: {email: redact}}", "mask: not available in this version"},
		{"mask:", "mask: not available in this version"},
		{"keys: {}", ""},
		{"keys: {public.events: [tenant, id]}", ""},
		{"keys: [a]", "keys: want a mapping of tables to lists of columns, such as {public.events: [tenant, id]}"},
		{"keys: {public.events: id}", "keys: public.events: want a list of texts"},
		{"keys: {public.events: []}", "keys: public.events: want a list of columns"},
		{"keys: {events: [id]}", `keys: events: table pattern "events": the schema is missing, as in public.orders or *.orders`},
		{"keys: {public.*: [id]}", `keys: public.*: "public.*": want the name of one table`},
		{"keys: {public.events: [a.b]}", `keys: public.events: column "a.b": want the name of one column`},
		{"keys: {public.events: [id, ID]}", `keys: public.events: column "ID" is named twice`},
		{"keys: {public.events: [id], PUBLIC.events: [id]}", "keys: public.events: the table is named twice"},
		{"source: {kafka: {consistency: row}}", "source.kafka.consistency: want transaction or key"},
		{"source: {kafka: {format: json}}", "source.kafka.format: unknown key"},
		{"destination: {stdout: {format: json}}", "destination.stdout: not available in this version"},
		{"snapshot: {mode: incremental}", ""},
		{"resources: {spool: {dir: relative, limit: 1MiB}}", "resources.spool.dir: want an absolute path\nresources.spool.limit: 1MiB is out of range, want 16MiB to 1024TiB"},
		{"resources: {spool: {dir: /tmp, limit: 20GiB}}", ""},
		{"source: {postgres: {streaming: on}}", ""},
		{"source: {postgres: {streaming: off}}", ""},
		{"source: {postgres: {streaming: \"off\"}}", ""},
		{"source: {postgres: {streaming: parallel}}", ""},
		{"source: {postgres: {streaming: maybe}}", "source.postgres.streaming: want on, off or parallel"},
		{"apply: {eager: on}", ""},
		{"apply: {eager: 2}", "apply.eager: want on or off"},
		{"apply: {eager: on}\nsource: {postgres: {streaming: off}}", "apply.eager: needs source.postgres.streaming: on or parallel"},
		{"apply: {eager: on}\nsource: {postgres: {two_phase: on}}", "apply.eager: not together with source.postgres.two_phase: on"},
		{"safety: {wal_retention_action: pause_load}", ""},
		{"safety: {wal_retention_action: stop}", ""},
		{"safety: {wal_retention_action: drop}", "safety.wal_retention_action: want alarm or pause_load or stop"},
		{"hooks: {webhook: {url: http://hooks.example/secret}}", "hooks.webhook.url: beyond loopback only https is accepted"},
		{"hooks: {webhook: {authorization: a}}", "hooks.webhook.url: missing"},
		{"hooks: {webhook: {url: \"${UNSET}\"}}", "hooks.webhook.url: environment variable UNSET is not set"},
		{"hooks: {command: date}", "hooks.command: want a list of texts"},
		{"hooks: {command: [\"\"]}", "hooks.command: want a program and its arguments"},
		{"http: {actions: true}", ""},
		{"http: {actions: maybe}", "http.actions: want true or false"},

		{"snapshot: {parallel: \"${UNSET}\"}", "snapshot.parallel: environment variable UNSET is not set"},
		{"snapshot: {parallel: \"${FOUR}\"}", ""},
		{"safety: {require_tls: \"${FOUR}\"}", "safety.require_tls: want true or false"},
		{"${FOUR}: 1", "${FOUR}: unknown key"},
		{"source: {postgres: {slot: }}\nsafety:\nhttp: ~", ""},
		{"a: b: c", "file: [1:4] mapping value is not allowed in this context"},
		{"snapshot: {rate: 1, rate: 2}", `file: [1:21] mapping key "rate" already defined at [1:12]`},
		{"job: shop\n---\njob: again", "file: holds more than one YAML document"},
	} {
		t.Setenv("FOUR", "4")
		t.Setenv("EMPTY", "")
		config, problems := Parse([]byte(c.yaml))
		if !strings.Contains(c.yaml, "job:") {
			config.Job = "shop"
		}
		for _, url := range []*Secret{&config.Source.Postgres.URL, &config.Destination.Postgres.URL} {
			if url.Empty() {
				*url = Literal("host=/run/a")
			}
		}
		got, want := strings.Split(report(config, problems), "\n"), strings.Split(c.want, "\n")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", c.yaml, diff)
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	c, p := Parse([]byte(`
job: Shop
source: {postgres: {url: "postgres://a:geheim@db.example/x?sslmode=disable", tables: [x]}, kafka: {topics: {}}}
destination: {postgres: {url: "${NOT_SET}", schema: none}}
snapshot: {mode: all, parallels: 1}
resources: {max_message: 64MiB, buffer_size: 1KiB}
http: {actions: 2}
`))
	want := []string{
		"destination.postgres.schema", "destination.postgres.url", "http.actions", "job", "resources.buffer_size",
		"resources.memory_budget", "snapshot.mode", "snapshot.parallels", "source.kafka.topics", "source.postgres.tables", "source.postgres.url",
	}
	var got []string
	all := p.Plus(c.Validate(checks))
	for _, x := range all {
		got = append(got, x.Path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	err := all.Err()
	if millrace.KindOf(err) != millrace.KindConfig || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "geheim") {
		t.Error(err)
	}
	if Problems(nil).Err() != nil {
		t.Error("no problems are an error")
	}
}

func TestMemoryBudget(t *testing.T) {
	c, p := Parse([]byte(minimal + "resources: {memory_budget: 124MiB, max_message: 16MiB}\nsnapshot: {parallel: 3}"))
	// 36 + 16 + 2×4 + 4×0.25 + 4×16 = 125
	want := "resources.memory_budget: 124MiB is less than 125MiB: 36MiB of its own + max_inflight 16MiB + 2 × apply.max_batch_bytes 4MiB + buffers 1MiB + 4 × max_message 16MiB"
	if got := report(c, p); got != want {
		t.Error(got)
	}
	c.Resources.MemoryBudget = 125 * mib
	if got := report(c, p); got != "" {
		t.Error(got)
	}
}

func TestOtherDestinations(t *testing.T) {
	for url, want := range map[string]string{
		"kafka://h:9092/prefix": "",
		"kafka://h:9092/prefix?format=json-inline&partitions=3&retention=forever&tls=true": "",
		"kafka://u:p@h:9092,i:9092/prefix?mechanism=PLAIN":                                 "",
		"kafka://h:9092/prefix?format=xml":                                                 "destination.kafka.url: format: want json or json-inline or json-schema or avro or flat or keys",
		"kafka://h:9092/prefix?layout=stream":                                              "",
		"kafka://h:9092/prefix?layout=stream&partitions=2":                                 "destination.kafka.partitions: layout stream has one partition, in which all is in order",
		"kafka://h:9092/prefix?layout=stream&compact=true":                                 "destination.kafka.compact: layout stream holds transactions, of which compaction would leave pieces",
		"kafka://h:9092/prefix?layout=streams":                                             "destination.kafka.url: layout: want tables or stream",
		"kafka://h:9092/prefix?linger=1":                                                   "destination.kafka.url: \"linger\": unknown behind the ?",
		"stdout:":                                                                          "destination.stdout: not available in this version",
		"mysql://h/x":                                                                      "destination.postgres.url: not a valid connection string",
		"":                                                                                 "destination.postgres.url: missing",
	} {
		c, p := FromURLs("host=/a dbname=shop", url, "", nil)
		if got := report(c, p); got != want {
			t.Errorf("%q: %s", url, got)
		}
	}
}

func TestKafkaSource(t *testing.T) {
	for url, want := range map[string]string{
		"kafka://h:9092/Shop-1": "",
		"kafka://u:p@h:9092,i:9092/Shop-1?mechanism=PLAIN&tls=true": "",
		"kafka://h:9092/Shop-1?format=json":                         "source.kafka.url: \"format\": unknown behind the ?",
		"kafka://h:9092/Shop-1?consistency=row":                     "source.kafka.url: consistency: want transaction or key",
		"kafka://h:9092/Shop-1?consistency=key":                     "",
		"kafka://h:9092/Shop-1?consistency=key&share=2/2":           "",
		"kafka://h:9092/Shop-1?consistency=key&share=3/2":           "source.kafka.share: want a share such as 2/4, the second of four workers, of which there may be 1000",
		"kafka://h:9092/Shop-1?share=1/2":                           "source.kafka.share: goes with consistency: key only: whole transactions have one reader",
	} {
		c, p := FromURLs(url, "host=/b", "", []string{"public.*"})
		if got := report(c, p); got != want {
			t.Errorf("%q: %s", url, got)
		}
		if _, tables := c.Tables(); c.Job != "shop_1" || len(tables) != 1 {
			t.Errorf("%q: job %q, tables %q", url, c.Job, tables)
		}
	}
	c, p := Parse([]byte("job: x\nsource: {kafka: {brokers: ['h:9092'], prefix: p, tables: [public.a]}, postgres: {url: 'host=/a'}}\n" +
		"destination: {kafka: {brokers: ['h:9092'], prefix: q}}\nsnapshot: {mode: none}"))
	if got := report(c, p); !strings.Contains(got, "source: both postgres and kafka") || !strings.Contains(got, "destination.kafka: not available") ||
		!strings.Contains(got, "snapshot.mode: has no meaning") {
		t.Error(got)
	}
}

// Kafka takes chosen keys, as the keys of records.
func TestKeysOfKafka(t *testing.T) {
	c, p := Parse([]byte("keys: {public.orders: [tenant, id]}\njob: shop\nsource: {postgres: {url: host=/run/a dbname=shop}}\ndestination: {kafka: {brokers: [\"h:9092\"], prefix: shop}}"))
	if got := report(c, p); got != "" || len(c.Keys["public.orders"]) != 2 {
		t.Errorf("%s; %v", got, c.Keys)
	}
}

func TestJobFromURL(t *testing.T) {
	t.Setenv("PGDATABASE", "")
	for from, want := range map[string]string{
		"postgres://a:p%2Fw@h:1,i:2/My-Shop":          "my_shop",
		"postgres://a:x/y@h/d?sslmode=disable":        "y_h_d", // malformed: the password is cut at its slash
		"postgres://h/d%20b?x=y":                      "d_b",
		"postgres:///d":                               "d",
		"postgresql://a@/?host=/run&dbname=shop":      "shop",
		"host=h dbname=shop user=x":                   "shop",
		"dbname='shop' password='a://b'":              "shop",
		"postgres://h/" + strings.Repeat("long_", 12): strings.TrimSuffix(strings.Repeat("long_", 12)[:47], "_"),
		"postgres://h/über":                           "ber",
	} {
		c, p := FromURLs(from, "host=/b", "", []string{"public.*"})
		if c.Job != want || len(p) > 0 {
			t.Errorf("%q: job %q, %v", from, c.Job, p)
		}
	}
	c, p := FromURLs("service=shop", "host=/b", "", nil)
	if c.Job != "" || !strings.Contains(p.String(), "--job") {
		t.Error(c.Job, p)
	}
	t.Setenv("PGDATABASE", "From.Env")
	if c, _ := FromURLs("service=shop", "host=/b", "", nil); c.Job != "from_env" {
		t.Error(c.Job)
	}
	if c, _ := FromURLs("service=shop", "host=/b", "mine", nil); c.Job != "mine" {
		t.Error(c.Job)
	}
}

// TestReadAnew: the password is in a file that changes.
func TestReadAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n")
	t.Setenv("DB_USER", "app")
	c, p := Parse([]byte(`
job: shop
source: {postgres: {url: "host=/a user=${DB_USER} password=${file:` + file + `} options=$${x} dbname=$"}}
destination: {postgres: {url: "host=/b"}}`))
	if r := report(c, p); r != "" {
		t.Fatal(r)
	}
	for _, pw := range []string{"old", "new"} {
		write(pw + "\r\n")
		got, err := c.SourceConn()
		if want := "host=/a user=app password=" + pw + " options=${x} dbname=$"; got != want || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SourceConn(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if got, err := c.TargetConn(); got != "host=/b" || err != nil {
		t.Error(got, err)
	}
	// A string from the command line is taken as it is.
	c.Source.Postgres.URL = Literal("password=${DB_USER}")
	if got, err := c.SourceConn(); got != "password=${DB_USER}" || err != nil {
		t.Error(got, err)
	}
}

func TestExpandErrors(t *testing.T) {
	for s, want := range map[string]string{
		"a ${":           `without "}"`,
		"${}":            "want ${VARIABLE}",
		"${A B}":         "want ${VARIABLE}",
		"${1A}":          "want ${VARIABLE}",
		"${file:/no/it}": "no such file",
	} {
		if _, err := expand(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestSecretsStayHidden(t *testing.T) {
	c, _ := Parse([]byte("source: {postgres: {url: geheim}}\nhttp: {token: geheim}"))
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(format, c); strings.Contains(s, "geheim") {
			t.Errorf("%s: %s", format, s)
		}
	}
	_, p := Parse([]byte("source:\n  postgres:\n    url: \"geheim\n"))
	if len(p) == 0 || strings.Contains(p.String(), "geheim") {
		t.Error(p)
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(full), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, p := Load(file); len(p) > 0 || c.Job != "shop" {
		t.Error(c.Job, p)
	}
	if c, p := Load(file + "x"); c == nil || len(p) != 1 || !strings.Contains(p.String(), "no such file") {
		t.Error(c, p)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "512B": 512, "4KiB": 4096, "64 MiB": 64 * mib, "1GiB": gib, "2TiB": 2 * tib,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "+1", "1.5MiB", "1MB", "1M", "1 2", "9223372036854775808", "9000000TiB", "0x10", "1_000"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
	for size, want := range map[Size]string{0: "0B", 1: "1B", 1024: "1KiB", 1536: "1536B", 3 * mib: "3MiB", tib: "1TiB", 1025 * mib: "1025MiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d: %s", int64(size), got)
		}
	}
}

// FuzzParse: no file makes the parser panic, show a secret, or accept a job
// name that would not be a slot's.
func FuzzParse(f *testing.F) {
	for _, s := range []string{minimal, full, "", "a", "- 1", "job: ${X}", "x: &a [*a]", "? a", "job: |\n  a\n", "http: {listen: \"[\"}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, p := Parse(data)
		all := p.Plus(c.Validate(checks))
		if len(all) == 0 && !isName(c.Job, 47) {
			t.Errorf("accepted job %q", c.Job)
		}
	})
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"1", "64MiB", "9 TiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		if again, err := ParseSize(n.String()); again != n || err != nil || n < 0 {
			t.Errorf("%q is %d is %s is %d, %v", s, n, n, again, err)
		}
	})
}
