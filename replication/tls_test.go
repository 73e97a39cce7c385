//go:build unix

package replication_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/replication"
)

// TestStreamOverTLS reads a backlog through TLS, where a read gives one record
// and says nothing about what else is there: pacing must not slow that down.
func TestStreamOverTLS(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("no openssl to make a certificate with")
	}
	const n = 50000
	pg := rig.Start(t, 18)
	db := streamed(t, pg, n)
	key, cert := filepath.Join(pg.DataDir(), "server.key"), filepath.Join(pg.DataDir(), "server.crt")
	out, err := exec.Command("openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-newkey", "rsa:2048",
		"-subj", "/CN=localhost", "-out", cert, "-keyout", key).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(pg.DataDir())
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	for _, file := range []string{key, cert} {
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	pg.Configure(t, "ssl=on")
	pg.Reload(t)

	var stream *replication.Stream
	rig.Eventually(t, 10*time.Second, func() bool { // the reload takes a moment
		cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s sslmode=require", pg.Port(), db.Name))
		if err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeParams["replication"] = "database"
		conn, err := pgconn.ConnectConfig(t.Context(), cfg)
		if err != nil {
			return false
		}
		stream, err = replication.New(conn).Start(t.Context(), options(db.Name))
		if err != nil {
			t.Fatal(err)
		}
		return true
	}, "a connection with TLS")
	started := time.Now()
	end := commits(t, stream, n)
	took := time.Since(started)
	t.Logf("%d transactions in %v", n, took)
	if took > 30*time.Second {
		t.Error("too slow")
	}
	stream.Ack(end)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := stream.Close(ctx); err != nil {
		t.Error(err)
	}
	if got := confirmed(t, db); got != end.String() {
		t.Errorf("the slot is at %s, acknowledged was %v", got, end)
	}
}
