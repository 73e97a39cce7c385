package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/millrace/millrace"
)

// Endpoint says how to reach a cluster, and which prefix and job on it are
// meant.
type Endpoint struct {
	Peer    millrace.Peer
	Brokers []string // host:port
	Prefix  string
	Job     string
	TLS     TLS
	SASL    SASL
	Timeout time.Duration // of making a connection
	Hooks   []kgo.Hook    // called by the clients, for whoever counts or watches requests
	Log     *slog.Logger
}

// TLS says how connections are encrypted.
type TLS struct {
	Enable             bool
	CAFile             string // "": the system's
	CertFile, KeyFile  string // of the client; "": none
	ServerName         string // "": the broker's host
	InsecureSkipVerify bool   // loopback only
	Require            bool   // beyond loopback
}

// SASL says who we are. Password is read anew for each connection.
type SASL struct {
	Mechanism string // "", PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
	User      string
	Password  func() (string, error)
}

const requireTLSHint = "add ?tls=true, or tls: {enable: true}; safety.require_tls: false gives the rule up"

// Check finds what is wrong with the endpoint without connecting.
func (e *Endpoint) Check() error {
	if err := CheckPrefix(e.Prefix); err != nil {
		return err
	}
	if len(e.Brokers) == 0 {
		return errors.New("no broker is named: kafka://host:9092/PREFIX")
	}
	for _, b := range e.Brokers {
		host, _, err := net.SplitHostPort(b)
		if err != nil {
			return fmt.Errorf("broker %q: want host:port", b)
		}
		local := loopback(host)
		switch {
		case e.TLS.Require && !local && !e.TLS.Enable:
			return fmt.Errorf("broker %s is beyond this machine, and without TLS passwords and rows can be read on the way (%s)", b, requireTLSHint)
		case e.TLS.InsecureSkipVerify && !local:
			return fmt.Errorf("insecure_skip_tls_verify is for loopback only, and broker %s is not", b)
		}
	}
	switch e.SASL.Mechanism {
	case "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		return fmt.Errorf("sasl mechanism %q: want PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", e.SASL.Mechanism)
	}
	_, err := e.tlsConfig()
	return err
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (e *Endpoint) tlsConfig() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: e.TLS.ServerName,
		InsecureSkipVerify: e.TLS.InsecureSkipVerify} //nolint:gosec // loopback only, by the operator's wish
	if e.TLS.CAFile != "" {
		pem, err := os.ReadFile(e.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("tls.ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca: no certificate in %s", e.TLS.CAFile)
		}
	}
	if e.TLS.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(e.TLS.CertFile, e.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tls.cert: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// String names the cluster and the prefix, without secrets.
func (e *Endpoint) String() string {
	return "kafka://" + strings.Join(e.Brokers, ",") + "/" + e.Prefix
}

// client makes a client. It connects when it is first used.
func (e *Endpoint) client(extra ...kgo.Opt) (*kgo.Client, error) {
	timeout := e.Timeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(e.Brokers...),
		kgo.ClientID("millrace:" + e.Job),
		kgo.DialTimeout(timeout),
		// Who waits here is told soon, and tries again by the rule for all peers.
		kgo.RetryTimeout(retryWithin),
		kgo.MetadataMinAge(100 * time.Millisecond),
		// No request for a topic may create it.
		kgo.UnknownTopicRetries(4),
		kgo.WithHooks(e.Hooks...),
	}
	if e.TLS.Enable {
		c, err := e.tlsConfig()
		if err != nil {
			return nil, e.wrap("configure TLS", err)
		}
		opts = append(opts, kgo.DialTLSConfig(c))
	}
	if m := e.SASL.Mechanism; m != "" {
		opts = append(opts, kgo.SASL(e.mechanism()))
	}
	c, err := kgo.NewClient(append(opts, extra...)...)
	if err != nil {
		return nil, &millrace.Error{Kind: millrace.KindConfig, Op: "configure Kafka", Peer: e.Peer, Err: err}
	}
	return c, nil
}

// retryWithin bounds how long one request is tried again.
const retryWithin = 15 * time.Second

func (e *Endpoint) mechanism() sasl.Mechanism {
	password := func() (string, error) {
		if e.SASL.Password == nil {
			return "", nil
		}
		return e.SASL.Password()
	}
	switch e.SASL.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			p, err := password()
			return plain.Auth{User: e.SASL.User, Pass: p}, err
		})
	case "SCRAM-SHA-256":
		return scram.Sha256(func(context.Context) (scram.Auth, error) {
			p, err := password()
			return scram.Auth{User: e.SASL.User, Pass: p}, err
		})
	default:
		return scram.Sha512(func(context.Context) (scram.Auth, error) {
			p, err := password()
			return scram.Auth{User: e.SASL.User, Pass: p}, err
		})
	}
}

// wrap classifies an error of the client or of a broker. Everything that is not
// known to be a refusal is tried again.
func (e *Endpoint) wrap(op string, err error) error {
	var known *millrace.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	m := &millrace.Error{Kind: millrace.KindRetry, Op: op, Peer: e.Peer, Err: err, Condition: unreachable(e.Peer)}
	var early *kgo.ErrFirstReadEOF
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		m.Kind, m.Hint = millrace.KindPreflight, "correct sasl.user and sasl.password"
	case errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		m.Kind, m.Hint = millrace.KindPreflight, "correct sasl.mechanism: the broker does not offer this one"
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed),
		errors.Is(err, kerr.TransactionalIDAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed):
		m.Kind, m.Hint = millrace.KindPreflight, e.aclHint()
	case certificate(err):
		m.Kind, m.Hint = millrace.KindPreflight, "name the authority's certificate with tls.ca, and the broker by a name in its certificate"
	case strings.Contains(err.Error(), "is this a plaintext connection"): // of the client, without a type
		m.Kind, m.Hint = millrace.KindPreflight, "the listener at this port wants TLS: tls.enable: true, or ?tls=true"
	case errors.As(err, new(tls.RecordHeaderError)):
		m.Kind, m.Hint = millrace.KindPreflight, "name the port of a listener with TLS, or leave TLS out"
	case alert(err):
		m.Kind, m.Hint = millrace.KindPreflight, "the broker refused the TLS connection: name the client's certificate with tls.cert and tls.key, signed by an authority that the broker trusts"
	case errors.As(err, &early):
		// It can be a broker that is just being stopped.
		m.Hint = "see whether the listener at this port wants TLS (tls.enable) or a user (sasl)"
	case fenced(err):
		m.Err = fmt.Errorf("%w (another instance took the job over, or the broker gave the transaction up)", err)
	case errors.Is(err, kerr.InvalidTransactionTimeout):
		m.Kind = millrace.KindData
		m.Hint = "raise the brokers' transaction.max.timeout.ms"
	case errors.Is(err, kerr.UnsupportedVersion):
		m.Kind, m.Hint = millrace.KindPreflight, "use brokers of Kafka 2.8 or newer"
	}
	return m
}

func (e *Endpoint) aclHint() string {
	return fmt.Sprintf("allow the user, on topics with the prefix %s: Read, Write, Create, Describe, DescribeConfigs; on transactional ids with the prefix millrace.%s.: Write, Describe; on the cluster: IdempotentWrite",
		e.Prefix+".", e.Prefix)
}

func certificate(err error) bool {
	var v *tls.CertificateVerificationError
	var h x509.HostnameError
	var u x509.UnknownAuthorityError
	return errors.As(err, &v) || errors.As(err, &h) || errors.As(err, &u)
}

// alert tells whether the other side ended a TLS connection with an alert, as it
// does where it wants another certificate from us, or one at all.
func alert(err error) bool {
	var o *net.OpError
	return errors.As(err, &o) && o.Op == "remote error"
}

func unreachable(p millrace.Peer) string { return string(p) + "_unreachable" }
