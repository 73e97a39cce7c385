package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

const scramUser, scramPassword = "carrier", "scr4m-Geheimnis"

// secureKafka is a broker that knows a SCRAM user, and lets everybody do only
// what docs/kafka.md asks for, on topics that begin with "allowed".
func secureKafka(t *testing.T) *rig.Kafka {
	t.Helper()
	k := rig.StartKafka(t, rig.KafkaOptions{Secure: true})
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	adm := kadm.NewClient(cl)
	if _, err := adm.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: scramUser, Mechanism: kadm.ScramSha512, Iterations: 4096, Password: scramPassword}}); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*kadm.ACLBuilder{
		kadm.NewACLs().Topics("allowed").Operations(kadm.OpCreate, kadm.OpRead, kadm.OpWrite, kadm.OpDescribe, kadm.OpDescribeConfigs),
		kadm.NewACLs().TransactionalIDs("millrace.allowed").Operations(kadm.OpWrite, kadm.OpDescribe),
	} {
		b.Allow("User:"+kafkaserver.User, "User:"+scramUser, "User:"+kafkaserver.Subject).AllowHosts("*").ResourcePatternType(kadm.ACLPatternPrefixed)
		answers, err := adm.CreateACLs(ctx, b)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
		}
	}
	return k
}

// TestKafkaSecure goes through the listeners with TLS: passwords by PLAIN and by
// SCRAM, and a client's certificate, with the rights of docs/kafka.md and no
// more. What is configured wrongly ends at once with a hint, and no secret stands
// in anything that is said.
func TestKafkaSecure(t *testing.T) {
	t.Parallel()
	k := secureKafka(t)
	source := rig.Shared(t, rig.Newest).NewDB(t)
	source.Script(t, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '"+rowValue+"1'); CREATE PUBLICATION p FOR TABLE t")
	dir := t.TempDir()
	passwordFile := filepath.Join(dir, "password")
	writePassword(t, passwordFile, scramPassword)
	cert, key := k.ClientFiles()
	secured, mutual := k.SecureBrokers()[0], k.MutualBrokers()[0]
	tls := func(more string) string { return "tls: {enable: true" + more + "}" }
	ca := ", ca: " + k.CAFile()
	sasl := func(mechanism, user, password string) string {
		return fmt.Sprintf(", sasl: {mechanism: %s, user: %s, password: %q}", mechanism, user, password)
	}
	plain, scram := sasl("PLAIN", kafkaserver.User, kafkaserver.Password), sasl("SCRAM-SHA-512", scramUser, "${file:"+passwordFile+"}")
	var said strings.Builder
	run := func(j *blackbox.Job, args ...string) blackbox.Result {
		r := j.Run(t, args[0], append(args[1:], "-v")...)
		said.WriteString(r.Stdout + r.Stderr)
		return r
	}
	job := func(name, prefix, broker, how string) *blackbox.Job {
		return blackbox.NewJob(t, blackbox.Options{Name: name, Source: source, SourceKeys: "publication: p", Extra: fast,
			Kafka: fmt.Sprintf("{brokers: [%q], prefix: %s, %s}", broker, prefix, how)})
	}
	for i, c := range []struct{ name, broker, how string }{
		{"plain", secured, tls(ca) + plain}, {"scram", secured, tls(ca) + scram}, {"mutual", mutual, tls(ca + ", cert: " + cert + ", key: " + key)},
	} {
		j := job(c.name, "allowed-"+c.name, c.broker, c.how)
		for _, args := range [][]string{{"check"}, {"bootstrap"}} {
			if r := run(j, args...); r.Code != blackbox.Done {
				t.Fatalf("%s: %s: %d %s%s", c.name, args, r.Code, r.Stdout, r.Stderr)
			}
		}
		source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, '%s')", 100+i, rowValue))
		if r := run(j, "run", "--until-current"); r.Code != blackbox.Done {
			t.Fatalf("%s: run: %d %s%s", c.name, r.Code, r.Stdout, r.Stderr)
		}
		if r := run(j, "status"); r.Code != blackbox.Done || !strings.Contains(r.Stdout, "stopped") {
			t.Errorf("%s: status: %d %s%s", c.name, r.Code, r.Stdout, r.Stderr)
		}
	}
	for _, c := range []struct{ name, broker, prefix, how, hint string }{
		{"wrong password", secured, "allowed-plain", tls(ca) + sasl("PLAIN", kafkaserver.User, wrongPass), "sasl.password"},
		{"wrong password of SCRAM", secured, "allowed-scram", tls(ca) + sasl("SCRAM-SHA-512", scramUser, wrongPass), "sasl.password"},
		{"unknown user", secured, "allowed-scram", tls(ca) + sasl("SCRAM-SHA-512", "nobody", wrongPass), "sasl.user"},
		{"another authority", secured, "allowed-plain", tls(", ca: "+cert) + plain, "tls.ca"},
		{"the system's authorities", secured, "allowed-plain", tls("") + plain, "tls.ca"},
		{"another name", "127.0.0.1" + strings.TrimPrefix(secured, "localhost"), "allowed-plain", tls(ca+", server_name: elsewhere") + plain, "tls.ca"},
		{"no certificate", mutual, "allowed-mutual", tls(ca), "tls.cert"},
		{"no rights", secured, "forbidden", tls(ca) + scram, "allow the user"},
		{"TLS to a listener without", k.Brokers()[0], "allowed-plain", tls(ca), "listener"},
		{"no TLS to a listener with it", secured, "allowed-plain", "tls: {enable: false}" + plain, "listener"},
		{"nobody to a listener that wants a user", secured, "allowed-plain", tls(ca), "sasl"},
	} {
		j := job("plain", c.prefix, c.broker, c.how)
		r := run(j, "check")
		if r.Code != blackbox.No || !strings.Contains(r.Stdout+r.Stderr, c.hint) {
			t.Errorf("%s: check: %d, no %q in %s%s", c.name, r.Code, c.hint, r.Stdout, r.Stderr)
		}
	}
	// It ends there, and does not retry what no retry cures.
	j := job("plain", "allowed-plain", secured, tls(ca)+sasl("PLAIN", kafkaserver.User, wrongPass))
	if r := run(j, "run"); r.Code != blackbox.No || !strings.Contains(r.Stderr, "hint: ") {
		t.Errorf("run with a wrong password: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, secret := range []string{rowValue, scramPassword, wrongPass, kafkaserver.Password} {
		if i := strings.Index(said.String(), secret); i >= 0 {
			t.Errorf("%q is said: …%s…", secret, said.String()[max(0, i-200):min(said.Len(), i+100)])
		}
	}
}
