// Command bench measures Millrace beside its peers, on two PostgreSQL servers
// of its own that it starts on the loopback interface and removes again.
//
//	go run ./bench -mode quick              every backlog, small: three minutes
//	go run ./bench -mode full -write        what docs/benchmarks.md shows
//	go run ./bench -only small,latency      some of it
//	go run ./bench -only connector          the connector beside Debezium's embedded engine (Java, Maven)
//	go run ./bench -only readers            loads by 1, 2 and 4 readers, in chunks and under one snapshot: three minutes
//	go run ./bench -mode full -scale 0.7 -readers some -within 19m -accept
//	                                        the most important of it, and limits from it
//	go run ./bench -mode kafka -write       beside Debezium on Kafka Connect, into one broker
//
// The contenders of a set are interleaved (A B C A B C …), so that a machine
// that gets slower meanwhile hits all of them; only ratios within a set mean
// anything. Each run works on its own copy of the replication slot and its own
// clone of the target database. The clock stops when the row that was written
// last is visible on the target, seen by the same poller for all.
//
// Results are printed; -write also merges them into bench/results/MODE.json
// and, in full mode, renders that file into docs/benchmarks.md. The exit status
// is 1 when a ratio is worse than what bench/thresholds.json has for the mode by
// more than the margin stated there, or when Millrace takes more memory than it
// may. With -accept the ratios of this run become those of that file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := dispatch(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// dispatch runs the bench, or the child process that is one of its contenders.
func dispatch(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "decode" {
		return decodeMain(ctx, args[1:])
	}
	o, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.kafka {
		return runKafka(ctx, o)
	}
	return run(ctx, o)
}

// options are what the command line says.
type options struct {
	full       bool
	kafka      bool
	only       []string
	contenders []string
	rounds     int
	scale      float64
	verify     string
	write      bool
	accept     bool
	readers    bool // readers with every set
	within     time.Duration
	tableBytes int64
	millrace   string
	root       string
}

func (o options) mode() string {
	switch {
	case o.kafka:
		return "kafka"
	case o.full:
		return "full"
	}
	return "quick"
}

func parseOptions(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	mode := fs.String("mode", "quick", "quick, full or kafka")
	only := fs.String("only", "", "comma-separated sets: "+strings.Join(setNames(), ", ")+" (default: all of the mode)")
	contenders := fs.String("contenders", "", "comma-separated contenders (default: all)")
	readers := fs.String("readers", "", "run pg_recvlogical and decode only with all sets or with some (default: some in quick mode, all in full mode)")
	fs.DurationVar(&o.within, "within", 0, "begin no set that would probably end later than that")
	fs.IntVar(&o.rounds, "n", 0, "runs of each contender (default: 2 quick, 5 full, 3 kafka)")
	fs.Float64Var(&o.scale, "scale", 1, "multiply the size of every workload")
	fs.StringVar(&o.verify, "verify", "first", "compare source and target after: first, all or none of the runs")
	fs.BoolVar(&o.write, "write", false, "keep the results in bench/results and, in full mode, docs/benchmarks.md")
	fs.BoolVar(&o.accept, "accept", false, "-write, and make the ratios the limits")
	fs.Int64Var(&o.tableBytes, "table-bytes", 10<<30, "size of the table that the memory set loads")
	fs.StringVar(&o.millrace, "millrace", "", "millrace binary (default: built from this module)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.full, o.kafka = *mode == "full", *mode == "kafka"
	o.only, o.contenders = splitList(*only), splitList(*contenders)
	if o.rounds == 0 {
		o.rounds = 2
		switch {
		case o.full:
			o.rounds = 5
		case o.kafka:
			o.rounds = 3
		}
	}
	o.write = o.write || o.accept
	o.readers = *readers == "all" || *readers == "" && o.full
	if *readers != "" && *readers != "all" && *readers != "some" {
		return o, fmt.Errorf("-readers %q: want all or some", *readers)
	}
	root, err := moduleRoot()
	if err != nil {
		return o, err
	}
	o.root = root
	return o, o.validate(*mode, fs.Args())
}

func (o options) validate(mode string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if mode != o.mode() {
		return fmt.Errorf("-mode %q: want quick, full or kafka", mode)
	}
	if !slices.Contains([]string{"first", "all", "none"}, o.verify) {
		return fmt.Errorf("-verify %q: want first, all or none", o.verify)
	}
	for _, name := range o.only {
		if !slices.Contains(setNames(), name) {
			return fmt.Errorf("-only %q: want some of %s", name, strings.Join(setNames(), ", "))
		}
	}
	for _, name := range o.contenders {
		if !slices.Contains(contenderNames, name) {
			return fmt.Errorf("-contenders %q: want some of %s", name, strings.Join(contenderNames, ", "))
		}
	}
	return nil
}

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// wanted tells whether the command line selects a set; what is not in the mode
// by default has to be named.
func (o options) wanted(name string, byDefault bool) bool {
	if len(o.only) == 0 {
		return byDefault
	}
	return slices.Contains(o.only, name)
}

func (o options) has(contender string) bool {
	return len(o.contenders) == 0 || slices.Contains(o.contenders, contender)
}
