package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// What must not be seen anywhere. A row's value is rowValue and a number.
const (
	rowValue  = "Wertvoll"
	password  = "pAss-w0rd/Gehe:m"
	wrongPass = "wr0ng-Geheimwort"
	httpToken = "t0ken-Geheimnis"
)

// refusals say how the target refuses a row, and how it takes it after all.
var refusals = []struct{ name, damage, cure string }{
	{"raised by a trigger", trigger(`RAISE EXCEPTION 'row % is refused', NEW USING DETAIL = NEW.v, HINT = NEW.v`), noTrigger},
	{"raised with another code and names", trigger(`RAISE EXCEPTION '%', NEW.v USING ERRCODE = '23505', CONSTRAINT = NEW.v, COLUMN = NEW.v, TABLE = NEW.v, DETAIL = 'Key (v)=(' || NEW.v || ') already exists.'`), noTrigger},
	{"asserted by a trigger", trigger(`ASSERT false, NEW.v`), noTrigger},
	{"quoted by a statement of a trigger", trigger(`EXECUTE format('SELECT %L::date', NEW.v)`), noTrigger},
	{"unique", "DELETE FROM t WHERE id <> 1; CREATE UNIQUE INDEX u ON t (left(v, 3))", "DROP INDEX u"},
	{"check", "ALTER TABLE t ADD CONSTRAINT c CHECK (id < 0) NOT VALID", "ALTER TABLE t DROP CONSTRAINT c"},
	{"too long", "DELETE FROM t; ALTER TABLE t ALTER v TYPE varchar(3)", "ALTER TABLE t ALTER v TYPE text"},
	{"another type", "TRUNCATE t; ALTER TABLE t ALTER v TYPE date USING NULL", "ALTER TABLE t ALTER v TYPE text"},
	{"domain", "CREATE DOMAIN d AS text CHECK (length(VALUE) < 3); TRUNCATE t; ALTER TABLE t ALTER v TYPE d", "ALTER TABLE t ALTER v TYPE text"},
	{"not null", "ALTER TABLE t ADD must int NOT NULL DEFAULT 1; ALTER TABLE t ALTER must DROP DEFAULT", "ALTER TABLE t DROP must"},
	{"missing row", "TRUNCATE t", ""},
}

func trigger(body string) string {
	return `CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + body + `; RETURN NEW; END $$;
		CREATE TRIGGER guard BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION guard(); ALTER TABLE t ENABLE ALWAYS TRIGGER guard`
}

const noTrigger = "DROP TRIGGER guard ON t"

// secretive is a pair whose roles prove themselves with a password that stands
// in a file, and whose HTTP server wants a token.
func secretive(t *testing.T) (p *pair, passwordFile string) {
	t.Helper()
	server := rig.Start(t, rig.Newest)
	server.SQL(t, "postgres", "CREATE ROLE app LOGIN SUPERUSER PASSWORD '"+password+"'")
	server.HBA(t, "host all app 127.0.0.1/32 scram-sha-256")
	passwordFile = filepath.Join(t.TempDir(), "password")
	writePassword(t, passwordFile, password)
	p = newPair(t, plan{source: server, target: server,
		schema: "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, '" + rowValue + "' || i FROM generate_series(1, 9) i",
		options: func(o *blackbox.Options, x *pair) {
			dsn := func(db string) string {
				return fmt.Sprintf("host=127.0.0.1 port=%d dbname=%s user=app password='${file:%s}' sslmode=disable", server.Port(), db, passwordFile)
			}
			o.SourceURL, o.TargetURL = dsn(x.source.Name), dsn(x.target.Name)
			o.Token = httpToken
		}})
	return p, passwordFile
}

func writePassword(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRedaction provokes errors of many kinds and looks through all that the
// program says: neither a secret nor the value of a row stands anywhere.
func TestRedaction(t *testing.T) {
	t.Parallel()
	p, passwordFile := secretive(t)
	said := map[string]string{}
	look := func(when string) {
		said["log, "+when] = p.Log(1 << 20)
		for _, row := range []string{"job", "runtime"} {
			said[row+", "+when] = p.target.Query(t, "SELECT * FROM millrace."+row)
		}
		for _, verb := range [][]string{{"status"}, {"status", "--json"}, {"check"}, {"check", "--json"}, {"bootstrap", "--dry-run"}} {
			r := p.Run(t, verb[0], append(verb[1:], "-v")...)
			said[strings.Join(verb, " ")+", "+when] = r.Stdout + r.Stderr
		}
		if p.Running() {
			for _, page := range []string{"/", "/status", "/metrics"} {
				_, body := p.get(t, page, nil)
				said[page+", "+when] = body
			}
		}
	}
	p.Start(t, "--bootstrap", "-v")
	p.sync(t)
	look("while it streams")

	// The password is changed while it runs: it is read anew, and is wrong.
	writePassword(t, passwordFile, wrongPass)
	p.target.Server.SQL(t, "postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
	rig.Eventually(t, patience, func() bool { return contains(p.Log(100), "password authentication failed") }, "the password is refused")
	look("with a wrong password")
	writePassword(t, passwordFile, password)
	p.sync(t)
	if code := p.Stop(t); code != blackbox.Done {
		t.Fatalf("exit code %d", code)
	}

	for i, c := range refusals {
		p.target.Script(t, c.damage)
		if c.name == "missing row" {
			p.source.SQL(t, "UPDATE t SET v = v || 'x' WHERE id = 1")
		} else {
			p.source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, '%s%d')", 100+i, rowValue, i))
		}
		format := []string{"text", "json"}[i%2]
		p.Start(t, "-v", "--log-format", format)
		rig.Eventually(t, patience, func() bool { return !p.Running() }, "it stops:", c.name)
		if code := p.ExitCode(); code != blackbox.Stuck {
			t.Errorf("%s: exit code %d", c.name, code)
		}
		look(c.name)
		if reason := p.record(t, "reason"); c.name != "missing row" && !contains(reason, "SQLSTATE", "public.t") {
			t.Errorf("%s: the reason says too little: %s", c.name, reason)
		}
		if c.cure != "" {
			p.target.Script(t, c.cure)
			p.Start(t, "-v", "--until-current")
			rig.Eventually(t, patience, func() bool { return !p.Running() }, "it goes on:", c.name)
		}
	}

	for what, text := range said {
		for _, secret := range []string{rowValue, password, wrongPass, httpToken, "Geheim"} {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s holds %q: …%s…", what, secret, text[max(0, i-200):min(len(text), i+100)])
			}
		}
		if text == "" && !strings.HasPrefix(what, "runtime") { // nobody runs it after an error
			t.Errorf("%s is empty", what)
		}
	}
}
