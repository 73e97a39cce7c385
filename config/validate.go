package config

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
)

// Checks are what Validate needs of packages that this one does not import. A
// nil function checks nothing.
type Checks struct {
	// Patterns reads table patterns; one error per pattern that is wrong.
	Patterns func([]string) []error
	// Keys reads chosen keys; one error per table that is wrong.
	Keys func(map[string][]string) []error
	// Conn reads a connection string, under the rule of Safety. Its errors
	// quote nothing of the string.
	Conn func(peer millrace.Peer, conn string, safety Safety) error
	// Webhook looks at a URL, under the rule of Safety. Its errors quote nothing
	// of it.
	Webhook func(url string, safety Safety) error
	// Kafka looks at what is to be connected to.
	Kafka func(peer millrace.Peer, k *Kafka, safety Safety) error
}

// ownMemory is what the process needs beside what is held of the source's rows: the
// pages of the program, the runtime, prepared statements, and room to collect
// garbage. Measured, not derived: TestSmallestBudget.
const ownMemory = 36 * mib

// minMemory is the smallest budget that anything fits into.
const minMemory = 48 * mib

// Validate finds what is missing, out of range or contradictory.
func (c *Config) Validate(checks Checks) Problems {
	var p Problems
	c.validateJob(&p)
	c.validateSource(&p, checks)
	c.validateDestination(&p, checks)
	if checks.Patterns != nil {
		path, patterns := c.Tables()
		for _, err := range checks.Patterns(patterns) {
			p.add(path, "%v", err)
		}
	}
	if checks.Keys != nil {
		for _, err := range checks.Keys(c.Keys) {
			p.add("keys", "%v", err)
		}
	}
	c.validateRanges(&p)
	c.validateMemory(&p)
	c.validateHTTP(&p)
	c.validateHooks(&p, checks)
	return p.sorted()
}

func (c *Config) validateJob(p *Problems) {
	switch {
	case c.Job == "":
		p.add("job", missing)
	case !isName(c.Job, 47):
		p.add("job", "want 1 to 47 characters of a-z, 0-9 and _")
	}
	pg := c.Source.Postgres
	if pg.Slot != "" && !isName(pg.Slot, 63) {
		p.add("source.postgres.slot", "want 1 to 63 characters of a-z, 0-9 and _")
	}
	if c.Apply.Eager == EagerOn && pg.Streaming == StreamingOff {
		p.add("apply.eager", "needs source.postgres.streaming: on or parallel")
	}
	if c.Apply.Eager == EagerOn && pg.TwoPhase {
		p.add("apply.eager", "not together with source.postgres.two_phase: on")
	}
	if len(pg.Publication) > 63 || strings.ContainsRune(pg.Publication, 0) {
		p.add("source.postgres.publication", "want at most 63 bytes")
	}
}

// isName tells whether s may name a job or a slot.
func isName(s string, longest int) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= longest
}

func (c *Config) validateConn(p *Problems, checks Checks, peer millrace.Peer, path string, url Secret) {
	if url.Empty() {
		p.add(path, missing)
		return
	}
	conn, err := url.Get()
	if err != nil {
		p.add(path, "%v", err)
		return
	}
	switch {
	case strings.HasPrefix(conn, "kafka://"):
		notAvailable(p, string(peer)+".kafka")
	case strings.HasPrefix(conn, "stdout:"):
		notAvailable(p, string(peer)+".stdout")
	case checks.Conn != nil:
		if err := checks.Conn(peer, conn, c.Safety); err != nil {
			p.add(path, "%v", err)
		}
	}
}

func (c *Config) validateRanges(p *Problems) {
	r := &c.Resources
	between(p, "snapshot.parallel", c.Snapshot.Parallel, 1, 64)
	between(p, "snapshot.timeout", c.Snapshot.Timeout, 0, 1000*time.Hour)
	between(p, "apply.max_batch_rows", c.Apply.MaxBatchRows, 1, 100_000)
	between(p, "apply.max_batch_bytes", c.Apply.MaxBatchBytes, 64*kib, gib)
	between(p, "resources.memory_budget", r.MemoryBudget, minMemory, tib)
	between(p, "resources.max_inflight", r.MaxInflight, mib, tib)
	between(p, "resources.channel_capacity", r.ChannelCapacity, 16, 1<<20)
	between(p, "resources.buffer_size", r.BufferSize, 4*kib, 64*mib)
	between(p, "resources.max_message", r.MaxMessage, 64*kib, gib)
	between(p, "resources.connection_timeout", r.ConnectionTimeout, 100*time.Millisecond, time.Hour)
	between(p, "resources.retry_backoff.min", r.RetryBackoff.Min, 10*time.Millisecond, time.Hour)
	between(p, "resources.retry_backoff.max", r.RetryBackoff.Max, 10*time.Millisecond, time.Hour)
	between(p, "resources.spool.limit", r.Spool.Limit, 16*mib, 1024*tib)
	if dir := r.Spool.Dir; dir != "" && !filepath.IsAbs(dir) {
		p.add("resources.spool.dir", "want an absolute path")
	}
	if r.RetryBackoff.Min > r.RetryBackoff.Max {
		p.add("resources.retry_backoff", "min is more than max")
	}
	// A heartbeat that is older than a few intervals means that the instance is
	// gone, so it must beat often.
	between(p, "safety.heartbeat_interval", c.Safety.HeartbeatInterval, time.Second, time.Minute)
}

func between[T int | Size | time.Duration](p *Problems, path string, value, low, high T) {
	if value < low || value > high {
		p.add(path, "%v is out of range, want %v to %v", value, low, high)
	}
}

// validateMemory adds up what is held at the same time in the worst case. A
// row of max_message exists about four times: as it came, decoded, folded and
// encoded.
func (c *Config) validateMemory(p *Problems) {
	r := &c.Resources
	buffers := r.BufferSize * Size(1+c.Snapshot.Parallel) // the stream's and one per copying stream
	sum := ownMemory + r.MaxInflight + 2*c.Apply.MaxBatchBytes + buffers + 4*r.MaxMessage
	if sum > r.MemoryBudget {
		p.add("resources.memory_budget",
			"%v is less than %v: %v of its own + max_inflight %v + 2 × apply.max_batch_bytes %v + buffers %v + 4 × max_message %v",
			r.MemoryBudget, sum, ownMemory, r.MaxInflight, c.Apply.MaxBatchBytes, buffers, r.MaxMessage)
	}
}

func (c *Config) validateHTTP(p *Problems) {
	addr, _ := c.Listen()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		p.add("http.listen", "want host:port, such as %s", DefaultListen)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		p.add("http.listen", "want a port from 0 to 65535")
	}
	token, err := c.HTTP.Token.Get()
	if err != nil {
		p.add("http.token", "%v", err)
		return
	}
	ip := net.ParseIP(host)
	if loopback := host == "localhost" || ip != nil && ip.IsLoopback(); !loopback && token == "" {
		p.add("http.token", "needed to listen beyond loopback (http.listen is %s)", addr)
	}
}

func (c *Config) validateHooks(p *Problems, checks Checks) {
	if len(c.Hooks.Command) > 0 && c.Hooks.Command[0] == "" {
		p.add("hooks.command", "want a program and its arguments")
	}
	hook := &c.Hooks.Webhook
	if hook.URL.Empty() {
		if !hook.Authorization.Empty() {
			p.add("hooks.webhook.url", missing)
		}
		return
	}
	url, err := hook.URL.Get()
	switch {
	case err != nil:
		p.add("hooks.webhook.url", "%v", err)
	case checks.Webhook != nil:
		if err := checks.Webhook(url, c.Safety); err != nil {
			p.add("hooks.webhook.url", "%v", err)
		}
	}
	if _, err := hook.Authorization.Get(); err != nil {
		p.add("hooks.webhook.authorization", "%v", err)
	}
}
