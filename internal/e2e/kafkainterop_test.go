package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/internal/rig/kafkaserver"
)

// foreignTopic is a table that was loaded and changed in all ways, as foreign
// consumers find it in its topic. FULL: Flink wants to know what a row was.
func foreignTopic(t *testing.T) (k *rig.Kafka, topic, rows string) {
	t.Helper()
	j, source, k, prefix := kafkaJob(t, `
		CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2), ok bool, f float8, n bigint);
		ALTER TABLE item REPLICA IDENTITY FULL;
		INSERT INTO item SELECT g, 'é "' || g || '"', g * 1.25, g % 2 = 0, g / 4.0, g FROM generate_series(1, 500) g;`, ", partitions: 2")
	if r := j.Run(t, "bootstrap"); r.Code != 0 {
		t.Fatalf("bootstrap: %s%s", r.Stdout, r.Stderr)
	}
	source.SQL(t, "BEGIN; UPDATE item SET name = NULL, price = -price WHERE id <= 100; DELETE FROM item WHERE id BETWEEN 50 AND 60; COMMIT")
	source.SQL(t, "UPDATE item SET id = id + 1000 WHERE id > 490")
	source.SQL(t, "INSERT INTO item VALUES (55, 'again', 0.00, NULL, 1.5, 9007199254740993)")
	if r := j.Run(t, "run", "--until-current"); r.Code != 0 {
		t.Fatalf("run: %s%s", r.Stdout, r.Stderr)
	}
	return k, prefix + ".public.item", source.Query(t, `SELECT string_agg(concat_ws(E'\t', id, coalesce(name, 'null'), price, coalesce(ok::text, 'null'), n), E'\n' ORDER BY id::text COLLATE "C") FROM item`)
}

const flinkVersion, flinkKafkaVersion = "2.2.1", "5.0.0-2.2"

// TestInteropFlink has Flink read a topic through debezium-json, as it is: what
// is left of all changes are the rows of the source.
func TestInteropFlink(t *testing.T) {
	if !full() {
		t.Skip("foreign programs: make interop")
	}
	libs := filepath.Join(rig.Dir(), "interop", "flink-"+flinkVersion)
	flink := func(name string) string { return "org.apache.flink:flink-" + name + ":" + flinkVersion }
	if err := kafkaserver.FetchJars(t.Context(), libs, flink("clients"), flink("table-api-java-bridge"), flink("table-planner-loader"), flink("table-runtime"),
		flink("connector-base"), flink("json"), "org.apache.flink:flink-sql-connector-kafka:"+flinkKafkaVersion, "org.slf4j:slf4j-simple:1.7.36"); err != nil {
		t.Fatal(err)
	}
	k, topic, want := foreignTopic(t)
	args := []string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"}
	for _, pkg := range []string{"java.lang", "java.util", "java.time", "java.nio", "java.net", "java.text", "java.util.concurrent"} {
		args = append(args, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	cmd := exec.CommandContext(t.Context(), "java", append(args, "-cp", libs+"/*", "testdata/interop/Flink.java", k.Brokers()[0], topic,
		"id INT, name STRING, price DECIMAL(10, 2), ok BOOLEAN, n BIGINT")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), "done\t") {
		t.Fatalf("Flink: %v\n%s\n%s", err, out, stderr.String())
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		if row, ok := strings.CutPrefix(line, "row\t"); ok {
			got = append(got, strings.TrimRight(row, "\n"))
		}
	}
	if d := cmp.Diff(strings.Split(want, "\n"), got); d != "" {
		t.Errorf("Flink's rows (-source +Flink):\n%s", d)
	}
}

// TestInteropKcat reads the topic with kcat, which is librdkafka, a client that
// has nothing in common with ours: the newest value of each key is the row.
func TestInteropKcat(t *testing.T) {
	kcat := os.Getenv("MILLRACE_KCAT")
	if kcat == "" {
		t.Skip("no kcat: make interop finds it and sets MILLRACE_KCAT")
	}
	k, topic, want := foreignTopic(t)
	cmd := exec.CommandContext(t.Context(), kcat, "-C", "-b", k.Brokers()[0], "-t", topic, "-e", "-q", "-Z", "-X", "isolation.level=read_committed",
		"-f", `%k\t%s\t%h\n`)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kcat: %v", err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 || !strings.Contains(f[2], "commit_lsn=") {
			t.Fatalf("kcat says %q", line)
		}
		if f[1] == "NULL" {
			delete(rows, f[0])
			continue
		}
		var v struct {
			After *struct {
				ID    json.Number
				Name  *string
				Price string
				OK    *bool
				N     json.Number
			}
		}
		if err := json.Unmarshal([]byte(f[1]), &v); err != nil {
			t.Fatal(err)
		}
		if a := v.After; a != nil {
			name, ok := "null", "null"
			if a.Name != nil {
				name = *a.Name
			}
			if a.OK != nil {
				ok = map[bool]string{false: "false", true: "true"}[*a.OK]
			}
			rows[f[0]] = strings.Join([]string{string(a.ID), name, a.Price, ok, string(a.N)}, "\t")
		}
	}
	var got []string
	for _, row := range rows {
		got = append(got, row)
	}
	slices.Sort(got)
	wanted := strings.Split(want, "\n")
	slices.Sort(wanted)
	if d := cmp.Diff(wanted, got); d != "" {
		t.Errorf("kcat's rows (-source +kcat):\n%s", d)
	}
}
