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

With --kafka it goes there through Kafka: one job carries the shop into topics, another one from
there into the target.`,
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
	c.Flags().BoolVar(&throughKafka, "kafka", false, "carry the shop through Kafka")
	c.Flags().DurationVar(&duration, "for", 0, "stop after this `TIME` (default: at Ctrl-C)")
	return c
}

// demo is one millrace demo.
type demo struct {
	*app
	rate         int
	open         bool
	throughKafka bool

	source, target *pgserver.Server
	broker         *kafkaserver.Cluster // nil without Kafka
}

var errDemoDiffers = errors.New("source and target differ")

func (d *demo) run(ctx context.Context) error {
	majors := demoServers()
	if len(majors) == 0 {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "demo",
			Err:  fmt.Errorf("no PostgreSQL binaries in %s", pgserver.Dir()),
			Hint: "run it with `make demo`, which fetches them"}
	}
	between := ""
	if d.throughKafka {
		between = ", and Kafka " + kafkaserver.Version + " between them"
	}
	fmt.Fprintf(d.stderr, "starting PostgreSQL %d and %d%s …\n", majors[0], majors[1], between)
	var err error
	if d.source, err = pgserver.Start(ctx, pgserver.Options{Major: majors[0], Name: "-demo-source",
		Settings: []string{"max_slot_wal_keep_size=1GB"}}); err != nil {
		return err
	}
	defer d.source.Close() //nolint:errcheck // the sweep of the next start removes what stays
	if d.target, err = pgserver.Start(ctx, pgserver.Options{Major: majors[1], Name: "-demo-target"}); err != nil {
		return err
	}
	defer d.target.Close() //nolint:errcheck // as above
	if d.throughKafka {
		if err := d.startKafka(ctx); err != nil {
			return err
		}
		defer d.broker.Close() //nolint:errcheck // as above
	}
	shop, err := d.openShop(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.stderr, "source: psql '%s'\ntarget: psql '%s'\n", d.source.URL("shop"), d.target.URL("shop"))
	return d.replicate(ctx, shop)
}

func (d *demo) startKafka(ctx context.Context) (err error) {
	if !kafkaserver.Have() {
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "demo --kafka",
			Err:  fmt.Errorf("no Kafka in %s, or no java", kafkaserver.LibDir()),
			Hint: "run it with `make demo KAFKA=1`, which fetches it; a Java runtime (17 or newer) and Maven are needed"}
	}
	d.broker, err = kafkaserver.Start(ctx, kafkaserver.Options{Name: "-demo"})
	return err
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

// replicate runs jobs as millrace run would, with the shop open, until ctx ends or
// one of them does.
func (d *demo) replicate(ctx context.Context, shop *shop) error {
	jobs, err := d.openJobs()
	if err != nil {
		return err
	}
	// The shop closes first, so that the jobs can deliver what it did.
	jobCtx, stopJobs := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopJobs(nil)
	ended := make(chan error, len(jobs))
	for _, j := range jobs {
		go func() { ended <- j.run(jobCtx) }()
	}
	left := len(jobs)
	finish := func(err error) error {
		stopJobs(errSignal)
		for ; left > 0; left-- {
			err = errors.Join(err, <-ended)
		}
		return err
	}
	shopCtx, closeShop := context.WithCancel(ctx)
	defer closeShop()
	shopClosed := make(chan error, 1)
	go func() { shopClosed <- shop.work(shopCtx, d.rate) }()
	var side sync.WaitGroup
	side.Go(func() { d.report(shopCtx, jobs[len(jobs)-1]) })
	side.Go(func() { d.showAddresses(shopCtx, jobs) })
	defer func() { closeShop(); side.Wait() }()

	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.show(jobs, shop.orders.Load())
			continue
		case err = <-ended:
			left--
			return finish(errors.Join(err, errors.New("the job ended")))
		case err = <-shopClosed:
		}
		break
	}
	fmt.Fprintln(d.stderr)
	// The last job streams only once the copy is whole; what the others still say of
	// themselves does not matter for that.
	if last := jobs[len(jobs)-1]; err == nil && last.status().State == string(record.Streaming) {
		err = d.settle(shop)
	}
	return finish(err)
}

// openJobs makes the jobs that the flags of millrace run would: one, or one into
// Kafka and one from there.
func (d *demo) openJobs() ([]*runner, error) {
	first := runFlags{bootstrap: true, bootstrapFlags: bootstrapFlags{createPublication: true, pgDump: d.source.Bin("pg_dump")}}
	if d.broker == nil {
		job, err := d.openJob("demo", d.source.URL("shop"), d.target.URL("shop"), first)
		return []*runner{job}, err
	}
	prefix := "kafka://" + strings.Join(d.broker.Brokers(), ",") + "/shop"
	into, err := d.openJob("demo", d.source.URL("shop"), prefix, first)
	if err != nil {
		return nil, err
	}
	from, err := d.openJob("demo_copy", prefix, d.target.URL("shop"), runFlags{bootstrap: true})
	return []*runner{into, from}, err
}

func (d *demo) openJob(name, from, to string, f runFlags) (*runner, error) {
	format := d.logFormat
	if format == "" && d.terminal {
		format = "text"
	}
	a := &app{stdout: d.stdout, stderr: d.stderr, quiet: !d.verbose, verbose: d.verbose, logFormat: format,
		job: name, from: from, to: to, tables: []string{"public.*"}, isolated: true}
	s, err := a.load(f.override)
	if err != nil {
		return nil, err
	}
	return newRunner(a, s, f), nil
}

// showAddresses prints where the dashboards are, and opens the last one, which is
// that of the copy, if that is wanted.
func (d *demo) showAddresses(ctx context.Context, jobs []*runner) {
	url := ""
	for i, j := range jobs {
		select {
		case <-j.listening:
		case <-ctx.Done():
			return
		}
		rt, _, _, _ := j.keeper.current()
		url = "http://" + rt.HTTP + "/"
		fmt.Fprintf(d.stderr, "dashboard%s: %s\n", legs(jobs)[i], url)
	}
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

// legs are what tells the jobs apart in what is printed.
func legs(jobs []*runner) []string {
	if len(jobs) == 1 {
		return []string{""}
	}
	return []string{" into Kafka", " from Kafka"}
}

// show prints one line: a terminal's last one is replaced.
func (d *demo) show(jobs []*runner, orders int64) {
	line := ""
	for i, j := range jobs {
		st := j.status()
		line += strings.TrimPrefix(strings.TrimSpace(legs(jobs)[i])+": ", ": ") + st.State
		if st.State != string(record.Streaming) && st.Reason != "" {
			line += ": " + st.Reason + " · "
			continue
		}
		line += " · lag " + lagText(st.Lag) + " · "
	}
	line += count(orders) + " orders"
	if d.terminal {
		fmt.Fprint(d.stderr, "\r\x1b[K"+line)
		return
	}
	fmt.Fprintln(d.stderr, line)
}

// settle waits until the target holds all of the shop, and compares.
func (d *demo) settle(shop *shop) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	want, err := shop.totals(ctx, d.source.URL("shop"))
	if err != nil {
		return err
	}
	for {
		got, err := shop.totals(ctx, d.target.URL("shop"))
		if err == nil && got == want {
			fmt.Fprintf(d.stderr, "source and target are equal: %s\n", got)
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s and %s", errDemoDiffers, want, got)
		}
	}
}
