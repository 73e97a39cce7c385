package catalog

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/session"
)

func TestMain(m *testing.M) {
	code := rig.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// open connects as Millrace does.
func open(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := session.Static(millrace.PeerSource, url, "test").Connect(t.Context(), session.Check)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// wait is the patience of the tests with servers.
const wait = 20 * time.Second

func name(schema, table string) millrace.TableName {
	return millrace.TableName{Schema: schema, Name: table}
}

// describe gives one table.
func describe(t *testing.T, q Querier, schema, table string) *Table {
	t.Helper()
	tables, err := DescribeByName(t.Context(), q, []millrace.TableName{name(schema, table)})
	if err != nil {
		t.Fatal(err)
	}
	found := tables[name(schema, table)]
	if found == nil {
		t.Fatalf("no table %s.%s", schema, table)
	}
	sized, err := Describe(t.Context(), q, []uint32{found.OID})
	if err != nil {
		t.Fatal(err)
	}
	found.Bytes = sized[found.OID].Bytes
	if diff := cmp.Diff(sized[found.OID], found); diff != "" {
		t.Fatalf("by OID and by name:\n%s", diff)
	}
	return found
}
