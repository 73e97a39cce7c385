package snapshot

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace/internal/rig"
)

// slowConn is a connection on which a write can take long, as on a busy machine.
type slowConn struct {
	net.Conn
	slow *atomic.Bool // the next one does
}

func (c slowConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.slow.Swap(false) { // longer than pgconn waits until it reads in the background
		<-time.After(100 * time.Millisecond)
	}
	return n, err
}

// counter takes rows.
type counter struct {
	bytes.Buffer
	rows int
}

func (c *counter) row() { c.rows++ }

// TestCopyBehindSlowWrite: a write that took long has left pgconn reading in the
// background, and what it reads is not missing from the COPY.
func TestCopyBehindSlowWrite(t *testing.T) {
	db := rig.Shared(t, rig.Newest).NewDB(t)
	config, err := pgx.ParseConfig(db.URL())
	if err != nil {
		t.Fatal(err)
	}
	var slow atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return slowConn{conn, &slow}, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(conn)
	defer r.close()
	for range 3 {
		slow.Store(true)
		if v, err := r.value(ctx, "SELECT 7"); err != nil || v != "7" {
			t.Fatal(v, err)
		}
		var c counter
		tag, err := r.copyTo(ctx, &c, "COPY (SELECT generate_series(1, 3)) TO STDOUT")
		if err != nil || tag.RowsAffected() != 3 || c.String() != "1\n2\n3\n" {
			t.Fatalf("%v, %q, %v", tag, c.String(), err)
		}
	}
}
