package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// bench is one run of the program.
type bench struct {
	options
	source, target *server
	dir            string
	report         *report
	done           []set // the sets of this run
}

// setNames are the words of -only.
func setNames() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	for _, w := range kafkaSets {
		names = append(names, w.name)
	}
	return append(names, "latency", "load", "readers", "wait", "watch", "memory", "connector")
}

func run(ctx context.Context, o options) error {
	b := &bench{options: o}
	return b.between(ctx, func() error { return errors.Join(b.measure(ctx), b.judge()) })
}

// between does the work with a directory, a binary, the report so far and two
// servers, all of which but the report is gone behind it.
func (b *bench) between(ctx context.Context, work func() error) (err error) {
	if b.dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if err := b.build(ctx); err != nil {
		return err
	}
	if b.report, err = loadReport(b.resultPath()); err != nil {
		return err
	}
	for name, srv := range map[string]**server{"source": &b.source, "target": &b.target} {
		if *srv, err = startServer(ctx, name); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*srv).Close()) }()
	}
	if err := b.describe(ctx); err != nil {
		return err
	}
	return work()
}

// build makes the binary unless one is given or nothing needs it.
func (b *bench) build(ctx context.Context) error {
	if b.millrace != "" || !b.has("millrace") {
		return nil
	}
	b.millrace = filepath.Join(b.dir, "millrace")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", b.millrace, "./cmd/millrace")
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build millrace: %w: %s", err, out)
	}
	return nil
}

func (b *bench) describe(ctx context.Context) error {
	version, err := b.source.value(ctx, "postgres", "SHOW server_version")
	if err != nil {
		return err
	}
	b.report.Machine = describeMachine()
	b.report.PostgreSQL = version
	b.report.Go = strings.TrimPrefix(runtime.Version(), "go")
	b.report.Settings = append([]string{"fsync=off"}, settings...)
	b.report.Native = nativeOptions
	return nil
}

// part is what is measured together.
type part struct {
	name      string
	byDefault bool
	measure   func(context.Context) ([]set, error)
}

// parts are all that can be measured, in the order of their importance.
func (b *bench) parts() []part {
	var all []part
	for _, w := range workloads {
		all = append(all, part{w.name, true, func(ctx context.Context) ([]set, error) {
			s, err := b.backlog(ctx, w)
			if err != nil {
				return nil, err
			}
			return []set{s}, nil
		}})
		switch w.name {
		case "small":
			all = append(all, part{"latency", true, b.latency})
		case "insert":
			all = append(all, part{"load", true, b.load})
		}
	}
	return append(all, part{"wait", b.full, b.waiting}, part{"watch", b.full, b.watching}, part{"readers", false, b.loadReaders}, part{"memory", b.full, b.memory}, part{"connector", false, b.connector})
}

// measure takes the parts one by one; with -write the file is saved after each,
// so that an interrupted run keeps what it has.
func (b *bench) measure(ctx context.Context) error {
	began, slowest := time.Now(), time.Duration(0)
	for _, p := range b.parts() {
		if !b.wanted(p.name, p.byDefault) {
			continue
		}
		at := time.Now()
		if b.within > 0 && at.Sub(began)+slowest > b.within {
			fmt.Printf("%s is left out: it would end after %v\n", p.name, b.within)
			continue
		}
		sets, err := p.measure(ctx)
		for _, s := range sets {
			if err := b.keep(s); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if p.name != "latency" && p.name != "load" { // those stand early, and take longer
			slowest = max(slowest, time.Since(at))
		}
	}
	return nil
}

func (b *bench) keep(s set) error {
	now := time.Now().UTC().Truncate(time.Second)
	s.Taken, b.report.Taken = now, now
	b.done = append(b.done, s)
	b.report.put(s)
	fmt.Print(s.text())
	if !b.write {
		return nil
	}
	return b.report.save(b.resultPath())
}

// judge renders the documentation and looks for regressions in what was
// measured this time, even if not all of it could be.
func (b *bench) judge() error {
	if b.write && b.full {
		if err := writeDocs(filepath.Join(b.root, "docs", "benchmarks.md"), b.report); err != nil {
			return err
		}
	}
	path := filepath.Join(b.root, "bench", "thresholds.json")
	limits, err := loadThresholds(path)
	if err != nil {
		return err
	}
	if b.accept {
		limits.accept(b.mode(), b.done)
		return errors.Join(limits.save(path), limits.checkMemory(b.done))
	}
	return errors.Join(limits.checkRatios(b.mode(), b.done), limits.checkMemory(b.done))
}

func (b *bench) resultPath() string {
	return filepath.Join(b.root, "bench", "results", b.mode()+".json")
}

// newStage is the stage for a workload of size n.
func (b *bench) newStage(n int) *stage {
	s := &stage{source: b.source, target: b.target, dir: b.dir, millrace: b.millrace, n: n, timeout: 10 * time.Minute}
	s.settle = 2 * time.Second
	if b.full {
		s.settle = 15 * time.Second
	}
	return s
}

// size scales a workload's size and keeps it a multiple of a hundred.
func (b *bench) size(n int) int { return max(100, int(float64(n)*b.scale)/100*100) }

// moduleRoot is where the results and the documentation are.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("run it inside the module: go run ./bench")
	}
	return filepath.Dir(mod), nil
}
