package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
)

// hostile are settings that a role, a database and PGOPTIONS can have, and that
// would change what is read or written, or end a session.
var hostile = map[string]string{
	"datestyle":                           "SQL, DMY",
	"intervalstyle":                       "iso_8601",
	"timezone":                            "Asia/Kathmandu",
	"bytea_output":                        "escape",
	"extra_float_digits":                  "-3",
	"array_nulls":                         "off",
	"xmloption":                           "document",
	"standard_conforming_strings":         "off",
	"search_path":                         "evil, public",
	"quote_all_identifiers":               "on",
	"row_security":                        "on",
	"jit":                                 "on",
	"default_transaction_isolation":       "serializable",
	"default_transaction_read_only":       "on",
	"statement_timeout":                   "1s",
	"lock_timeout":                        "1s",
	"idle_in_transaction_session_timeout": "1s",
	"idle_session_timeout":                "1s",
	"client_encoding":                     "LATIN1",
}

// sample shows values whose text depends on those settings.
const sample = `SELECT concat_ws(' | ', 0.1::float4, 1e-300::float8 / 3, now() - now() + '1 year -2 days 3.5 s',
	'2024-02-29'::date, '2024-02-29 12:00+00'::timestamptz, '\xdead'::bytea, '{NULL}'::text[],
	'{"a b"}'::text[], '1.5'::money, 'é', current_schemas(false), '\n', '<a/><b/>'::xml,
	current_setting('transaction_isolation'), current_setting('transaction_read_only'),
	current_setting('transaction_timeout', true))`

func TestSettingsArePinned(t *testing.T) {
	rig.EachVersion(t, testPins, 15, 16, 17, 18)
}

func testPins(t *testing.T, pg *rig.Postgres) {
	db := pg.NewDB(t)
	endpoint := Static(millrace.PeerSource, db.URL(), "shop")
	want := ask(t, endpoint)

	role := "hostile_" + db.Name
	db.SQL(t, "CREATE SCHEMA evil; CREATE FUNCTION evil.now() RETURNS timestamptz IMMUTABLE LANGUAGE sql AS 'SELECT NULL::timestamptz';")
	db.SQL(t, "CREATE ROLE "+role+" LOGIN REPLICATION")
	t.Cleanup(func() { pg.SQL(t, "postgres", "DROP ROLE "+role) })
	settings := maps.Clone(hostile)
	if pg.Major() >= 17 {
		settings["transaction_timeout"] = "1s"
	}
	var options strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		db.SQL(t, fmt.Sprintf("ALTER ROLE %s SET %s = '%s'", role, name, settings[name]))
		fmt.Fprintf(&options, " -c %s=%s", name, strings.ReplaceAll(settings[name], " ", `\ `))
	}
	// search_path is a list: quoted as one it would be one strange name.
	db.SQL(t, fmt.Sprintf("ALTER ROLE %s SET search_path = evil, public", role))

	conn := strings.Replace(db.URL(), "postgres@", role+"@", 1)
	if got := ask(t, Static(millrace.PeerSource, conn, "shop")); got != want {
		t.Errorf("with settings of the role:\n got %s\nwant %s", got, want)
	}
	conn = fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s sslmode=disable DateStyle=German options='%s'",
		pg.Port(), db.Name, strings.ReplaceAll(options.String(), `\`, `\\`))
	if got := ask(t, Static(millrace.PeerSource, conn, "shop")); got != want {
		t.Errorf("with options:\n got %s\nwant %s", got, want)
	}
}

// ask gives the sample's text, which both kinds of connections must agree upon.
func ask(t *testing.T, e *Endpoint) string {
	t.Helper()
	conn, err := e.Connect(t.Context(), Copy)
	if err != nil {
		t.Fatal(err, millrace.HintOf(err))
	}
	defer conn.Close(context.Background())
	var ordinary, name string
	if err := conn.QueryRow(t.Context(), sample).Scan(&ordinary); err != nil {
		t.Fatal(err)
	}
	if err := conn.QueryRow(t.Context(), "SHOW application_name").Scan(&name); err != nil || name != "millrace:shop:copy" {
		t.Errorf("application_name %q, %v", name, err)
	}
	// A second statement works a second after the first: no timeout is left.
	walsender, err := e.ConnectReplication(t.Context(), Stream)
	if err != nil {
		t.Fatal(err, millrace.HintOf(err))
	}
	defer walsender.Close(context.Background())
	row, err := queryRow(t.Context(), walsender, sample)
	if err != nil {
		t.Fatal(err)
	}
	if string(row[0]) != ordinary {
		t.Errorf("walsender and session differ:\n%s\n%s", row[0], ordinary)
	}
	if _, err := queryRow(t.Context(), walsender, "IDENTIFY_SYSTEM"); err != nil {
		t.Error(err)
	}
	return ordinary
}

func TestPGTZDoesNotWin(t *testing.T) {
	pg := rig.Shared(t, rig.Newest)
	t.Setenv("PGTZ", "America/New_York")
	t.Setenv("PGAPPNAME", "somebody")
	want := ask(t, Static(millrace.PeerSource, pg.URL("postgres"), "shop"))
	if !strings.Contains(want, "2024-02-29 12:00:00+00") {
		t.Error(want)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	pg := rig.Start(t, rig.Newest)
	pg.SQL(t, "postgres", `CREATE ROLE app LOGIN PASSWORD 'geheim'; CREATE ROLE stranger LOGIN; CREATE ROLE late LOGIN CONNECTION LIMIT 0;
		CREATE ROLE nodb LOGIN; REVOKE CONNECT ON DATABASE template1 FROM PUBLIC`)
	pg.HBA(t, "host all app 127.0.0.1/32 scram-sha-256", "host all stranger 127.0.0.1/32 reject")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.Addr().String()
	free.Close()

	for _, c := range []struct {
		name, conn string
		kind       millrace.Kind
		text       string
		condition  string
	}{
		{"wrong password", pg.URLAs("app", "falsch", "postgres"), millrace.KindPreflight, "28P01", ""},
		{"no password", strings.Replace(pg.URL("postgres"), "postgres@", "app@", 1), millrace.KindPreflight, "28P01", ""},
		{"no such role", pg.URLAs("nobody", "", "postgres"), millrace.KindPreflight, "28000", ""},
		{"rejected", pg.URLAs("stranger", "", "postgres"), millrace.KindPreflight, "28000", ""},
		{"no such database", pg.URL("nowhere"), millrace.KindPreflight, `database "nowhere" does not exist`, ""},
		{"no CONNECT", pg.URLAs("nodb", "", "template1"), millrace.KindPreflight, "42501", ""},
		{"unknown setting", pg.URL("postgres") + "&nosuch=1", millrace.KindPreflight, "42704", ""},
		{"too many connections", pg.URLAs("late", "", "postgres"), millrace.KindRetry, "53300", "source_unreachable"},
		{"nobody listens", "postgres://x@" + closed + "/x?sslmode=disable", millrace.KindRetry, "refused", "source_unreachable"},
		{"no such host", "postgres://x@no.such.host.invalid/x?sslmode=disable", millrace.KindRetry, "no such host", "source_unreachable"},
		{"no such socket", "host=/no/such/dir user=x", millrace.KindRetry, "no such file", "source_unreachable"},
		{"no TLS there", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=require", pg.Port()), millrace.KindPreflight, "refused TLS", ""},
		{"second host is down", fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,1 user=postgres dbname=nowhere sslmode=disable", pg.Port()), millrace.KindPreflight, "3D000", ""},
		{"all are primaries", pg.URL("postgres") + "&target_session_attrs=standby", millrace.KindRetry, "not in hot standby", "source_unreachable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Static(millrace.PeerSource, c.conn, "shop").Connect(t.Context(), Check)
			checkError(t, err, c.kind, c.text, c.condition)
			if strings.Contains(c.text, "53300") {
				return // walsenders do not count towards a role's limit
			}
			_, err = Static(millrace.PeerSource, c.conn, "shop").ConnectReplication(t.Context(), Stream)
			checkError(t, err, c.kind, "", c.condition)
		})
	}

	// A role without REPLICATION can connect, but not as a walsender.
	_, err = Static(millrace.PeerSource, pg.URLAs("app", "geheim", "postgres"), "shop").ConnectReplication(t.Context(), Stream)
	checkError(t, err, millrace.KindPreflight, "42501", "")
}

func checkError(t *testing.T, err error, kind millrace.Kind, text, condition string) {
	t.Helper()
	e, ok := err.(*millrace.Error) //nolint:errorlint // it is promised to be the outermost
	if !ok {
		t.Fatalf("got %v, want a millrace.Error", err)
	}
	if e.Kind != kind || e.Condition != condition || e.Peer != millrace.PeerSource {
		t.Errorf("%v: kind %d condition %q peer %q", err, e.Kind, e.Condition, e.Peer)
	}
	if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v: want %q on one line", err, text)
	}
	if kind == millrace.KindPreflight && e.Hint == "" {
		t.Errorf("%v: no hint", err)
	}
	if Retryable(err) != (kind == millrace.KindRetry) {
		t.Errorf("%v: Retryable is %v", err, Retryable(err))
	}
}

func TestServerComesAndGoes(t *testing.T) {
	t.Parallel()
	pg := rig.Start(t, rig.Newest)
	e := Static(millrace.PeerDestination, pg.URL("postgres"), "shop")
	conn, err := e.Connect(t.Context(), Apply)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	pg.Crash(t)
	_, err = conn.Exec(t.Context(), "SELECT 1")
	var lost *millrace.Error
	if !errors.As(Wrap("apply", e.Peer, err), &lost) || lost.Kind != millrace.KindRetry || lost.Condition != "destination_unreachable" {
		t.Error(err)
	}
	if _, err = e.Connect(t.Context(), Apply); millrace.KindOf(err) != millrace.KindRetry {
		t.Error(err)
	}
	pg.Restart(t)
	again, err := e.Connect(t.Context(), Apply)
	if err != nil {
		t.Fatal(err)
	}
	again.Close(t.Context())
}

func TestSilentServerTimesOut(t *testing.T) {
	pg := rig.Shared(t, rig.Newest)
	proxy := rig.NewProxy(t, pg)
	proxy.Stall()
	e := Static(millrace.PeerSource, proxy.URL("postgres"), "shop")
	e.Timeout = 200 * time.Millisecond
	start := time.Now()
	_, err := e.Connect(t.Context(), Check)
	if millrace.KindOf(err) != millrace.KindRetry || time.Since(start) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

func TestSlotInUse(t *testing.T) {
	rig.EachVersion(t, testSlotInUse)
}

func testSlotInUse(t *testing.T, pg *rig.Postgres) {
	db := pg.NewDB(t)
	e := Static(millrace.PeerSource, db.URL(), "shop")
	db.SQL(t, "CREATE PUBLICATION p")
	db.SQL(t, "SELECT pg_create_logical_replication_slot('busy_"+db.Name+"', 'pgoutput')")
	start := "START_REPLICATION SLOT busy_" + db.Name + " LOGICAL 0/0 (proto_version '1', publication_names 'p')"
	first := startReplication(t, e, start)
	conn, err := e.ConnectReplication(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), start).ReadAll()
	err = Wrap("start replication", e.Peer, err)
	checkError(t, err, millrace.KindRetry, "55006", "waiting_for_slot")
	first.Close(t.Context())
	rig.Eventually(t, 10*time.Second, func() bool {
		return db.Query(t, "SELECT active FROM pg_replication_slots WHERE slot_name = 'busy_"+db.Name+"'") == "f"
	})
	db.SQL(t, "SELECT pg_drop_replication_slot('busy_"+db.Name+"')")
}

func startReplication(t *testing.T, e *Endpoint, command string) *pgconn.PgConn {
	t.Helper()
	conn, err := e.ConnectReplication(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	// The server answers with CopyBoth, after which the connection streams.
	buf := append([]byte{'Q', 0, 0, 0, byte(4 + len(command) + 1)}, command...)
	if _, err := conn.Conn().Write(append(buf, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ReceiveMessage(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestVerifiedTLS connects to a server with a certificate for db.example.
func TestVerifiedTLS(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl to make a certificate with")
	}
	pg := rig.Start(t, rig.Newest)
	key, cert := filepath.Join(pg.DataDir(), "server.key"), filepath.Join(pg.DataDir(), "server.crt")
	out, err := exec.Command("openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-newkey", "rsa:2048",
		"-subj", "/CN=db.example", "-addext", "subjectAltName=DNS:db.example", "-out", cert, "-keyout", key).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	giveToServer(t, pg, key, cert)
	pg.Configure(t, "ssl=on")
	pg.Reload(t)

	base := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres ", pg.Port())
	connect := func(conn string, tls TLSPolicy) error {
		e := Static(millrace.PeerSource, conn, "shop")
		e.TLS = tls
		c, err := e.Connect(t.Context(), Check)
		if err == nil {
			c.Close(t.Context())
		}
		return err
	}
	checkError(t, connect(base+"sslmode=verify-full", TLSPolicy{Require: true}), millrace.KindPreflight, "certificate", "")
	checkError(t, connect(base+"sslmode=verify-full sslrootcert="+cert, TLSPolicy{Require: true}), millrace.KindPreflight, "127.0.0.1", "")
	if err := connect(base+"sslmode=verify-ca sslrootcert="+cert, TLSPolicy{Require: true}); err != nil {
		t.Error(err)
	}
	if err := connect(base+"sslmode=verify-full", TLSPolicy{Require: true, InsecureSkipVerify: true}); err != nil {
		t.Error(err)
	}
	if err := connect(base, TLSPolicy{Require: true}); err != nil {
		t.Error(err)
	}
	mine, mineKey := clientCertificate(t, pg, cert, key, func(params string) error {
		return connect(base+"sslmode=verify-ca sslrootcert="+cert+" "+params, TLSPolicy{Require: true})
	})
	certificatesAsText(t, base, cert, mine, mineKey)
}

// certificatesAsText connects with certificates that are in no file.
func certificatesAsText(t *testing.T, base, cert, mine, mineKey string) {
	t.Helper()
	locked := filepath.Join(t.TempDir(), "locked.key")
	if out, err := exec.Command("openssl", "rsa", "-aes256", "-traditional", "-passout", "pass:geheim", "-in", mineKey, "-out", locked).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text := func(path string) string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	connect := func(c Certificates) error {
		e := Static(millrace.PeerSource, base+"sslmode=verify-ca", "shop")
		e.TLS, e.Certificates = TLSPolicy{Require: true}, &c
		conn, err := e.Connect(t.Context(), Check)
		if err == nil {
			conn.Close(t.Context())
		}
		return err
	}
	if err := connect(Certificates{Root: text(cert), Cert: text(mine), Key: text(mineKey)}); err != nil {
		t.Error(err)
	}
	if err := connect(Certificates{Root: text(cert), Cert: text(mine), Key: text(locked), Password: "geheim"}); err != nil {
		t.Error(err)
	}
	checkError(t, connect(Certificates{Root: text(mine), Cert: text(mine), Key: text(mineKey)}), millrace.KindPreflight, "certificate", "")
	checkError(t, connect(Certificates{Root: text(cert)}), millrace.KindPreflight, "certificate", "")
	for _, c := range []Certificates{
		{Root: "no certificate"}, {Root: text(cert), Cert: text(mine)}, {Root: text(cert), Cert: text(mine), Key: "s3cret"},
		{Root: text(cert), Cert: text(mine), Key: text(locked), Password: "wrong"}, {Root: text(cert), Cert: text(cert), Key: text(mineKey)},
	} {
		err := connect(c)
		if millrace.KindOf(err) != millrace.KindConfig || millrace.HintOf(err) == "" || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v, want a problem of the configuration", err)
		}
	}
}

// clientCertificate has the server ask for a certificate that its own has signed.
func clientCertificate(t *testing.T, pg *rig.Postgres, cert, key string, connect func(params string) error) (mine, mineKey string) {
	t.Helper()
	dir := t.TempDir()
	mine, mineKey = filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key")
	request := filepath.Join(dir, "client.csr")
	for _, args := range [][]string{
		{"req", "-new", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=postgres", "-out", request, "-keyout", mineKey},
		{"x509", "-req", "-in", request, "-CA", cert, "-CAkey", key, "-days", "2", "-out", mine},
	} {
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	pg.Configure(t, "ssl_ca_file="+cert)
	pg.HBA(t, "local all all trust", "hostssl all all 127.0.0.1/32 cert")
	if err := connect("sslcert=" + mine + " sslkey=" + mineKey); err != nil {
		t.Error(err)
	}
	checkError(t, connect(""), millrace.KindPreflight, "certificate", "")
	return mine, mineKey
}

// giveToServer makes files the server's own, which it demands of its key.
func giveToServer(t *testing.T, pg *rig.Postgres, files ...string) {
	t.Helper()
	for _, f := range files {
		uid, gid := owner(t, pg.DataDir())
		if err := os.Chown(f, uid, gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(f, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConnectedIsLogged(t *testing.T) {
	pg := rig.Shared(t, rig.Newest)
	var log bytes.Buffer
	e := Static(millrace.PeerSource, pg.URLAs("postgres", "geheim", "postgres"), "shop")
	e.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	conn, err := e.Connect(t.Context(), Watch)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close(t.Context())
	if s := log.String(); !strings.Contains(s, "role=watch") || strings.Contains(s, "geheim") {
		t.Error(s)
	}
}
