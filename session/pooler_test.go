package session

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/millrace/millrace"
)

// fakePooler speaks the server's side of the protocol as far as a session is
// verified.
type fakePooler struct {
	refuse string            // the startup parameter that it does not take
	forget map[string]string // settings that it does not pass on, with what the server has instead
	pids   []string          // the backend of each statement
}

func (p *fakePooler) serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			err = p.talk(conn)
		}
		done <- err
	}()
	t.Cleanup(func() {
		l.Close()
		if err := <-done; err != nil {
			t.Errorf("fake pooler: %v", err)
		}
	})
	return l.Addr().String()
}

func (p *fakePooler) talk(conn net.Conn) error {
	defer conn.Close()
	b := pgproto3.NewBackend(conn, conn)
	message, err := b.ReceiveStartupMessage()
	if err != nil {
		return err
	}
	startup, ok := message.(*pgproto3.StartupMessage)
	if !ok {
		return fmt.Errorf("startup with %T", message)
	}
	if _, ok := startup.Parameters[p.refuse]; ok {
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + p.refuse})
		return b.Flush()
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := b.Flush(); err != nil {
		return err
	}
	for n := 0; ; n++ {
		message, err := b.Receive()
		if err != nil {
			return nil // the client has gone
		}
		query, ok := message.(*pgproto3.Query)
		if !ok {
			return nil // Terminate
		}
		values := [][]byte{[]byte(p.pids[n]), nil}
		if strings.Contains(query.String, "current_setting('search_path')") {
			for _, name := range pinned {
				value := startup.Parameters[name]
				if other, ok := p.forget[name]; ok {
					value = other
				}
				values = append(values, []byte(value))
			}
		}
		b.Send(&pgproto3.RowDescription{Fields: make([]pgproto3.FieldDescription, len(values))})
		b.Send(&pgproto3.DataRow{Values: values})
		b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := b.Flush(); err != nil {
			return err
		}
	}
}

func TestPoolersAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		pooler fakePooler
		want   string // "": taken
	}{
		"a server":         {fakePooler{pids: []string{"7", "7"}}, ""},
		"startup refused":  {fakePooler{refuse: "xmloption"}, "unsupported startup parameter"},
		"setting dropped":  {fakePooler{pids: []string{"7", "7"}, forget: map[string]string{"timezone": "CET"}}, `timezone is "CET"`},
		"other backend":    {fakePooler{pids: []string{"7", "8"}}, "different backends (7 and 8)"},
		"timeout survives": {fakePooler{pids: []string{"7", "7"}, forget: map[string]string{"statement_timeout": "30s"}}, "statement_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := c.pooler.serve(t)
			conn, err := Static(millrace.PeerSource, "postgres://a@"+addr+"/b?sslmode=disable", "shop").Connect(t.Context(), Apply)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				conn.Close(t.Context())
				return
			}
			checkError(t, err, millrace.KindPreflight, c.want, "")
			if !strings.Contains(millrace.HintOf(err), "pooler") {
				t.Error(millrace.HintOf(err))
			}
		})
	}
}
