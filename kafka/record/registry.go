package record

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/millrace/millrace"
)

// RegistryOptions say where a schema registry with Confluent's API is.
type RegistryOptions struct {
	URL            string
	User, Password string
	// RequireTLS refuses http:// to any host but loopback.
	RequireTLS bool
}

// registryPatience is how long one request may take, retries of the client
// included. The job goes on trying behind it.
const registryPatience = 20 * time.Second

// schemaRegistry remembers what it has registered.
type schemaRegistry struct {
	client *sr.Client
	where  string // for errors: without password
	ids    map[[2]string]int
}

// NewRegistry makes a Registry. It connects when the first schema comes. Like an
// Encoder it serves one goroutine at a time.
func NewRegistry(o RegistryOptions) (Registry, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the URL of the schema registry is not one: want http(s)://host:port/path")
	}
	if o.RequireTLS && u.Scheme != "https" && !loopback(u.Hostname()) {
		return nil, fmt.Errorf("the schema registry at %s is reached without TLS: want https, or safety.require_tls: false", u.Host)
	}
	user, password := o.User, o.Password
	if u.User != nil {
		user = u.User.Username()
		password, _ = u.User.Password()
		u.User = nil
	}
	opts := []sr.ClientOpt{sr.URLs(u.String()), sr.UserAgent("millrace")}
	if user != "" {
		opts = append(opts, sr.BasicAuth(user, password))
	}
	client, err := sr.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	return &schemaRegistry{client: client, where: u.Host, ids: map[[2]string]int{}}, nil
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// Register implements Registry. The registry itself checks that a new schema is
// compatible with the one before it.
func (r *schemaRegistry) Register(subject, schema string, f Format) (int, error) {
	key := [2]string{subject, schema}
	if id, ok := r.ids[key]; ok {
		return id, nil
	}
	kind := sr.TypeAvro
	if f == JSONSchema {
		kind = sr.TypeJSON
	}
	ctx, cancel := context.WithTimeout(context.Background(), registryPatience)
	defer cancel()
	id, err := r.client.RegisterSchema(ctx, subject, sr.Schema{Schema: schema, Type: kind}, -1, -1)
	if err != nil {
		return 0, r.judge(subject, err)
	}
	r.ids[key] = id
	return id, nil
}

// judge tells a registry that is not there from one that refuses.
func (r *schemaRegistry) judge(subject string, err error) error {
	e := &millrace.Error{
		Kind: millrace.KindRetry, Op: fmt.Sprintf("register schema %s at %s", subject, r.where), Peer: millrace.PeerDestination,
		Err: err, Condition: "destination_unreachable",
	}
	var answer *sr.ResponseError
	var network net.Error
	switch {
	case errors.As(err, &network):
	case !errors.As(err, &answer) || answer.StatusCode >= 500 || answer.StatusCode == 429 || answer.StatusCode == 408:
	case answer.StatusCode == 401 || answer.StatusCode == 403:
		e.Kind, e.Condition = millrace.KindPreflight, ""
		e.Hint = "check user and password of the registry"
	default: // 409 incompatible, 422 invalid
		e.Kind, e.Condition = millrace.KindData, ""
		e.Hint = "the table's new shape is not compatible with the registered one: change the subject's compatibility at the registry, or delete the subject"
	}
	return e
}
