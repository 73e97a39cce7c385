package rig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

func kafkaClient(t *testing.T, brokers []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func createTopic(t *testing.T, c *kgo.Client, topic string, partitions int32, replicas int16) {
	t.Helper()
	if _, err := kadm.NewClient(c).CreateTopic(t.Context(), partitions, replicas, nil, topic); err != nil {
		t.Fatal(err)
	}
}

func TestKafkaKeepsWhatItConfirmed(t *testing.T) {
	k := StartKafka(t, KafkaOptions{})
	c := kafkaClient(t, k.Brokers())
	createTopic(t, c, "a", 1, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.ProduceSync(ctx, &kgo.Record{Topic: "a", Value: []byte("1")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(ctx, &kgo.Record{Topic: "nobody-made-it", Value: []byte("1")}).FirstErr(); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a topic that nobody made: %v", err)
	}
	k.Kill(t, 1)
	if k.PID(1) != 0 {
		t.Error("a killed node runs")
	}
	k.Restart(t, 1)
	r := kafkaClient(t, k.Brokers(), kgo.ConsumeTopics("a"))
	got := r.PollFetches(ctx).Records()
	if len(got) != 1 || string(got[0].Value) != "1" {
		t.Errorf("after a kill: %v", got)
	}
}

func TestKafkaLivesWithTwoOfThreeNodes(t *testing.T) {
	k := StartKafka(t, KafkaOptions{Nodes: 3})
	c := kafkaClient(t, k.Brokers())
	createTopic(t, c, "a", 3, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k.Kill(t, 2)
	for range 10 {
		if err := c.ProduceSync(ctx, &kgo.Record{Topic: "a", Value: []byte("1")}).FirstErr(); err != nil {
			t.Fatalf("node 2 is down: %v", err)
		}
	}
	k.Restart(t, 2)
	inSync(t, c, "a", 3)
}

// inSync waits until all replicas of the topic follow again.
func inSync(t *testing.T, c *kgo.Client, topic string, replicas int) {
	t.Helper()
	Eventually(t, time.Minute, func() bool {
		topics, err := kadm.NewClient(c).ListTopics(t.Context(), topic)
		if err != nil {
			return false
		}
		for _, p := range topics[topic].Partitions {
			if len(p.ISR) < replicas {
				return false
			}
		}
		return len(topics[topic].Partitions) > 0
	}, "the replicas are not in sync")
}

func TestSecureKafkaWantsTLSAndPassword(t *testing.T) {
	k := StartKafka(t, KafkaOptions{Secure: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := kadm.NewClient(kafkaClient(t, k.Brokers()))
	for mechanism, name := range map[kadm.ScramMechanism]string{kadm.ScramSha256: "a", kadm.ScramSha512: "b"} {
		if _, err := admin.AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{{User: name, Mechanism: mechanism, Iterations: 4096, Password: "pw"}}); err != nil {
			t.Fatal(err)
		}
	}
	pem, err := os.ReadFile(k.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	secure := kgo.DialTLSConfig(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	for name, mechanism := range map[string]kgo.Opt{
		"plain":     kgo.SASL(plain.Auth{User: kafkaserver.User, Pass: kafkaserver.Password}.AsMechanism()),
		"scram-256": kgo.SASL(scram.Auth{User: "a", Pass: "pw"}.AsSha256Mechanism()),
		"scram-512": kgo.SASL(scram.Auth{User: "b", Pass: "pw"}.AsSha512Mechanism()),
	} {
		c := kafkaClient(t, k.SecureBrokers(), secure, mechanism)
		if err := c.Ping(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	cert, err := tls.LoadX509KeyPair(k.ClientFiles())
	if err != nil {
		t.Fatal(err)
	}
	mutual := kgo.DialTLSConfig(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}})
	if err := kafkaClient(t, k.MutualBrokers(), mutual).Ping(ctx); err != nil {
		t.Errorf("a client's certificate: %v", err)
	}
	if err := kafkaClient(t, k.MutualBrokers(), secure).Ping(ctx); err == nil {
		t.Error("a client without a certificate was accepted")
	}
	c := kafkaClient(t, k.SecureBrokers(), secure, kgo.SASL(plain.Auth{User: kafkaserver.User, Pass: "wrong"}.AsMechanism()))
	if err := c.Ping(ctx); err == nil {
		t.Error("a wrong password was accepted")
	}
}
