package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// debeziumRun is a connector of its own in the worker that is there already.
type debeziumRun struct {
	b    *kafkaBench
	base time.Duration // CPU time of the worker before
}

func (*debeziumRun) name() string   { return nameDebezium }
func (*debeziumRun) letter() string { return "d" }

// arm makes the connector, which stands still: the worker has connected to the
// source then and looked at its settings.
func (d *debeziumRun) arm(ctx context.Context, w kafkaSet, name string) error {
	u, err := url.Parse(d.b.source.URL(sourceDB))
	if err != nil {
		return err
	}
	config := maps.Clone(connectorSettings)
	config["database.hostname"], config["database.port"], config["database.dbname"] = u.Hostname(), u.Port(), sourceDB
	config["database.user"], config["database.password"] = u.User.Username(), "x"
	config["topic.prefix"], config["slot.name"] = name, name
	config["snapshot.mode"] = "no_data"
	if w.snapshot {
		config["snapshot.mode"] = "initial"
	} else if err := d.b.source.copySlot(ctx, baseSlot, name); err != nil {
		return err
	}
	return d.b.worker.add(ctx, name, config)
}

func (d *debeziumRun) start(ctx context.Context, _ kafkaSet, name string) error {
	d.base = cpuOf(d.pid())
	return d.b.worker.resume(ctx, name)
}

func (d *debeziumRun) pid() int { return d.b.worker.PID() }

func (d *debeziumRun) cpu() time.Duration { return cpuOf(d.pid()) - d.base }
func (d *debeziumRun) done() bool         { return true }

func (d *debeziumRun) broken(ctx context.Context, name string) error {
	return d.b.worker.failed(ctx, name)
}

func (d *debeziumRun) failure(err error) error { return d.b.worker.failure(err) }

func (d *debeziumRun) disarm(ctx context.Context, name string) error {
	return errors.Join(d.b.worker.remove(ctx, name), d.b.source.dropSlot(ctx, name))
}

// millraceRun is the program itself, with its defaults.
type millraceRun struct {
	b      *kafkaBench
	client *client
	load   bool // it ends by itself
}

func (*millraceRun) name() string   { return nameMillrace }
func (*millraceRun) letter() string { return "m" }

const kafkaConfiguration = `job: %s
source:
  postgres: {url: "%s", publication: %s}
snapshot: {mode: %s}
destination:
  kafka: {brokers: ["%s"], prefix: %s, replication: 1}
http: {listen: "127.0.0.1:0"}
`

func (b *kafkaBench) configure(name, mode string) (string, error) {
	path := filepath.Join(b.dir, name+".yaml")
	text := fmt.Sprintf(kafkaConfiguration, name, b.source.URL(sourceDB), publication, mode, b.cluster.Brokers()[0], name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// millraceCommand runs a verb to its end.
func (b *kafkaBench) millraceCommand(ctx context.Context, verb, config string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.millrace, append([]string{verb, "-q", "-c", config}, args...)...)
	cmd.Env = cleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("millrace %s: %w: %s", verb, err, out)
	}
	return nil
}

// arm has nothing to do: the jobs and their slots were made before the backlog.
func (*millraceRun) arm(context.Context, kafkaSet, string) error { return nil }

func (m *millraceRun) start(ctx context.Context, w kafkaSet, name string) (err error) {
	m.load = w.snapshot
	if !m.load {
		m.client, err = startClient(ctx, m.b.millrace, "run", "-c", filepath.Join(m.b.dir, name+".yaml"))
		return err
	}
	config, err := m.b.configure(name, "consistent")
	if err != nil {
		return err
	}
	m.client, err = startClient(ctx, m.b.millrace, "bootstrap", "-q", "-c", config)
	return err
}

func (m *millraceRun) pid() int { return m.client.PID() }

// cpu is exact once the process has ended.
func (m *millraceRun) cpu() time.Duration {
	if m.client.Alive() {
		return cpuOf(m.pid())
	}
	return m.client.cmd.ProcessState.UserTime() + m.client.cmd.ProcessState.SystemTime()
}

// done: a first load is complete when the program says so by its end; how many
// records and marks that makes is not known before.
func (m *millraceRun) done() bool { return !m.load || !m.client.Alive() }

func (m *millraceRun) broken(context.Context, string) error {
	if m.client.Alive() || m.load && m.client.ExitCode() == 0 {
		return nil
	}
	return m.client.failure(errors.Join(errStopped, m.client.Wait()))
}

func (m *millraceRun) failure(err error) error { return m.client.failure(err) }

func (m *millraceRun) disarm(ctx context.Context, name string) error {
	var err error
	if m.client != nil && m.client.Alive() {
		err = m.client.terminate()
	}
	return errors.Join(err, m.b.source.dropSlot(ctx, "millrace_"+name))
}
