package record

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/datum"
	"github.com/millrace/millrace/internal/rig"
)

// The tests of this file run foreign programs, fetched through Maven into the
// rig's cache: make interop.

func interop(t *testing.T) {
	t.Helper()
	if os.Getenv("MILLRACE_SOAK") == "" {
		t.Skip("foreign programs: make interop")
	}
}

// maven gives a directory with jars of artifacts and of all they need.
func maven(t *testing.T, name string, artifacts ...string) string {
	t.Helper()
	dir := filepath.Join(rig.Dir(), "interop", name)
	done := filepath.Join(dir, "complete")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	check(t, os.MkdirAll(dir, 0o755))
	pom := `<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>interop</groupId><artifactId>` + name + `</artifactId><version>1</version><packaging>pom</packaging><dependencies>`
	for _, a := range artifacts {
		part := strings.Split(a, ":")
		pom += fmt.Sprintf("<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>", part[0], part[1], part[2])
	}
	check(t, os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(pom+"</dependencies></project>"), 0o644))
	run(t, dir, "mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
	check(t, os.WriteFile(done, nil, 0o644))
	return dir
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// lines starts a program that ends with the test and gives what it prints.
func lines(t *testing.T, cmd *exec.Cmd) <-chan string {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	c := make(chan string)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer close(c)
		s := bufio.NewScanner(out)
		s.Buffer(nil, 16<<20)
		for s.Scan() {
			select {
			case c <- s.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return c
}

// moreValues are values whose forms are computed.
const moreValues = `
INSERT INTO typ (id, c_interval, c_timetz, c_num, c_num102, c_num50, c_money, c_date, c_ts, c_ts3, c_tstz, c_time, c_time3, c_f4, c_f8) VALUES
 (100, '-1 mon', '00:30:00.5-03:30', -0.00125, -12345678.90, -1, '-$1.05', '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '1969-12-31 23:59:59.999999+00', '00:00', '00:00', -0.1, 1e300),
 (101, '1 year 2 mons -3 days -00:00:00.000001', '23:59:59+00', 100, 0, 127, '$0.00', '0001-01-01', '0001-01-01 00:00:00', '2024-02-29 00:00:00', '0001-01-01 00:00:00+00', '23:59:59.999999', '23:59:59.999', 1e10, 1e-7),
 (102, '00:00:00', '12:00:00+05:45', 12300000000000000000000000000000, 0.01, -128, '$92,233,720,368,547,758.07', '2100-03-01', '2100-03-01 12:00:00.1', NULL, '2100-03-01 12:00:00.1+00', NULL, NULL, 16777216, -1);
INSERT INTO typ (id, c_bit1, c_bit3, c_varbit, c_bytea, c_text, c_json, c_jsonb, c_hstore, c_at, c_ai, c_an, c_inet, c_uuid, c_char) VALUES
 (103, B'0', B'001', B'', '\x', E'tab\there "quoted" \\ é 🐘', '{ "a":1,"a":2 }', '{"x": 1.00}', '"a b"=>"c\"d"', '{}', '{}', '{0.00,-1.5}', '::1', '00000000-0000-0000-0000-000000000000', '');
`

const debeziumVersion = "3.6.1.Final"

// TestInteropDebezium runs Debezium itself on the same changes and compares
// record by record.
func TestInteropDebezium(t *testing.T) {
	interop(t)
	libs := maven(t, "debezium-"+debeziumVersion, "io.debezium:debezium-embedded:"+debeziumVersion,
		"io.debezium:debezium-connector-postgres:"+debeziumVersion, "org.slf4j:slf4j-simple:1.7.36")
	s := newSource(t, rig.Shared(t, rig.Newest), readFile(t, "schema.sql"))
	u, err := url.Parse(s.db.URL())
	check(t, err)
	user := u.User.Username()
	out := lines(t, exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", libs+"/*", "testdata/interop/Debezium.java",
		"database.hostname="+u.Hostname(), "database.port="+u.Port(), "database.user="+user, "database.password=x", "database.dbname="+s.db.Name,
		"topic.prefix=t", "slot.name=dbz_"+s.slot[max(0, len(s.slot)-40):], "publication.name=dbz", "publication.autocreate.mode=filtered",
		"table.include.list=public.typ,public.ord,public.toast,public.nopk", "provide.transaction.metadata=true", "skipped.operations=none",
		"include.unknown.datatypes=true", "slot.drop.on.stop=true", "snapshot.mode=initial"))
	var theirs []golden
	next := func() golden {
		for {
			select {
			case line, ok := <-out:
				if !ok {
					t.Fatal("Debezium has ended")
				}
				if all := parseGoldens(line); len(all) == 1 {
					theirs = append(theirs, all[0])
					return all[0]
				}
			case <-time.After(2 * time.Minute):
				t.Fatal("nothing from Debezium in two minutes")
			}
		}
	}
	for range 7 { // the rows of schema.sql
		next()
	}
	t.Cleanup(func() {
		s.db.SQL(t, `SELECT pg_catalog.pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots WHERE slot_name LIKE 'dbz\_%' AND active`)
		rig.Eventually(t, time.Minute, func() bool {
			_, err := s.db.Server.TryQuery(s.db.Name, `SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots
				WHERE slot_name LIKE 'dbz\_%' AND database = pg_catalog.current_database()`)
			return err == nil
		}, "the slot of Debezium is still in use")
	})
	// It streams from the snapshot on once its slot is in use.
	rig.Eventually(t, time.Minute, func() bool {
		return s.db.Query(t, `SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots WHERE slot_name LIKE 'dbz\_%' AND active`) == "1"
	}, "Debezium does not stream")
	s.db.Script(t, moreValues+readFile(t, "act.sql"))
	for truncates := 0; truncates < 2; {
		if strings.Contains(next().value, `"op":"t"`) {
			truncates++
		}
	}
	bySnapshot := []string{"t.public.typ", "t.public.ord", "t.public.toast", "t.public.nopk"}
	slices.SortStableFunc(theirs[:7], func(a, b golden) int { return slices.Index(bySnapshot, a.topic) - slices.Index(bySnapshot, b.topic) })

	o := options(JSON)
	o.Lossy, o.Decimal, o.Database = true, datum.DecimalBytes, s.db.Name
	e, err := NewEncoder(o)
	check(t, err)
	compareGolden(t, theirs, encode(t, e, s.stream(t, false), keyOf))
}

const apicurioVersion = "3.3.3"

// java21 finds a Java that Apicurio runs on.
func java21(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/jvm/*/bin/java")
	for _, java := range append([]string{os.Getenv("JAVA_HOME") + "/bin/java", "java"}, found...) {
		out, err := exec.Command(java, "-version").CombinedOutput()
		var major int
		if _, rest, ok := strings.Cut(string(out), `version "`); err == nil && ok {
			if _, err := fmt.Sscanf(rest, "%d", &major); err == nil && major >= 21 {
				return java
			}
		}
	}
	t.Skip("Apicurio needs Java 21 or newer")
	return ""
}

// TestInteropApicurio registers schemas at a registry that judges them: a new
// column is compatible, in both formats; another type is not, and stops.
func TestInteropApicurio(t *testing.T) {
	interop(t)
	java := java21(t)
	app := filepath.Join(rig.Dir(), "interop", "apicurio-"+apicurioVersion)
	if _, err := os.Stat(filepath.Join(app, "quarkus-run.jar")); err != nil {
		tmp := t.TempDir()
		run(t, tmp, "mvn", "-B", "-q", "dependency:copy", "-Dartifact=io.apicurio:apicurio-registry-app:"+apicurioVersion+":tar.gz:all", "-DoutputDirectory="+tmp)
		check(t, os.MkdirAll(app, 0o755))
		run(t, tmp, "tar", "xzf", "apicurio-registry-app-"+apicurioVersion+"-all.tar.gz", "-C", app)
	}
	port, management := freePort(t), freePort(t)
	cmd := exec.Command(java, "-Xms128m", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1",
		"-Dquarkus.http.port="+port, "-Dquarkus.management.port="+management, "-Dquarkus.management.host=127.0.0.1",
		"-Dapicurio.storage.kind=sql", "-Dapicurio.storage.sql.kind=h2", "-jar", "quarkus-run.jar")
	cmd.Dir = app
	out := lines(t, cmd)
	go func() {
		for range out {
		}
	}()
	base := "http://127.0.0.1:" + port + "/apis/ccompat/v7"
	rig.Eventually(t, 2*time.Minute, func() bool {
		r, err := http.Get(base + "/subjects")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == 200
	}, "the registry does not answer")

	s := newSource(t, rig.Shared(t, rig.Newest), `CREATE TABLE public.t (id int PRIMARY KEY, a text); INSERT INTO public.t VALUES (1, 'a');
		ALTER TABLE public.t ADD b numeric(10,2)[]; INSERT INTO public.t VALUES (2, 'a', '{1.50}');
		ALTER TABLE public.t ALTER a TYPE int USING 7; INSERT INTO public.t VALUES (3, 7);`)
	txns := s.stream(t, false)
	for _, f := range []Format{Avro, JSONSchema} {
		reg, err := NewRegistry(RegistryOptions{URL: base})
		check(t, err)
		o := options(f)
		o.Registry, o.Topic = reg, func(n millrace.TableName) string { return string(f) + ".public." + n.Name }
		for _, subject := range []string{"-key", "-value"} {
			setBackward(t, base, o.Topic(txns[0].Changes[0].Rel.Name)+subject)
		}
		e, err := NewEncoder(o)
		check(t, err)
		if got := encode(t, e, txns[:2], keyOf); len(got) != 2 {
			t.Fatalf("%d records", len(got))
		}
		err = encodeOne(e, txns[2], func(*Record) error { return nil })
		var e2 *millrace.Error
		if !errors.As(err, &e2) || e2.Kind != millrace.KindData || e2.Hint == "" || !strings.Contains(err.Error(), "-value") {
			t.Errorf("%s: a column of another type: %v", f, err)
		}
	}
}

func setBackward(t *testing.T, base, subject string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, base+"/config/"+url.PathEscape(subject), strings.NewReader(`{"compatibility":"BACKWARD"}`))
	check(t, err)
	req.Header.Set("Content-Type", "application/json")
	r, err := http.DefaultClient.Do(req)
	check(t, err)
	defer r.Body.Close()
	if r.StatusCode != 200 {
		b, _ := io.ReadAll(r.Body)
		t.Logf("compatibility of %s: %s %s", subject, r.Status, b)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	check(t, err)
	return port
}
