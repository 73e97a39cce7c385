package record

import (
	"encoding/base64"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/rig"
)

const jdbcSinkVersion = "3.5.0.Final"

// TestInteropJDBCSink gives the records of json-inline to Debezium's JDBC sink,
// as a Connect worker would: the tables that it makes and fills are the source's.
func TestInteropJDBCSink(t *testing.T) {
	interop(t)
	libs := maven(t, "jdbc-sink-"+jdbcSinkVersion, "io.debezium:debezium-connector-jdbc:"+jdbcSinkVersion, "org.apache.kafka:connect-api:4.2.0",
		"org.apache.kafka:connect-json:4.2.0", "org.apache.kafka:connect-runtime:4.2.0", "org.postgresql:postgresql:42.7.7", "org.slf4j:slf4j-simple:1.7.36")
	s := newSource(t, rig.Shared(t, rig.Newest), `
		CREATE TABLE public.item (id int PRIMARY KEY, name text, price numeric, ok bool, f float8, day date, at timestamp, tz timestamptz, raw bytea, doc jsonb);
		CREATE TABLE public.line (a int, b text, n bigint, PRIMARY KEY (a, b));
		INSERT INTO public.item SELECT i, 'n' || i, i * 1.5, i % 2 = 0, i / 3.0, '2024-02-28'::date + i, '2024-02-28 12:00:00.123456'::timestamp + i * '1 hour'::interval,
		  '2024-02-28 12:00:00.5+00', decode('00ff', 'hex'), '{"a": 1}' FROM generate_series(1, 20) i;
		INSERT INTO public.line SELECT i, 'b', i FROM generate_series(1, 10) i;
		BEGIN; UPDATE public.item SET name = 'new "é"', price = NULL WHERE id < 5; DELETE FROM public.item WHERE id = 20; COMMIT;
		UPDATE public.item SET id = 100 WHERE id = 19;
		TRUNCATE public.line; INSERT INTO public.line VALUES (7, 'again', -1);`)
	e, err := NewEncoder(options(JSONInline))
	check(t, err)
	b64 := func(b []byte) string {
		if b == nil {
			return "-"
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	var in strings.Builder
	for _, r := range encode(t, e, s.stream(t, true), keyOf) {
		in.WriteString(r.Topic + "\t" + b64(r.Key) + "\t" + b64(r.Value) + "\n")
	}
	target := rig.Shared(t, rig.Newest).NewDB(t)
	u, err := url.Parse(target.URL())
	check(t, err)
	cmd := exec.CommandContext(t.Context(), "java", "-Xmx256m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-cp", libs+"/*", "testdata/interop/JdbcSink.java",
		"connection.url=jdbc:postgresql://"+u.Host+"/"+target.Name, "connection.username="+u.User.Username(), "connection.password=x",
		"insert.mode=upsert", "primary.key.mode=record_key", "delete.enabled=true", "truncate.enabled=true", "schema.evolution=basic",
		"collection.name.format=${source.table}", "quote.identifiers=true")
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "done ") {
		t.Fatalf("the sink: %v\n%s", err, out)
	}
	for _, q := range []string{
		"SELECT id, name, price::numeric, ok, f, day, at, tz, encode(raw, 'hex'), doc::jsonb FROM public.item ORDER BY id",
		"SELECT * FROM public.line ORDER BY 1, 2",
	} {
		want, got := s.db.Query(t, "SELECT pg_catalog.string_agg(x::text, E'\\n') FROM ("+q+") x"),
			target.Query(t, "SELECT pg_catalog.string_agg(x::text, E'\\n') FROM ("+q+") x")
		if want == "" || got != want {
			t.Errorf("%s: the sink has\n%s\nthe source\n%s", q, got, want)
		}
	}
}
