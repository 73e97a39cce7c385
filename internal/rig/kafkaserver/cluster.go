package kafkaserver

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/rig/child"
	"github.com/millrace/millrace/internal/rig/pgserver"
)

// Options say what cluster to start.
type Options struct {
	Nodes int // 1 or 3; 0 is 1
	// Settings are "name=value" broker settings; they come after the rig's own
	// and win.
	Settings []string
	// Secure adds to each node a listener with TLS and SASL (PLAIN, SCRAM), one
	// with TLS where clients have certificates, and the authorizer, for which the
	// plain listener is a super user.
	Secure bool
	// JVM are the options of the brokers' JVM; nil: small and soon there.
	JVM []string
	// Name is part of the directory's name, for whoever looks at it.
	Name string
}

// User and Password are the account that a secure listener's PLAIN knows;
// Subject is the principal of the client's certificate.
const (
	User     = "millrace"
	Password = "between-you-and-me"
	Subject  = "CN=millrace"
)

// Cluster is a running cluster. One goroutine at a time should start and stop
// nodes.
type Cluster struct {
	place *pgserver.Place
	opt   Options
	id    string
	nodes []*node
	ca    []byte // PEM, of the secure listener
}

type node struct {
	id                                int
	port, controller, secured, mutual int
	locks                             []io.Closer
	dir                               string

	mu     sync.Mutex
	run    *child.Process
	paused bool
}

// Start makes a fresh cluster and returns once every node serves clients.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	if !Have() {
		return nil, fmt.Errorf("no Kafka %s in %s, or no java: run `make rig`", Version, LibDir())
	}
	if o.Nodes == 0 {
		o.Nodes = 1
	}
	c := &Cluster{opt: o, id: newID()}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if c.place, err = pgserver.NewPlace("kafka" + o.Name); err != nil {
		return nil, err
	}
	if o.Secure {
		if err := c.makeCertificates(); err != nil {
			return nil, err
		}
	}
	// Between trying a port out and using it somebody outside the rig may take
	// it; then all nodes get others.
	for range 3 {
		if err = c.populate(); err != nil {
			return nil, err
		}
		if err = c.launchAll(ctx); err == nil || !strings.Contains(err.Error(), "Address already in use") {
			return c, err
		}
		if err := c.endAll(); err != nil {
			return nil, err
		}
	}
	return nil, err
}

// populate makes the nodes' directories and settings.
func (c *Cluster) populate() error {
	tmpl, err := template(c.place.Dir())
	if err != nil {
		return err
	}
	c.nodes = nil
	for i := range c.opt.Nodes {
		n := &node{id: i + 1, dir: filepath.Join(c.place.Dir(), "node"+strconv.Itoa(i+1))}
		c.nodes = append(c.nodes, n)
		for _, port := range []*int{&n.port, &n.controller, &n.secured, &n.mutual} {
			p, lock, err := pgserver.TakePort()
			if err != nil {
				return err
			}
			*port, n.locks = p, append(n.locks, lock)
		}
		if err := os.RemoveAll(n.dir); err != nil {
			return err
		}
		if err := cloneStorage(tmpl, filepath.Join(n.dir, "data"), c.id, strconv.Itoa(n.id)); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := os.WriteFile(n.propertiesPath(), []byte(c.properties(n)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) propertiesPath() string { return filepath.Join(n.dir, "server.properties") }

// properties are the settings of one node: few partitions and threads, and
// minimal in-sync replicas such that one node of three may be down.
func (c *Cluster) properties(n *node) string {
	var voters []string
	for _, o := range c.nodes {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", o.id, o.controller))
	}
	isr := "1"
	if len(c.nodes) > 2 {
		isr = "2"
	}
	copies := strconv.Itoa(len(c.nodes))
	set := []string{
		"process.roles=broker,controller",
		"node.id=" + strconv.Itoa(n.id),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", n.port, n.controller),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d", n.port),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"controller.listener.names=CONTROLLER",
		"inter.broker.listener.name=PLAINTEXT",
		"log.dirs=" + filepath.Join(n.dir, "data"),
		"num.partitions=1",
		"default.replication.factor=" + copies,
		"min.insync.replicas=" + isr,
		"offsets.topic.replication.factor=" + copies,
		"offsets.topic.num.partitions=4",
		"transaction.state.log.replication.factor=" + copies,
		"transaction.state.log.min.isr=" + isr,
		"transaction.state.log.num.partitions=4",
		"share.coordinator.state.topic.replication.factor=" + copies,
		"share.coordinator.state.topic.min.isr=1",
		"share.coordinator.state.topic.num.partitions=1",
		"group.initial.rebalance.delay.ms=0",
		// Transactions of clients that died are ended soon.
		"transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
		"log.cleaner.dedupe.buffer.size=16777216",
		"log.cleaner.threads=1",
		// So that compaction, where a test asks for it, begins soon.
		"log.cleaner.backoff.ms=500",
		"log.index.size.max.bytes=1048576",
		"num.network.threads=2",
		"num.io.threads=2",
		"num.replica.fetchers=1",
		"background.threads=2",
		// Nobody's mistake in a name shall make a topic.
		"auto.create.topics.enable=false",
	}
	if c.opt.Secure {
		set = append(set, c.secureProperties(n)...)
	}
	return strings.Join(append(set, c.opt.Settings...), "\n") + "\n"
}

// Brokers are the addresses of the plain listeners.
func (c *Cluster) Brokers() []string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, "127.0.0.1:"+strconv.Itoa(n.port))
	}
	return list
}

// SecureBrokers are the addresses of the listeners with TLS and SASL.
func (c *Cluster) SecureBrokers() []string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, "localhost:"+strconv.Itoa(n.secured))
	}
	return list
}

// MutualBrokers are the addresses of the listeners that want a certificate.
func (c *Cluster) MutualBrokers() []string {
	var list []string
	for _, n := range c.nodes {
		list = append(list, "localhost:"+strconv.Itoa(n.mutual))
	}
	return list
}

// Nodes is the number of nodes; they are counted from 1.
func (c *Cluster) Nodes() int { return len(c.nodes) }

// Close ends all nodes at once and removes their files.
func (c *Cluster) Close() error {
	err := c.endAll()
	if c.place != nil {
		err = errors.Join(err, c.place.Remove())
		c.place = nil
	}
	return err
}

func (c *Cluster) endAll() error {
	var errs []error
	for i, n := range c.nodes {
		errs = append(errs, c.Kill(i+1))
		for _, l := range n.locks {
			errs = append(errs, l.Close())
		}
		n.locks = nil
	}
	return errors.Join(errs...)
}

// newID is a Kafka Uuid: 22 characters of URL-safe base64. One that began with
// a dash would look like an option.
func newID() string {
	var b [16]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}
