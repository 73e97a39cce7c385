package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// connectorSets are the backlogs that the connector is measured with.
var connectorSets = []string{"small", "insert", "wide"}

// connector measures what reads a backlog and writes it to a pipe, which this
// program empties. It needs Java and Maven.
func (b *bench) connector(ctx context.Context) (sets []set, err error) {
	engine, err := b.debezium(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range workloads {
		if !slices.Contains(connectorSets, w.name) {
			continue
		}
		n := w.quick
		if b.full {
			n = w.full
		}
		n = b.size(n)
		out := set{Name: "connector-" + w.name, Kind: kindConnector, Title: w.describe(n), Rows: w.rows(n), Transactions: w.txs(n)}
		java := &debeziumReader{classes: engine, rows: w.rows(n)}
		contenders := []contender{recvPipe(), java, &connectorReader{}}
		if err := b.drain(ctx, &out, workloadSQL(w.name), n, b.rounds, contenders); err != nil {
			return sets, err
		}
		sets = append(sets, out)
		fmt.Printf("%s: Debezium's first change came after %s ms (median)\n", w.name, strconv.FormatFloat(median(java.first), 'f', 0, 64))
	}
	return sets, nil
}

// recvPipe is pg_recvlogical as the connector is: to a pipe.
func recvPipe() reader {
	r := recvReader()
	toNull := r.args
	r.args = func(s *stage) []string {
		args := toNull(s)
		args[slices.Index(args, os.DevNull)] = "-"
		return args
	}
	return r
}

// debezium fetches and compiles Debezium's embedded engine, and gives the class path.
func (b *bench) debezium(ctx context.Context) (string, error) {
	dir := filepath.Join(b.dir, "debezium")
	libs := filepath.Join(dir, "libs")
	source := filepath.Join(b.root, "bench", "debezium")
	for _, args := range [][]string{
		{"mvn", "-B", "-q", "-f", filepath.Join(source, "pom.xml"), "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=" + libs},
		{"javac", "-cp", filepath.Join(libs, "*"), "-d", dir, filepath.Join(source, "Engine.java")},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	return dir + ":" + filepath.Join(libs, "*"), nil
}

// debeziumReader is Debezium's embedded engine; the changes it waits for are those of
// the workload and the first marker.
type debeziumReader struct {
	classes string
	rows    int
	first   []float64 // milliseconds until the first change, of each run
}

func (*debeziumReader) name() string                          { return "debezium embedded" }
func (*debeziumReader) delivers() bool                        { return false }
func (*debeziumReader) prepare(context.Context, *stage) error { return nil }

func (d *debeziumReader) run(ctx context.Context, s *stage) (sample, error) {
	first := filepath.Join(s.dir, "first")
	m, err := reader{
		label:   d.name(),
		program: func(*stage) string { return "java" },
		args: func(s *stage) []string {
			host, port, _ := strings.Cut(s.source.Addr(), ":")
			return []string{"-Xms1g", "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", d.classes, "Engine",
				host, port, sourceDB, runSlot, publication, strconv.Itoa(d.rows + 1), first}
		},
	}.run(ctx, s)
	if err != nil {
		return m, err
	}
	text, err := os.ReadFile(first)
	if err != nil {
		return m, err
	}
	ms, err := strconv.ParseFloat(string(text), 64)
	d.first = append(d.first, ms)
	return m, err
}

// connectorReader is `connector read` from the state that it has before the workload.
type connectorReader struct{ config, catalog, state string }

func (*connectorReader) name() string   { return nameMillrace + " connector" }
func (*connectorReader) delivers() bool { return false }

// prepare syncs once.
func (c *connectorReader) prepare(ctx context.Context, s *stage) error {
	c.config = filepath.Join(s.dir, "connector.json")
	if err := c.configure(s, baseSlot); err != nil {
		return err
	}
	catalog, err := c.last(ctx, s, "CATALOG", "discover", "--config", c.config)
	if err != nil {
		return err
	}
	var found struct {
		Catalog struct {
			Streams []json.RawMessage `json:"streams"`
		} `json:"catalog"`
	}
	if err := json.Unmarshal(catalog, &found); err != nil {
		return err
	}
	type stream struct {
		Stream json.RawMessage `json:"stream"`
		Mode   string          `json:"sync_mode"`
	}
	configured := map[string][]stream{}
	for _, f := range found.Catalog.Streams {
		configured["streams"] = append(configured["streams"], stream{f, "incremental"})
	}
	text, err := json.Marshal(configured)
	if err != nil {
		return err
	}
	c.catalog, c.state = filepath.Join(s.dir, "catalog.json"), filepath.Join(s.dir, "state.json")
	if err := os.WriteFile(c.catalog, text, 0o600); err != nil {
		return err
	}
	line, err := c.last(ctx, s, "STATE", "read", "--config", c.config, "--catalog", c.catalog)
	if err != nil {
		return err
	}
	var message struct {
		State json.RawMessage `json:"state"`
	}
	if err := json.Unmarshal(line, &message); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(c.state, slices.Concat([]byte("["), message.State, []byte("]")), 0o600), c.configure(s, runSlot))
}

func (c *connectorReader) configure(s *stage, slot string) error {
	text, err := json.Marshal(map[string]any{"url": s.source.URL(sourceDB), "replication_method": map[string]any{"replication_slot": slot, "publication": publication}})
	if err != nil {
		return err
	}
	return os.WriteFile(c.config, text, 0o600)
}

// last runs a verb and gives the last message of a type.
func (*connectorReader) last(ctx context.Context, s *stage, kind string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, s.millrace, append([]string{"connector"}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("millrace connector %s: %w: %.500s", args[0], err, out)
	}
	var found []byte
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(`{"type":"`+kind+`"`)) {
			found = bytes.Clone(lines.Bytes())
		}
	}
	if found == nil {
		return nil, fmt.Errorf("millrace connector %s gave no %s", args[0], kind)
	}
	return found, lines.Err()
}

func (c *connectorReader) run(ctx context.Context, s *stage) (sample, error) {
	return reader{
		label:   c.name(),
		program: func(s *stage) string { return s.millrace },
		args: func(*stage) []string {
			return []string{"connector", "read", "--config", c.config, "--catalog", c.catalog, "--state", c.state}
		},
	}.run(ctx, s)
}
