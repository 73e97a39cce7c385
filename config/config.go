// Package config reads the configuration, from one YAML file or from two
// connection strings, into checked structs. It finds all problems and reports
// them at once, each with its path. It connects to nothing.
//
// The invariant it owns: a key that this version does not act upon is refused,
// never ignored.
package config

import (
	"time"
)

// Config is the configuration of one job. Load and FromURLs fill it; flags may
// change it before Validate.
type Config struct {
	Job    string
	Source Source
	// Keys are columns that stand for a table's primary key where it is loaded in
	// chunks and in what Kafka's records are keyed by, as they were written;
	// catalog.ParseKeys reads them.
	Keys        map[string][]string
	Snapshot    Snapshot
	Apply       Apply
	Destination Destination
	Resources   Resources
	Safety      Safety
	HTTP        HTTP
	Hooks       Hooks
}

// Source is where the history comes from.
type Source struct {
	Postgres SourcePostgres
	Kafka    Kafka // what another job has written; of it brokers, prefix, tables and how to connect
}

// SourcePostgres is a PostgreSQL source.
type SourcePostgres struct {
	URL         Secret
	Tables      []string // patterns; none: all tables of the publication
	Slot        string   // "": Config.Slot derives it from the job
	Publication string   // likewise
	Failover    bool     // the slot is to be copied to standbys, where the server can do that
	// Streaming takes transactions that outgrow the source's memory while they
	// are open, into the spool.
	Streaming string // StreamingOff, StreamingOn or StreamingParallel
	TwoPhase  bool   // prepared transactions are carried as such
	Origin    string // OriginAny or OriginNone
}

// The values of source.postgres.streaming.
const (
	StreamingOff      = "off"
	StreamingOn       = "on"
	StreamingParallel = "parallel" // by protocol 4, from PostgreSQL 16 on
)

// The values of source.postgres.origin.
const (
	OriginAny  = "any"
	OriginNone = "none" // only what was written at the source itself
)

// Destination is where the history goes to.
type Destination struct {
	Postgres DestinationPostgres
	Kafka    Kafka
}

// DestinationPostgres is a PostgreSQL target.
type DestinationPostgres struct {
	URL    Secret
	Schema string // SchemaCreate or SchemaExisting
}

// The values of destination.postgres.schema.
const (
	SchemaCreate   = "create"
	SchemaExisting = "existing"
)

// Snapshot says how the first load is done.
type Snapshot struct {
	Mode     string        // ModeConsistent, ModeIncremental or ModeNone
	Parallel int           // streams
	Timeout  time.Duration // longest hold of the exported snapshot; 0: none
	Rate     Size          // bytes per second; 0: no limit
}

// The values of snapshot.mode.
const (
	ModeConsistent  = "consistent"
	ModeIncremental = "incremental"
	ModeNone        = "none"
)

// Apply says how changes are written.
type Apply struct {
	Group         int // 0: as many transactions as fit, 1: one to one
	MaxBatchRows  int // of one statement
	MaxBatchBytes Size
	Eager         string // EagerDefault, EagerOn or EagerOff; Config.Eager is what it comes to
	Truncate      string // TruncateAsTruncate or TruncateAsDelete
}

// The values of apply.eager.
const (
	EagerDefault = ""
	EagerOn      = "on"
	EagerOff     = "off"
)

// The values of apply.truncate.
const (
	TruncateAsTruncate = "truncate"
	TruncateAsDelete   = "delete"
)

// Resources bounds what the process uses.
type Resources struct {
	MemoryBudget      Size // resident memory of the process
	MaxInflight       Size // transactions received and not yet applied
	ChannelCapacity   int
	BufferSize        Size
	MaxMessage        Size // largest single row
	ConnectionTimeout time.Duration
	RetryBackoff      Backoff
	MaxReplicationLag Size // alarm
	WALRetentionAlarm Size
	Spool             Spool
}

// Spool is where transactions are kept that can't be passed on yet.
type Spool struct {
	Dir   string // "": a directory of the user below /var/tmp
	Limit Size   // of all of it
}

// Backoff is the wait between tries to reconnect; it doubles from Min to Max.
type Backoff struct{ Min, Max time.Duration }

// Safety says what the job may do and must insist on.
type Safety struct {
	RequireTLS                   bool
	InsecureSkipTLSVerify        bool
	AutoCreatePublication        bool
	AllowRemotePublicationCreate bool
	WALRetentionAction           string // ActionAlarm, ActionPauseLoad or ActionStop
	HeartbeatInterval            time.Duration
}

// The values of safety.wal_retention_action.
const (
	ActionAlarm     = "alarm"
	ActionPauseLoad = "pause_load"
	ActionStop      = "stop"
)

// HTTP is the server for status, metrics and waiters.
type HTTP struct {
	// Listen is host:port. DefaultListen may give way to another port when it
	// is taken; an address that was configured may not.
	Listen string
	Token  Secret
	// Actions lets the page change the job's set of tables.
	Actions bool
}

// Hooks say who is told of changes of the state, and of alarms.
type Hooks struct {
	Webhook Webhook
	Command []string // program and arguments, run without a shell
}

// Webhook is a URL that is sent a POST.
type Webhook struct {
	URL           Secret
	Authorization Secret // the header of that name
}

// DefaultListen is http.listen where nothing is configured.
const DefaultListen = "127.0.0.1:8642"

// Default gives the configuration without job and connections.
func Default() *Config {
	return &Config{
		Source:   Source{Postgres: SourcePostgres{Failover: true, Streaming: StreamingOn, Origin: OriginAny}, Kafka: defaultKafka()},
		Snapshot: Snapshot{Mode: ModeConsistent, Parallel: 2, Timeout: 6 * time.Hour},
		Apply: Apply{
			MaxBatchRows:  4000,
			MaxBatchBytes: 4 * mib,
			Truncate:      TruncateAsTruncate,
		},
		Destination: Destination{Postgres: DestinationPostgres{Schema: SchemaCreate}, Kafka: defaultKafka()},
		Resources: Resources{
			MemoryBudget:      128 * mib,
			MaxInflight:       16 * mib,
			ChannelCapacity:   4096,
			BufferSize:        256 * kib,
			MaxMessage:        16 * mib,
			ConnectionTimeout: 10 * time.Second,
			RetryBackoff:      Backoff{Min: time.Second, Max: 30 * time.Second},
			MaxReplicationLag: gib,
			WALRetentionAlarm: gib,
			Spool:             Spool{Limit: 10 * gib},
		},
		Safety: Safety{
			RequireTLS:         true,
			WALRetentionAction: ActionAlarm,
			HeartbeatInterval:  10 * time.Second,
		},
		HTTP: HTTP{},
	}
}

// SetSource takes a connection string of any kind.
func (c *Config) SetSource(conn string) {
	if IsKafkaURL(conn) {
		c.Source.Kafka.URL, c.Source.Postgres.URL = Literal(conn), Secret{}
		return
	}
	c.Source.Postgres.URL = Literal(conn)
	c.Source.Kafka = defaultKafka()
}

// SetTables takes table patterns for the source, of whichever kind it is.
func (c *Config) SetTables(patterns []string) {
	c.Source.Postgres.Tables, c.Source.Kafka.Tables = nil, nil
	if c.Source.Kafka.Set() {
		c.Source.Kafka.Tables = patterns
		return
	}
	c.Source.Postgres.Tables = patterns
}

// Tables are the source's table patterns, and the path of their key.
func (c *Config) Tables() (path string, patterns []string) {
	if c.Source.Kafka.Set() {
		return "source.kafka.tables", c.Source.Kafka.Tables
	}
	return "source.postgres.tables", c.Source.Postgres.Tables
}

// SetDestination takes a connection string of any kind.
func (c *Config) SetDestination(conn string) {
	if IsKafkaURL(conn) {
		c.Destination.Kafka.URL, c.Destination.Postgres.URL = Literal(conn), Secret{}
		return
	}
	c.Destination.Postgres.URL = Literal(conn)
	c.Destination.Kafka = defaultKafka()
}

// Eager tells whether large transactions are applied while they are open at the
// source: they are, unless it is switched off, or they do not come so.
func (c *Config) Eager() bool {
	pg := &c.Source.Postgres
	return c.Apply.Eager == EagerOn || c.Apply.Eager == EagerDefault && pg.Streaming != StreamingOff && !pg.TwoPhase
}

// Slot names the replication slot.
func (c *Config) Slot() string { return c.derived(c.Source.Postgres.Slot) }

// Publication names the publication.
func (c *Config) Publication() string { return c.derived(c.Source.Postgres.Publication) }

func (c *Config) derived(name string) string {
	if name != "" {
		return name
	}
	return "millrace_" + c.Job
}

// Listen gives the address of the HTTP server and whether it was configured.
func (c *Config) Listen() (addr string, configured bool) {
	if c.HTTP.Listen == "" {
		return DefaultListen, false
	}
	return c.HTTP.Listen, true
}

// SourceConn gives the source's connection string with its variables and files
// read anew. It is what session.Endpoint takes as Conn.
func (c *Config) SourceConn() (string, error) { return c.Source.Postgres.URL.Get() }

// TargetConn is SourceConn for the destination.
func (c *Config) TargetConn() (string, error) { return c.Destination.Postgres.URL.Get() }
