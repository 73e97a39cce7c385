package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/rig/kafkaserver"
	"github.com/millrace/millrace/internal/rig/pgserver"
)

const debeziumVersion = "3.6.1.Final"

// connectJVM is a worker that nothing holds back: all of the compiler, and a heap
// that is there from the beginning.
var connectJVM = []string{"-Xms1g", "-Xmx1g"}

// connect is a Kafka Connect worker (standalone) with Debezium's connector. What it
// says of itself is the end of each error.
type connect struct {
	*client
	url string
}

// Bounds of what the worker is asked. It gives up a request by itself after 90
// seconds, with an answer that says where it hangs.
const (
	startWithin  = 4 * time.Minute
	answerWithin = 100 * time.Second
	addWithin    = 5 * time.Minute
)

// workerLog is enough to see what a worker is busy with.
const workerLog = `rootLogger.level=WARN
rootLogger.appenderRef.o.ref=O
appender.o.type=Console
appender.o.name=O
appender.o.layout.type=PatternLayout
appender.o.layout.pattern=%d %p %c{1} %m%n
logger.h.name=org.apache.kafka.connect.runtime.standalone
logger.h.level=INFO
logger.m.name=io.debezium.metrics
logger.m.level=ERROR
logger.w.name=org.apache.kafka.connect.runtime.Worker
logger.w.level=INFO
`

// workerSettings are Debezium's advice for throughput, as far as they are the
// worker's.
var workerSettings = []string{
	"key.converter=org.apache.kafka.connect.json.JsonConverter",
	"value.converter=org.apache.kafka.connect.json.JsonConverter",
	"key.converter.schemas.enable=false",
	"value.converter.schemas.enable=false",
	"producer.compression.type=lz4",
	"producer.linger.ms=50",
	"producer.batch.size=1000000",
}

// connectorSettings are those of each connector beside names and addresses.
var connectorSettings = map[string]string{
	"connector.class":                           "io.debezium.connector.postgresql.PostgresConnector",
	"plugin.name":                               "pgoutput",
	"publication.autocreate.mode":               "disabled",
	"publication.name":                          publication,
	"max.batch.size":                            "8192",
	"max.queue.size":                            "32768",
	"poll.interval.ms":                          "50",
	"topic.creation.default.partitions":         "1",
	"topic.creation.default.replication.factor": "1",
}

func startConnect(ctx context.Context, dir, brokers string) (*connect, error) {
	home := filepath.Join(pgserver.Dir(), "interop", "connect-"+kafkaserver.Version)
	plugins := filepath.Join(home, "plugins")
	if err := errors.Join(
		kafkaserver.FetchJars(ctx, filepath.Join(home, "worker"), "org.apache.kafka:connect-runtime:"+kafkaserver.Version,
			"org.apache.kafka:connect-json:"+kafkaserver.Version, "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5"),
		kafkaserver.FetchJars(ctx, filepath.Join(plugins, "debezium-"+debeziumVersion), "io.debezium:debezium-connector-postgres:"+debeziumVersion)); err != nil {
		return nil, err
	}
	port, lock, err := pgserver.TakePort()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	c := &connect{url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	config, logging := filepath.Join(dir, "worker.properties"), filepath.Join(dir, "worker-log4j2.properties")
	text := strings.Join(append(slices.Clone(workerSettings), "bootstrap.servers="+brokers, "plugin.path="+plugins, "plugin.discovery=service_load", "listeners="+c.url,
		"rest.advertised.host.name=127.0.0.1", "offset.storage.file.filename="+filepath.Join(dir, "offsets")), "\n")
	if err := errors.Join(os.WriteFile(config, []byte(text+"\n"), 0o600), os.WriteFile(logging, []byte(workerLog), 0o600)); err != nil {
		return nil, err
	}
	args := append(slices.Clone(connectJVM), "-Dlog4j2.configurationFile="+logging, "-cp", filepath.Join(home, "worker")+"/*",
		"org.apache.kafka.connect.cli.ConnectStandalone", config)
	if c.client, err = startClient(ctx, "java", args...); err != nil {
		return nil, err
	}
	if err := c.await(ctx, startWithin, "the worker answers", func(ctx context.Context) (bool, error) {
		_, err := c.ask(ctx, http.MethodGet, "/connectors", nil)
		return err == nil, err
	}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// close ends the worker. A JVM that SIGTERM has ended says so by its exit code.
func (c *connect) close() error {
	const terminated = 128 + int(syscall.SIGTERM)
	err := c.terminate()
	if !c.Alive() && c.ExitCode() == terminated {
		return nil
	}
	return err
}

// await asks until done says so. Its errors are tried again until the time is over.
func (c *connect) await(ctx context.Context, within time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		ok, err := done(ctx)
		switch {
		case ok:
			return nil
		case !c.Alive():
			return c.failure(errors.Join(fmt.Errorf("the worker ended before %s", what), c.Wait()))
		}
		if e := pause(ctx, 100*time.Millisecond); e != nil {
			return c.failure(errors.Join(fmt.Errorf("not within %v: %s", within, what), err))
		}
	}
}

// refusal is an answer that is none of success.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

// ask sends a request to the worker; body is sent as JSON.
func (c *connect) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, in)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = &refusal{resp.StatusCode, fmt.Sprintf("%s %s: %s: %s", method, path, resp.Status, out)}
	}
	return out, err
}

// add makes a connector, which is validated at once, with a connection to the
// source, and stands still until it is resumed. A request whose answer was late may
// have been served.
func (c *connect) add(ctx context.Context, name string, config map[string]string) error {
	var wrong *refusal
	err := c.await(ctx, addWithin, "connector "+name+" is made", func(ctx context.Context) (bool, error) {
		wrong = nil
		_, err := c.ask(ctx, http.MethodPost, "/connectors", map[string]any{"name": name, "config": config, "initial_state": "STOPPED"})
		switch {
		case errors.As(err, &wrong) && wrong.status == http.StatusBadRequest:
			return true, err // it will not get better
		case err != nil && !(wrong != nil && wrong.status == http.StatusConflict):
			return false, err
		}
		wrong = nil
		state, err := c.state(ctx, name)
		return state.Connector.State == "STOPPED", err
	})
	if err == nil && wrong != nil {
		err = c.failure(wrong)
	}
	return err
}

// resume lets a connector run: its task begins in a moment.
func (c *connect) resume(ctx context.Context, name string) error {
	_, err := c.ask(ctx, http.MethodPut, "/connectors/"+name+"/resume", nil)
	if err != nil {
		return c.failure(err)
	}
	return nil
}

func (c *connect) remove(ctx context.Context, name string) error {
	_, err := c.ask(ctx, http.MethodDelete, "/connectors/"+name, nil)
	var gone *refusal
	if err == nil || errors.As(err, &gone) && gone.status == http.StatusNotFound {
		return nil
	}
	return c.failure(err)
}

// connectorState is what the worker says of a connector and its tasks.
type connectorState struct {
	Connector struct{ State, Trace string }
	Tasks     []struct{ State, Trace string }
}

func (c *connect) state(ctx context.Context, name string) (s connectorState, err error) {
	out, err := c.ask(ctx, http.MethodGet, "/connectors/"+name+"/status", nil)
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

// failed tells why a connector does not work, or nil.
func (c *connect) failed(ctx context.Context, name string) error {
	if !c.Alive() {
		return c.failure(errors.Join(errStopped, c.Wait()))
	}
	s, err := c.state(ctx, name)
	if err != nil {
		return c.failure(err)
	}
	for _, x := range append(s.Tasks, s.Connector) {
		if x.State == "FAILED" {
			return c.failure(fmt.Errorf("the connector has failed: %.2000s", x.Trace))
		}
	}
	return nil
}
