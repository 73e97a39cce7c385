package session

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace/millrace"
)

// The conditions that a retried error can cause.
const (
	sourceUnreachable      = "source_unreachable"
	destinationUnreachable = "destination_unreachable"
	waitingForSlot         = "waiting_for_slot"
)

// Wrap makes an error of a peer one of ours: sorted by what it asks for, on
// one line, and without the values of rows. An error that has a
// *millrace.Error in its chain is returned as it is.
func Wrap(op string, peer millrace.Peer, err error) error {
	if err == nil {
		return nil
	}
	var known *millrace.Error
	if errors.As(err, &known) {
		return err
	}
	v := judge(err)
	e := &millrace.Error{
		Kind: v.kind,
		Op:   op,
		Peer: peer,
		Err:  &cause{text: errorText(err), err: err},
		Hint: v.hint,
	}
	switch {
	case v.slotBusy:
		e.Condition = waitingForSlot
	case SQLState(err) == readOnly && peer == millrace.PeerSource:
		e.Kind, e.Hint = millrace.KindPreflight, readOnlySourceHint // what is made there, such as a slot, is made once
	case v.unreachable && peer == millrace.PeerSource:
		e.Condition = sourceUnreachable
	case v.unreachable && peer == millrace.PeerDestination:
		e.Condition = destinationUnreachable
	}
	return e
}

// Retryable tells whether the same work may succeed later without any change:
// a lost connection, a lock, a deadlock, a server that starts or is full.
func Retryable(err error) bool {
	if err == nil {
		return false
	}
	var known *millrace.Error
	if errors.As(err, &known) {
		return known.Kind == millrace.KindRetry
	}
	return judge(err).kind == millrace.KindRetry
}

// SQLState gives the SQLSTATE of a server's error in err's chain, or "".
func SQLState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// wrapConnect is Wrap for errors of a connection attempt; the operation names
// the server.
func (e *Endpoint) wrapConnect(cfg *pgx.ConnConfig, err error) error {
	op := "connect to " + redacted(cfg)
	if e.Peer != "" {
		op = "connect to " + string(e.Peer) + " " + redacted(cfg)
	}
	var known *millrace.Error
	if errors.As(err, &known) { // from verify
		known.Op, known.Peer = op, e.Peer
		return known
	}
	return Wrap(op, e.Peer, err)
}

// verdict is what an error asks for.
type verdict struct {
	kind        millrace.Kind
	hint        string
	unreachable bool // the peer, as opposed to a lock or a full disk
	slotBusy    bool
}

func judge(err error) verdict {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return judgeAttempts(connect)
	}
	return judgeOne(err, false)
}

// judgeAttempts judges a connection that failed at every host, or first with
// TLS and then without. The last answer of a server decides: under
// sslmode=prefer a server without TLS refuses the first attempt in any case.
// Without any answer, what can pass decides before what cannot.
func judgeAttempts(connect *pgconn.ConnectError) verdict {
	attempts := []error{connect}
	if joined, ok := errors.Unwrap(connect).(interface{ Unwrap() []error }); ok {
		attempts = joined.Unwrap()
	}
	var v verdict
	for _, attempt := range slices.Backward(attempts) {
		if SQLState(attempt) != "" {
			return judgeOne(attempt, true)
		}
		if v.kind != millrace.KindRetry {
			v = judgeOne(attempt, true)
		}
	}
	return v
}

func judgeOne(err error, connecting bool) verdict {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return judgeState(pg, connecting)
	case isTLSFailure(err):
		return verdict{
			kind: millrace.KindPreflight,
			hint: "check sslmode and sslrootcert of the connection string against the server and its certificate",
		}
	case isOtherRole(err):
		return verdict{kind: millrace.KindRetry, unreachable: true, hint: otherRoleHint}
	case isNetwork(err) && connecting:
		return verdict{kind: millrace.KindRetry, unreachable: true, hint: unreachableHint}
	case isNetwork(err):
		return verdict{kind: millrace.KindRetry, unreachable: true}
	case errors.Is(err, context.Canceled):
		return verdict{kind: millrace.KindRetry}
	}
	return fatal(connecting)
}

// judgeState sorts by SQLSTATE (PostgreSQL documentation, appendix "PostgreSQL
// Error Codes").
func judgeState(pg *pgconn.PgError, connecting bool) verdict {
	if pg.Code == "08P01" && strings.Contains(pg.Message, "startup parameter") {
		return verdict{kind: millrace.KindPreflight, hint: poolerHint}
	}
	if connecting {
		if hint, ok := refusals[pg.Code]; ok {
			return verdict{kind: millrace.KindPreflight, hint: hint}
		}
	}
	// The routine, since messages are translated. Only dropping, altering and
	// acquiring a slot end there.
	if pg.Code == "55006" && pg.Routine == "ReplicationSlotAcquire" {
		return verdict{kind: millrace.KindRetry, slotBusy: true, hint: slotBusyHint}
	}
	switch {
	case slices.Contains([]string{"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04", "53300"}, pg.Code),
		strings.HasPrefix(pg.Code, "08"):
		return verdict{kind: millrace.KindRetry, unreachable: true}
	case pg.Code == "53400":
		// A configured limit, such as max_replication_slots or temp_file_limit:
		// waiting does not raise it.
		return fatal(connecting)
	case pg.Code == "40001" && strings.Contains(pg.Routine, "RecoveryConflict"):
		return verdict{kind: millrace.KindRetry, hint: replayHint}
	case slices.Contains([]string{"40000", "40001", "40003", "40P01", "55P03", "57014"}, pg.Code),
		strings.HasPrefix(pg.Code, "53"):
		return verdict{kind: millrace.KindRetry}
	case pg.Code == readOnly:
		// A server that was the primary and is a standby now: the new primary
		// takes its place, at the same address or another one of the string.
		return verdict{kind: millrace.KindRetry, unreachable: true, hint: readOnlyHint}
	}
	return fatal(connecting)
}

// readOnly is the SQLSTATE of a write that a standby refuses.
const readOnly = "25006"

// The hints for what passes by itself, for those who wait for it.
const (
	unreachableHint = "start the server, open the way to it, or correct host and port in the connection string"
	otherRoleHint   = "no host of the connection string is what target_session_attrs asks for: finish the failover, or name all hosts"
	readOnlyHint    = "this server is read only, as a standby is: finish the failover; target_session_attrs=read-write in the " +
		"connection string finds the primary among several hosts"
	readOnlySourceHint = "this server is read only, as a standby is: name its primary; target_session_attrs=read-write in the " +
		"connection string finds it among several hosts"
	replayHint   = "the standby's replay was held up by this session: raise max_standby_streaming_delay there, for the time of a first load to -1"
	slotBusyHint = "another session reads from the slot: SELECT * FROM pg_stat_replication on the source shows it; " +
		"that of a client which is gone ends after wal_sender_timeout"
)

// fatal is the verdict on what no repetition cures.
func fatal(connecting bool) verdict {
	if connecting {
		return verdict{kind: millrace.KindPreflight, hint: "check the connection string, and the server's log for more"}
	}
	return verdict{kind: millrace.KindData}
}

// refusals are the hints for what a server says to a connection that it will
// not take, however often it is tried.
var refusals = map[string]string{
	"28P01": "check user and password of the connection string, or ~/.pgpass",
	"28000": "check the user of the connection string and the server's pg_hba.conf",
	"3D000": "check the database name of the connection string",
	"42501": "the role needs more rights: GRANT CONNECT on the database, and for replication ALTER ROLE … REPLICATION",
	"42704": "remove the setting that the server does not know from the connection string or PGOPTIONS",
}

// isNetwork tells whether a connection was lost or could not be used.
func isNetwork(err error) bool {
	var op net.Error
	return errors.As(err, &op) ||
		errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, pgconn.ErrConnClosed) ||
		errors.Is(err, context.DeadlineExceeded) ||
		pgconn.Timeout(err)
}

// isOtherRole tells whether target_session_attrs turned the server down, as it
// does to all of them during a failover.
func isOtherRole(err error) bool {
	var preferred *pgconn.NotPreferredError
	return errors.As(err, &preferred) ||
		errors.Is(err, pgconn.ErrReadOnlyConnection) ||
		errors.Is(err, pgconn.ErrReadWriteConnection) ||
		errors.Is(err, pgconn.ErrPrimaryConnection) ||
		errors.Is(err, pgconn.ErrStandbyConnection)
}

// isTLSFailure tells whether the two ends could not agree on TLS, or the
// server's certificate is not good enough.
func isTLSFailure(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
		roots        x509.SystemRootsError
		record       tls.RecordHeaderError
		remote       *net.OpError // an alert from the server
	)
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname) ||
		errors.As(err, &invalid) || errors.As(err, &roots) || errors.As(err, &record) ||
		errors.As(err, &remote) && remote.Op == "remote error" ||
		strings.Contains(err.Error(), refusedTLS)
}

// cause is an error with a text of its own; the original stays in the chain.
type cause struct {
	text string
	err  error
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.err }

// errorText puts an error on one line, without the values of rows.
func errorText(err error) string {
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return connectText(connect)
	}
	text := err.Error()
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// What wraps the server's error stays: it says what was going on.
		text = strings.Replace(text, pg.Error(), serverText(pg), 1)
	}
	return strings.Join(strings.Fields(text), " ")
}

func serverText(pg *pgconn.PgError) string {
	return withoutValues(pg) + " (SQLSTATE " + pg.Code + ")"
}

// refusedTLS is what pgx says, without a type of its own, when a server does
// not speak TLS.
const refusedTLS = "server refused TLS connection"

// connectText joins what the attempts at all hosts said, each once. A line
// begins with the host's address, which is left out if there is only one: the
// operation names it.
func connectText(err *pgconn.ConnectError) string {
	var addresses, lines []string
	for line := range strings.Lines(errors.Unwrap(err).Error()) {
		line = strings.TrimSpace(strings.ReplaceAll(line, "server error: FATAL: ", ""))
		if line == "" || slices.Contains(lines, line) {
			continue
		}
		lines = append(lines, line)
		if address, _, ok := strings.Cut(line, "): "); ok && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	if len(lines) > 1 && len(addresses) == 1 {
		// sslmode=prefer: the attempt without TLS is the one that matters.
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, refusedTLS) })
	}
	text := strings.Join(lines, "; ")
	if len(addresses) == 1 {
		text = strings.ReplaceAll(text, addresses[0]+"): ", "")
	}
	return text
}
