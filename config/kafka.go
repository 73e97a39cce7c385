package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace"
)

// Kafka is a cluster and a prefix of topics on it, as either end.
type Kafka struct {
	// URL, where one was given, is all of the rest: kafka://host:9092,…/prefix?….
	URL     Secret
	Brokers []string
	Prefix  string

	Layout      string // LayoutTables or LayoutStream
	Format      string
	Partitions  int           // of a table's topic
	Replication int           // 0: the cluster's default
	Retention   time.Duration // 0: the default; below 0: for ever
	Compact     bool
	Decimal     string
	Toast       string
	Types       string            // TypesExact or TypesDebezium
	Topics      map[string]string // table -> topic

	// Of a source only.
	Tables      []string // patterns; none: all tables of the prefix
	Consistency string   // ConsistencyTransaction or ConsistencyKey
	Share       string   // of ConsistencyKey: "2/4"; "": all of it

	TLS      KafkaTLS
	SASL     KafkaSASL
	Registry KafkaRegistry
}

// KafkaRegistry is destination.kafka.registry.
type KafkaRegistry struct {
	URL, User string
	Password  Secret
}

// KafkaTLS is destination.kafka.tls.
type KafkaTLS struct {
	Enable                    bool
	CA, Cert, Key, ServerName string
}

// KafkaSASL is destination.kafka.sasl.
type KafkaSASL struct {
	Mechanism, User string
	Password        Secret
}

// The values of layout: a topic for each table, or one for all.
const (
	LayoutTables = "tables"
	LayoutStream = "stream"
)

// The values of types: forms that can be read back, or Debezium's where it loses
// something.
const (
	TypesExact    = "exact"
	TypesDebezium = "debezium"
)

// The values of source.kafka.consistency: whole source transactions, in the order of their
// commits, or rows by their key, which several jobs can share.
const (
	ConsistencyTransaction = "transaction"
	ConsistencyKey         = "key"
)

// IsKafkaURL tells whether a connection string is one of Kafka.
func IsKafkaURL(conn string) bool { return strings.HasPrefix(conn, "kafka://") }

// Set tells whether this end is the one that was configured.
func (k *Kafka) Set() bool { return !k.URL.Empty() || len(k.Brokers) > 0 || k.Prefix != "" }

func defaultKafka() Kafka {
	return Kafka{Layout: LayoutTables, Format: "json", Partitions: 1, Decimal: "string", Toast: "placeholder", Types: TypesExact,
		Consistency: ConsistencyTransaction}
}

// kafkaFields are the keys below the path of a destination.
func kafkaFields(path string, k *Kafka) map[string]field {
	fields := map[string]field{
		"format":            choice(&k.Format, []string{"json", "json-inline", "json-schema", "avro", "flat", "keys"}),
		"decimal":           choice(&k.Decimal, []string{"string", "bytes"}),
		"toast":             choice(&k.Toast, []string{"placeholder", "omit"}),
		"registry.url":      text(&k.Registry.URL),
		"registry.user":     text(&k.Registry.User),
		"registry.password": secret(&k.Registry.Password),
		"types":             choice(&k.Types, []string{TypesExact, TypesDebezium}),
		"layout":            choice(&k.Layout, []string{LayoutTables, LayoutStream}),
		"partitions":        number(&k.Partitions),
		"replication":       number(&k.Replication),
		"retention":         retention(&k.Retention),
		"compact":           boolean(&k.Compact),
		"topics":            names(&k.Topics),
	}
	maps.Copy(fields, connectFields(k))
	return below(path, fields)
}

// kafkaSourceFields are the keys below the path of a source: what records look
// like is written beside them.
func kafkaSourceFields(path string, k *Kafka) map[string]field {
	fields := connectFields(k)
	fields["tables"] = texts(&k.Tables)
	fields["consistency"] = choice(&k.Consistency, []string{ConsistencyTransaction, ConsistencyKey})
	fields["share"] = text(&k.Share)
	return below(path, fields)
}

// connectFields are the keys that say where a cluster is and how to reach it.
func connectFields(k *Kafka) map[string]field {
	return map[string]field{
		"brokers":         texts(&k.Brokers),
		"prefix":          text(&k.Prefix),
		"tls.enable":      boolean(&k.TLS.Enable),
		"tls.ca":          text(&k.TLS.CA),
		"tls.cert":        text(&k.TLS.Cert),
		"tls.key":         text(&k.TLS.Key),
		"tls.server_name": text(&k.TLS.ServerName),
		"sasl.mechanism":  choice(&k.SASL.Mechanism, []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}),
		"sasl.user":       text(&k.SASL.User),
		"sasl.password":   secret(&k.SASL.Password),
	}
}

func below(path string, fields map[string]field) map[string]field {
	all := make(map[string]field, len(fields))
	for key, f := range fields {
		all[path+"."+key] = f
	}
	return all
}

// retention takes a duration, or forever.
func retention(to *time.Duration) field {
	d := duration(to)
	return field{set: func(v any) error {
		if scalar(v) == "forever" {
			*to = -1
			return nil
		}
		if err := d.set(v); err != nil || *to <= 0 {
			return errors.New("want a duration such as 168h, or forever")
		}
		return nil
	}}
}

// names takes a mapping of names to names.
func names(to *map[string]string) field {
	return field{set: func(v any) error {
		mapping, ok := v.(yaml.MapSlice)
		if !ok {
			return errors.New("want a mapping of tables to topics")
		}
		*to = map[string]string{}
		for _, item := range mapping {
			key, ok := item.Key.(string)
			value, ok2 := item.Value.(string)
			if !ok || !ok2 {
				return errors.New("want a mapping of tables to topics")
			}
			(*to)[key] = value
		}
		return nil
	}}
}

// resolve reads the URL into the other members, once. Its errors quote
// nothing of it.
func (k *Kafka) resolve(fields map[string]field) error {
	conn, err := k.URL.Get()
	if err != nil || conn == "" {
		return err
	}
	// net/url takes one host with a port; Kafka's URLs have several.
	rest := strings.TrimPrefix(conn, "kafka://")
	rest, query, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		if k.SASL.User, err = url.PathUnescape(user); err != nil {
			return errors.New("the user is malformed; %, @, : and / in it are written as %XX")
		}
		p, err := url.PathUnescape(password)
		if err != nil {
			return errors.New("the password is malformed; %, @, : and / in it are written as %XX")
		}
		if p != "" {
			k.SASL.Password = Literal(p)
		}
		if k.SASL.Mechanism == "" {
			k.SASL.Mechanism = "SCRAM-SHA-512"
		}
		hosts = hosts[at+1:]
	}
	k.Brokers, k.Prefix = strings.Split(hosts, ","), prefix
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the part behind ? is malformed")
	}
	return resolveQuery(values, fields)
}

func resolveQuery(values url.Values, fields map[string]field) error {
	short := map[string]string{"tls": ".tls.enable", "ca": ".tls.ca", "cert": ".tls.cert", "key": ".tls.key", "mechanism": ".sasl.mechanism"}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		name := "." + key
		if s, ok := short[key]; ok {
			name = s
		}
		f, ok := fields[name]
		if !ok || name == ".brokers" || name == ".topics" || name == ".prefix" || name == ".tables" {
			return fmt.Errorf("%s: unknown behind the ?", strconv.Quote(key))
		}
		if err := f.set(values.Get(key)); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// validateSource looks at the one end that is configured.
func (c *Config) validateSource(p *Problems, checks Checks) {
	k := &c.Source.Kafka
	if !k.Set() {
		c.validateConn(p, checks, "source", "source.postgres.url", c.Source.Postgres.URL)
		return
	}
	if !c.Source.Postgres.URL.Empty() {
		p.add("source", "both postgres and kafka are given, want one")
	}
	if c.Destination.Kafka.Set() {
		p.add("destination.kafka", "not available in this version behind a Kafka source: want postgres")
	}
	if c.Snapshot.Mode != ModeConsistent {
		p.add("snapshot.mode", "has no meaning with a Kafka source: the rows are in the topics")
	}
	c.validateKafka(p, checks, "source", k, kafkaSourceFields("", k))
	if k.Share != "" && k.Consistency != ConsistencyKey {
		p.add("source.kafka.share", "goes with consistency: key only: whole transactions have one reader")
	}
	if _, _, err := k.Shares(); err != nil {
		p.add("source.kafka.share", "%v", err)
	}
}

// mostShares bounds the number of workers.
const mostShares = 1000

// Shares gives which share of how many a job with ConsistencyKey reads.
func (k *Kafka) Shares() (n, of int, err error) {
	if k.Share == "" {
		return 1, 1, nil
	}
	a, b, _ := strings.Cut(k.Share, "/")
	n, err1 := strconv.Atoi(a)
	of, err2 := strconv.Atoi(b)
	if err1 != nil || err2 != nil || n < 1 || n > of || of > mostShares {
		return 0, 0, fmt.Errorf("want a share such as 2/4, the second of four workers, of which there may be %d", mostShares)
	}
	return n, of, nil
}

// validateDestination looks at the one end that is configured.
func (c *Config) validateDestination(p *Problems, checks Checks) {
	k := &c.Destination.Kafka
	if !k.Set() {
		c.validateConn(p, checks, "destination", "destination.postgres.url", c.Destination.Postgres.URL)
		return
	}
	if !c.Destination.Postgres.URL.Empty() {
		p.add("destination", "both postgres and kafka are given, want one")
	}
	c.validateKafka(p, checks, "destination", k, kafkaFields("", k))
	between(p, "destination.kafka.partitions", k.Partitions, 1, 10_000)
	if registry := k.Format == "json-schema" || k.Format == "avro"; registry != (k.Registry.URL != "") {
		p.add("destination.kafka.registry", "format %s and a registry's URL don't go together", k.Format)
	}
	between(p, "destination.kafka.replication", k.Replication, 0, 100)
	if k.Layout == LayoutStream {
		k.validateStream(p)
	}
}

// validateStream finds what has no meaning where all tables share one topic of one
// partition.
func (k *Kafka) validateStream(p *Problems) {
	const path = "destination.kafka."
	if k.Partitions != 1 {
		p.add(path+"partitions", "layout stream has one partition, in which all is in order")
	}
	if k.Compact {
		p.add(path+"compact", "layout stream holds transactions, of which compaction would leave pieces")
	}
	if len(k.Topics) > 0 {
		p.add(path+"topics", "layout stream has one topic for all tables")
	}
	if k.Format == "json-schema" || k.Format == "avro" {
		p.add(path+"format", "a record of layout stream holds rows of several tables, for which %s has no schema; want json, json-inline, flat or keys", k.Format)
	}
}

func (c *Config) validateKafka(p *Problems, checks Checks, peer millrace.Peer, k *Kafka, fields map[string]field) {
	path := string(peer) + ".kafka"
	if err := k.resolve(fields); err != nil {
		p.add(path+".url", "%v", err)
		return
	}
	if _, err := k.SASL.Password.Get(); err != nil {
		p.add(path+".sasl.password", "%v", err)
	}
	if k.SASL.Mechanism != "" && (k.SASL.User == "" || k.SASL.Password.Empty()) {
		p.add(path+".sasl", "user and password are needed with mechanism %s", k.SASL.Mechanism)
	}
	if checks.Kafka != nil {
		if err := checks.Kafka(peer, k, c.Safety); err != nil {
			p.add(path, "%v", err)
		}
	}
}
