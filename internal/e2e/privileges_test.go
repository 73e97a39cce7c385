package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// shopTables has %s where a foreign key says what it does by itself.
const shopTables = `
	CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
	CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, m mood, UNIQUE (name));
	CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int NOT NULL REFERENCES customers %s,
		total numeric(10,2), note text, twice numeric GENERATED ALWAYS AS (total * 2) STORED);
	CREATE TABLE items (order_id bigint REFERENCES orders %s, n int, what text, PRIMARY KEY (order_id, n));
	CREATE TABLE staff (id int PRIMARY KEY, boss int REFERENCES staff DEFERRABLE INITIALLY DEFERRED, favourite int REFERENCES customers %s);
	CREATE TABLE log (at timestamptz DEFAULT now(), what text);`

const shopRows = `
	INSERT INTO customers SELECT i, 'c' || i, (ARRAY['sad','ok','happy'])[1 + i % 3]::mood FROM generate_series(1, 200) i;
	INSERT INTO orders (customer, total) SELECT 1 + i % 200, i / 7.0 FROM generate_series(1, 1000) i;
	INSERT INTO items SELECT 1 + i % 1000, i, 'thing ' || i FROM generate_series(1, 3000) i;
	INSERT INTO staff VALUES (1, NULL, 5), (2, 1, 6), (3, 2, 7);
	INSERT INTO log (what) VALUES ('loaded');
	CREATE TABLE secret (id int PRIMARY KEY, v text);
	INSERT INTO secret VALUES (1, 'hidden');`

// cascadeChanges need foreign keys that act by themselves.
var cascadeChanges = []string{
	`DELETE FROM customers WHERE id BETWEEN 10 AND 40`,
	`UPDATE customers SET id = id + 5000 WHERE id BETWEEN 50 AND 60`,
	`DELETE FROM customers WHERE id IN (5, 70)`,
	`BEGIN; DELETE FROM customers WHERE id = 80; INSERT INTO customers VALUES (80, 'c80', 'sad'); INSERT INTO orders (customer, total) VALUES (80, 8); COMMIT`,
}

// shopChanges is what a shop does.
var shopChanges = []string{
	`INSERT INTO customers VALUES (1001, 'new', 'ok'); INSERT INTO orders (customer, total) VALUES (1001, 9.99), (1001, 0)`,
	`UPDATE orders SET total = total + 1, note = repeat('n', 3000) WHERE id % 10 = 0`,
	`UPDATE orders SET total = total * 2 WHERE id % 20 = 0`,
	`BEGIN; UPDATE customers SET name = 'x' WHERE id = 100; UPDATE customers SET name = 'c100' WHERE id = 101; UPDATE customers SET name = 'c101' WHERE id = 100; COMMIT`,
	`BEGIN; INSERT INTO staff VALUES (10, 11, 170), (11, 10, 171); UPDATE staff SET boss = 3 WHERE id = 10; COMMIT`,
	`INSERT INTO log (what) SELECT 'same' FROM generate_series(1, 50)`,
	`TRUNCATE items`,
	`INSERT INTO items SELECT id, 1, 'again' FROM orders`,
	`TRUNCATE customers CASCADE`,
	`INSERT INTO customers VALUES (1, 'first', 'sad'); INSERT INTO orders (customer, total) VALUES (1, 1); INSERT INTO items SELECT id, 7, 'i' FROM orders`,
	`DELETE FROM items; DELETE FROM orders; INSERT INTO log (what) VALUES ('end')`,
}

// TestLeastPrivileges: the source's role may replicate and read the published
// tables, the target's role owns its database; neither may do anything else, and
// both prove themselves with a password. Without the replica role the target
// checks foreign keys; those that act by themselves would do again what comes in
// the stream, so that they are refused.
func TestLeastPrivileges(t *testing.T) {
	t.Parallel()
	tables := func(onCustomer, onOrder, onFavourite string) string {
		return fmt.Sprintf(shopTables, onCustomer, onOrder, onFavourite)
	}
	acting := tables("ON DELETE CASCADE ON UPDATE CASCADE", "ON DELETE CASCADE", "ON DELETE SET NULL ON UPDATE CASCADE")
	t.Run("created", func(t *testing.T) {
		t.Parallel()
		leastPrivileges(t, tables("ON DELETE RESTRICT", "", ""), "", shopChanges)
	})
	t.Run("existing", func(t *testing.T) {
		t.Parallel()
		leastPrivileges(t, acting, tables("DEFERRABLE", "DEFERRABLE", "DEFERRABLE"), append(cascadeChanges, shopChanges...))
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		p := leastPrivileged(t, acting, "")
		r := p.Run(t, "check")
		if r.Code != blackbox.No {
			t.Errorf("check: exit code %d", r.Code)
		}
		wants(t, "check", r.Stdout+r.Stderr, "items_order_id_fkey", "orders_customer_fkey", "staff_favourite_fkey")
	})
}

func leastPrivileges(t *testing.T, schema, before string, changes []string) {
	p := leastPrivileged(t, schema, before)
	if r := p.Run(t, "check"); r.Code != blackbox.Done {
		t.Errorf("check: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	p.Start(t, "--bootstrap")
	p.sync(t)
	half := len(changes) / 2
	for _, sql := range changes[:half] {
		p.source.Script(t, sql)
		p.sync(t) // each alone
	}
	p.Signal(t, syscall.SIGSTOP) // the rest in groups
	for _, sql := range changes[half:] {
		p.source.Script(t, sql)
	}
	p.Signal(t, syscall.SIGCONT)
	p.sync(t)
	p.source.SQL(t, "DROP TABLE secret") // it is not the job's
	p.finish(t)
	if got := p.target.Query(t, "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname IN ('public', 'millrace')"); got != "owner" {
		t.Errorf("tables of the target belong to %q", got)
	}
}

func leastPrivileged(t *testing.T, schema, before string) *pair {
	t.Helper()
	source, target := rig.Start(t, rig.Newest), rig.Start(t, rig.Newest)
	target.SQL(t, "postgres", "SET password_encryption = 'scram-sha-256'; CREATE ROLE owner LOGIN PASSWORD 'to'")
	if before != "" {
		before = "ALTER SCHEMA public OWNER TO owner; SET ROLE owner;" + before
	}
	p := newPair(t, plan{source: source, target: target, schema: schema + shopRows, before: before,
		options: func(o *blackbox.Options, p *pair) {
			o.SourceURL = source.URLAs("repl", "from", p.source.Name)
			o.TargetURL = target.URLAs("owner", "to", p.target.Name)
			o.Tables = []string{"public.*", "!public.secret"}
		}})
	p.target.SQL(t, "ALTER DATABASE "+p.target.Name+" OWNER TO owner")
	p.source.SQL(t, `
		SET password_encryption = 'scram-sha-256';
		REVOKE ALL ON SCHEMA public FROM PUBLIC;
		CREATE ROLE repl LOGIN REPLICATION PASSWORD 'from';
		GRANT USAGE ON SCHEMA public TO repl;
		GRANT SELECT ON customers, orders, items, staff, log TO repl`)
	p.source.SQL(t, fmt.Sprintf("DROP PUBLICATION %s; CREATE PUBLICATION %[1]s FOR TABLE customers, orders, items, staff, log", p.slotName()))
	source.HBA(t, "host all repl 127.0.0.1/32 scram-sha-256")
	target.HBA(t, "host all owner 127.0.0.1/32 scram-sha-256")
	return p
}
