package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig/kafkaserver"
	"github.com/millrace/millrace/internal/rig/pgserver"
	"github.com/millrace/millrace/record"
	"github.com/millrace/millrace/web"
)

func (a *app) demoCommand() *cobra.Command {
	var rate int
	var duration time.Duration
	var open, throughKafka bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Two servers, a live shop, and replication between them",
		Long: `Demo starts two PostgreSQL servers, fills one with a small shop and keeps it busy, copies it
to the other and follows it, and shows how far behind that is, here and on the dashboard.
Now and then there is a rush, an import, and a report that locks a table of the target.
Ctrl-C stops and removes everything. "make demo" fetches the servers first.

With --kafka the shop goes into Kafka, and a consumer reads whole transactions back from it.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := withSignals(c.Context())
			defer stop()
			d := demo{app: a, rate: rate, open: open, throughKafka: throughKafka}
			if duration > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, duration)
				defer cancel()
			}
			err := d.run(ctx)
			if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return nil // stopped before all was up
			}
			return err
		},
	}
	c.Flags().IntVar(&rate, "rate", 50, "orders per second")
	c.Flags().BoolVar(&open, "open", false, "open the dashboard in a browser")
	c.Flags().BoolVar(&throughKafka, "kafka", false, "carry the shop into Kafka, and read it back")
	c.Flags().DurationVar(&duration, "for", 0, "stop after this `TIME` (default: at Ctrl-C)")
	return c
}

// demo is one millrace demo.
type demo struct {
	*app
	rate         int
	open         bool
	throughKafka bool

	source *pgserver.Server
	target *pgserver.Server     // nil with Kafka
	broker *kafkaserver.Cluster // nil without
	reader *consumer            // of it
}

var errDemoDiffers = errors.New("source and target differ")

func (d *demo) run(ctx context.Context) error {
	majors := demoServers()
	if len(majors) == 0 {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "demo",
			Err:  fmt.Errorf("no PostgreSQL binaries in %s", pgserver.Dir()),
			Hint: "run it with `make demo`, which fetches them"}
	}
	second := fmt.Sprint(majors[1])
	if d.throughKafka {
		second = "Kafka " + kafkaserver.Version
	}
	fmt.Fprintf(d.stderr, "starting PostgreSQL %d and %s …\n", majors[0], second)
	var err error
	if d.source, err = pgserver.Start(ctx, pgserver.Options{Major: majors[0], Name: "-demo-source",
		Settings: []string{"max_slot_wal_keep_size=1GB"}}); err != nil {
		return err
	}
	defer d.source.Close() //nolint:errcheck // the sweep of the next start removes what stays
	closeOther, err := d.startOther(ctx, majors[1])
	if err != nil {
		return err
	}
	defer closeOther()
	shop, err := d.openShop(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stderr, "source: psql '%s'\n", d.source.URL("shop"))
	if d.target != nil {
		fmt.Fprintf(d.stderr, "target: psql '%s'\n", d.target.URL("shop"))
	} else {
		fmt.Fprintf(d.stderr, "Kafka: %s\n", d.broker.Brokers()[0])
	}
	return d.replicate(ctx, shop)
}

// startOther starts what the shop is carried to.
func (d *demo) startOther(ctx context.Context, major int) (closeIt func(), err error) {
	if !d.throughKafka {
		if d.target, err = pgserver.Start(ctx, pgserver.Options{Major: major, Name: "-demo-target"}); err != nil {
			return nil, err
		}
		return func() { _ = d.target.Close() }, nil // the sweep of the next start removes what stays
	}
	if !kafkaserver.Have() {
		return nil, &millrace.Error{Kind: millrace.KindPreflight, Op: "demo --kafka",
			Err:  fmt.Errorf("no Kafka in %s, or no java", kafkaserver.LibDir()),
			Hint: "run it with `make demo KAFKA=1`, which fetches it; a Java runtime (17 or newer) and Maven are needed"}
	}
	if d.broker, err = kafkaserver.Start(ctx, kafkaserver.Options{Name: "-demo"}); err != nil {
		return nil, err
	}
	d.reader = &consumer{rows: make(map[string]int64)}
	return func() { _ = d.broker.Close() }, nil // as above
}

// destination is the address of what the shop is carried to.
func (d *demo) destination() string {
	if d.target != nil {
		return d.target.URL("shop")
	}
	return "kafka://" + strings.Join(d.broker.Brokers(), ",") + "/shop"
}

// demoServers chooses the oldest and the newest version at hand.
func demoServers() []int {
	var have []int
	for _, major := range []int{17, 16, 15, 18} {
		if pgserver.Have(major) {
			have = append(have, major)
		}
	}
	if len(have) == 0 {
		return nil
	}
	return []int{have[0], have[len(have)-1]}
}

func (d *demo) openShop(ctx context.Context) (*shop, error) {
	for _, s := range []*pgserver.Server{d.source, d.target} {
		if s == nil {
			continue
		}
		if err := execute(ctx, s.URL("postgres"), "CREATE DATABASE shop"); err != nil {
			return nil, err
		}
	}
	if err := execute(ctx, d.source.URL("shop"), shopSchema); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, d.source.URL("shop"))
	if err != nil {
		return nil, err
	}
	return newShop(conn), nil
}

func execute(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// replicate runs a job as millrace run would, with the shop open, until ctx ends
// or the job does.
func (d *demo) replicate(ctx context.Context, shop *shop) error {
	job, err := d.openJob()
	if err != nil {
		return err
	}
	// The shop closes first, so that the job can deliver what it did.
	jobCtx, stopJob := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopJob(nil)
	jobEnded := make(chan error, 1)
	go func() { jobEnded <- job.run(jobCtx) }()
	shopCtx, closeShop := context.WithCancel(ctx)
	defer closeShop()
	shopClosed := make(chan error, 1)
	go func() { shopClosed <- shop.work(shopCtx, d.rate) }()
	var side sync.WaitGroup
	readerEnded := make(chan error, 1)
	if d.target != nil {
		side.Go(func() { d.report(shopCtx, job) })
	} else {
		side.Go(func() { readerEnded <- d.reader.follow(jobCtx, job) })
	}
	side.Go(func() { d.showAddress(shopCtx, job) })
	defer func() { closeShop(); stopJob(errSignal); side.Wait() }()

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.show(job.status(), shop.orders.Load())
			continue
		case err = <-jobEnded:
			return errors.Join(err, errors.New("the job ended"))
		case err = <-readerEnded:
			closeShop()
			err = errors.Join(err, <-shopClosed)
		case err = <-shopClosed:
		}
		break
	}
	fmt.Fprintln(d.stderr)
	if err == nil && job.status().State == string(record.Streaming) {
		err = d.settle(shop)
	}
	stopJob(errSignal)
	return errors.Join(err, <-jobEnded)
}

// openJob makes the job that the flags of millrace run would.
func (d *demo) openJob() (*runner, error) {
	format := d.logFormat
	if format == "" && d.terminal {
		format = "text"
	}
	a := &app{stdout: d.stdout, stderr: d.stderr, quiet: !d.verbose, verbose: d.verbose, logFormat: format,
		job: "demo", from: d.source.URL("shop"), to: d.destination(), tables: []string{"public.*"}, isolated: true}
	f := runFlags{bootstrap: true, bootstrapFlags: bootstrapFlags{createPublication: true, pgDump: d.source.Bin("pg_dump")}}
	s, err := a.load(f.override)
	if err != nil {
		return nil, err
	}
	return newRunner(a, s, f), nil
}

// showAddress prints where the dashboard is, and opens it if that is wanted.
func (d *demo) showAddress(ctx context.Context, job *runner) {
	select {
	case <-job.listening:
	case <-ctx.Done():
		return
	}
	rt, _, _, _ := job.keeper.current()
	url := "http://" + rt.HTTP + "/"
	fmt.Fprintf(d.stderr, "dashboard: %s\n", url)
	if !d.open || runtime.GOOS != "darwin" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	for _, opener := range []string{"xdg-open", "open"} {
		if path, err := exec.LookPath(opener); err == nil {
			_ = exec.CommandContext(ctx, path, url).Run() // the address stands above
			return
		}
	}
}

// show prints one line: a terminal's last one is replaced.
func (d *demo) show(st *web.Status, orders int64) {
	line := fmt.Sprintf("%s · %s orders · lag %s", st.State, count(orders), lagText(st.Lag))
	if d.reader != nil {
		line += fmt.Sprintf(" · %s transactions read back from Kafka", count(d.reader.transactions.Load()))
	}
	if st.State != string(record.Streaming) && st.Reason != "" {
		line = st.State + ": " + st.Reason
	}
	if d.terminal {
		fmt.Fprint(d.stderr, "\r\x1b[K"+line)
		return
	}
	fmt.Fprintln(d.stderr, line)
}

// settle waits until all of the shop has come through, and compares.
func (d *demo) settle(shop *shop) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	sum, other := shop.totals, "target"
	if d.reader != nil {
		sum, other = shop.tally, "what was read back"
	}
	want, err := sum(ctx, d.source.URL("shop"))
	if err != nil {
		return err
	}
	for {
		var got string
		if d.reader != nil {
			got = d.reader.tally()
		} else {
			got, err = sum(ctx, d.target.URL("shop"))
		}
		if err == nil && got == want {
			fmt.Fprintf(d.stderr, "source and %s are equal: %s\n", other, got)
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s and %s", errDemoDiffers, want, got)
		}
	}
}
