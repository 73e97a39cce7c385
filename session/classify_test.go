package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
)

func TestWrap(t *testing.T) {
	state := func(code string) error { return &pgconn.PgError{Code: code, Message: "m"} }
	for _, c := range []struct {
		err       error
		kind      millrace.Kind
		condition string
	}{
		// Rule: 40001 40P01 55P03 57014 57P0x 08 53.
		{state("40001"), millrace.KindRetry, ""},
		{state("40P01"), millrace.KindRetry, ""},
		{state("40003"), millrace.KindRetry, ""},
		{state("40002"), millrace.KindData, ""},
		{state("55P03"), millrace.KindRetry, ""},
		{state("57014"), millrace.KindRetry, ""},
		{state("57P01"), millrace.KindRetry, "destination_unreachable"},
		{state("57P02"), millrace.KindRetry, "destination_unreachable"},
		{state("57P03"), millrace.KindRetry, "destination_unreachable"},
		{state("57P05"), millrace.KindRetry, "destination_unreachable"},
		{state("25P03"), millrace.KindRetry, "destination_unreachable"},
		{state("25P04"), millrace.KindRetry, "destination_unreachable"},
		{state("08006"), millrace.KindRetry, "destination_unreachable"},
		{state("08P01"), millrace.KindRetry, "destination_unreachable"},
		{state("53100"), millrace.KindRetry, ""},
		{state("53200"), millrace.KindRetry, ""},
		{state("53300"), millrace.KindRetry, "destination_unreachable"},
		{state("53400"), millrace.KindData, ""},

		{state("23505"), millrace.KindData, ""},
		{state("22003"), millrace.KindData, ""},
		{state("42P01"), millrace.KindData, ""},
		{state("42501"), millrace.KindData, ""},
		{state("28P01"), millrace.KindData, ""}, // of a dblink, say: not our connection
		{state("25006"), millrace.KindRetry, "destination_unreachable"},
		{state("55000"), millrace.KindData, ""},
		{state("55006"), millrace.KindData, ""},
		{state("58P01"), millrace.KindData, ""},
		{state("XX000"), millrace.KindData, ""},
		{&pgconn.PgError{Code: "55006", Routine: "ReplicationSlotAcquire"}, millrace.KindRetry, "waiting_for_slot"},

		{io.ErrUnexpectedEOF, millrace.KindRetry, "destination_unreachable"},
		{fmt.Errorf("receive: %w", io.EOF), millrace.KindRetry, "destination_unreachable"},
		{net.ErrClosed, millrace.KindRetry, "destination_unreachable"},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, millrace.KindRetry, "destination_unreachable"},
		{pgconn.ErrConnClosed, millrace.KindRetry, "destination_unreachable"},
		{context.DeadlineExceeded, millrace.KindRetry, "destination_unreachable"},
		{context.Canceled, millrace.KindRetry, ""},
		{errors.New("can't scan"), millrace.KindData, ""},
	} {
		err := Wrap("apply", millrace.PeerDestination, c.err)
		var e *millrace.Error
		if !errors.As(err, &e) || e.Kind != c.kind || e.Condition != c.condition {
			t.Errorf("%v: got %+v, want kind %d condition %q", c.err, e, c.kind, c.condition)
		}
		if !errors.Is(err, c.err) || SQLState(err) != SQLState(c.err) {
			t.Errorf("%v is not in the chain of %v", c.err, err)
		}
		if Retryable(err) != Retryable(c.err) || Retryable(err) != (c.kind == millrace.KindRetry) {
			t.Errorf("%v: Retryable says %v before and %v after", c.err, Retryable(c.err), Retryable(err))
		}
	}
}

func TestWrapKeepsOurs(t *testing.T) {
	own := fmt.Errorf("again: %w", &millrace.Error{Kind: millrace.KindResync, Op: "x"})
	if got := Wrap("apply", millrace.PeerSource, own); got != own { //nolint:errorlint // the same value, not one that wraps it
		t.Error(got)
	}
	if Wrap("apply", millrace.PeerSource, nil) != nil || Retryable(nil) || SQLState(nil) != "" {
		t.Error("nil is an error")
	}
}

func TestValuesStayHidden(t *testing.T) {
	for _, c := range []struct{ code, message, want string }{
		{"22P02", `invalid input syntax for type integer: "4 digit "pin" 1234"`, `invalid input syntax for type integer: "…"`},
		{"22003", `value "99999999999" is out of range for type integer`, `value "…" is out of range for type integer`},
		{"22021", `invalid byte sequence for encoding "UTF8": 0xe9 0x20 0x31`, `invalid byte sequence for encoding "UTF8": 0x…`},
		{"22001", "value too long for type character varying(3)", "value too long for type character varying(3)"},
		{"23505", `duplicate key value violates unique constraint "t_pkey"`, `duplicate key value violates unique constraint "t_pkey"`},
	} {
		pg := &pgconn.PgError{Severity: "ERROR", Code: c.code, Message: c.message, Detail: "Key (a)=(1234) already exists."}
		got := Wrap("apply", "", fmt.Errorf("insert: %w", pg)).Error()
		if want := "apply: insert: " + c.want + " (SQLSTATE " + c.code + ")"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
