// Package web is the HTTP side of a running job: the dashboard, its status, its
// metrics, and waiting until the destination holds a position.
//
// It reads what others keep and changes nothing, but the set of tables where the
// operator has enabled that. The invariant it owns: an answer 200 of /wait means
// that the position is held, and nothing that is unknown is shown as 0.
package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relay"
)

// DefaultListen is where the server listens unless configured otherwise.
const DefaultListen = "127.0.0.1:8642"

// Options say what a Server shows.
type Options struct {
	Job      string
	Version  string
	Progress *relay.Progress
	// Status gives the status as it is now. It must not wait for anything.
	Status func() *Status
	// Numbers gives the counters for /metrics; nil for none.
	Numbers func() Numbers
	// WALSizes gives the source's WAL page and segment size, known from the
	// first session on.
	WALSizes func() (page, segment uint64)
	// HeldOn tells whether a position of an earlier timeline was held before
	// the stream left that timeline; nil: never.
	HeldOn func(ctx context.Context, timeline int32, at millrace.LSN) (bool, error)
	// Tables changes the job's set of tables as millrace table does, and gives
	// the names of those that were meant; nil: actions are not enabled.
	Tables func(ctx context.Context, action string, patterns []string) ([]string, error)
	// Token is demanded as a bearer token, or once of a browser, when it is not
	// empty. /healthz and /readyz, which probes ask, are open.
	Token string
	// Journal has the events that the page shows; nil for none.
	Journal *Journal
	Log     *slog.Logger
}

// Server is the HTTP server of one job.
type Server struct {
	opt     Options
	http    *http.Server
	metrics *metrics
	gate    *gate
	history history
	hub     *hub
	waiting atomic.Int64 // on /wait
	inlined atomic.Int64 // of them, those with a goroutine
	parked  lot
	acting  atomic.Bool     // the set of tables is being changed
	running context.Context // ends with Close
	stop    context.CancelFunc
}

// New makes a Server; Serve starts it.
func New(opt Options) *Server {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{opt: opt, gate: newGate(opt.Job, opt.Token), hub: newHub()}
	s.running, s.stop = context.WithCancel(context.Background())
	s.metrics = newMetrics(opt, s.current, s.waiting.Load)
	s.http = &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      maxWait + 30*time.Second, // an answer may be waited for that long
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(opt.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Handler gives the routes.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /status", s.guard(http.HandlerFunc(s.status)))
	mux.Handle("GET /wait", s.guard(http.HandlerFunc(s.wait)))
	mux.Handle("GET /metrics", s.guard(s.metrics.handler()))
	mux.Handle("GET /events", s.guard(http.HandlerFunc(s.events)))
	mux.Handle("GET /{$}", s.guard(http.HandlerFunc(s.index)))
	mux.HandleFunc("GET /assets/{name...}", s.asset)
	mux.HandleFunc("GET /help/errors/{name}", s.help)
	mux.HandleFunc("POST /login", s.login)
	mux.Handle("POST /tables", s.guard(http.HandlerFunc(s.tables)))
	return http.MaxBytesHandler(mux, 16<<10) // a token, or names of tables
}

// Listen opens the address. The default address gives way to a free port when
// it is taken; a configured one does not.
func Listen(address string, configured bool, log *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil && !configured && errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(address)
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			log.Info("the default address is taken", "address", address, "instead", l.Addr().String())
			return l, nil
		}
	}
	if err != nil {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "listen on " + address, Err: short(err),
			Hint: "set http.listen to a free address, such as 127.0.0.1:0 for any free port"}
	}
	log.Info("listening", "http", l.Addr().String())
	return l, nil
}

// short leaves out the address, which the operation names already.
func short(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Loopback tells whether an address to listen on is reached from this machine
// only.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Serve answers requests until Close.
func (s *Server) Serve(l net.Listener) error {
	done := make(chan struct{})
	var side sync.WaitGroup
	side.Go(func() { s.observe(done) })
	side.Go(func() { s.parked.sweep(done) })
	defer side.Wait()
	defer close(done)
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// Close answers the waiting requests, which must have been ended by
// Progress.End, and closes the server within a second.
func (s *Server) Close() error {
	s.stop()
	s.hub.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.parked.empty(ctx)
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}
