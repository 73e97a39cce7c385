package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// The job's names. The slot is the one that bootstrap creates; for each run it
// is made anew from a copy that stays where bootstrap left it.
const (
	millraceJob      = "bench"
	millraceDB       = "bench_millrace" // the template with the job's record in it
	millraceSlot     = "millrace_bench"
	millraceBaseSlot = "bench_millrace"
)

// millraceApplier is the program itself, run as a user would.
type millraceApplier struct {
	program
	notEager bool // with apply.eager: off
}

// program is the binary while it runs, with its memory watched.
type program struct {
	client *client
	watch  *memoryWatch
}

func (p *program) launch(ctx context.Context, binary, config string) error {
	c, err := startClient(ctx, binary, "run", "-c", config)
	if err != nil {
		return err
	}
	p.client, p.watch = c, watchMemory(c.PID())
	return nil
}

func (p *program) broken() error {
	if p.client.Alive() {
		return nil
	}
	return p.client.failure(errors.Join(errStopped, p.client.Wait()))
}

// figures are those of the process so far; its memory is not watched any more.
func (p *program) figures(m *sample) {
	m.ClientCPU = seconds(cpuOf(p.client.PID()))
	m.PeakBytes, m.MedianBytes = p.watch.stop()
	p.watch = nil
}

// end has it end, if it runs.
func (p *program) end() (err error) {
	if p.watch != nil {
		p.watch.stop()
		p.watch = nil
	}
	if p.client != nil {
		err = p.client.terminate()
		p.client = nil
	}
	return err
}

func (a *millraceApplier) name() string {
	if a.notEager {
		return nameNotEager
	}
	return nameMillrace
}

// configuration is all defaults but for what the bench needs.
const configuration = `job: %s
source:
  postgres: {url: "%s", publication: %s}
snapshot: {mode: %s, parallel: %d}
destination:
  postgres: {url: "%s", schema: existing}
http: {listen: "127.0.0.1:0"}
`

func (s *stage) configure(db, mode string, parallel int) (string, error) {
	path := filepath.Join(s.dir, db+".yaml")
	text := fmt.Sprintf(configuration, millraceJob, s.source.URL(sourceDB), publication, mode, parallel, s.target.URL(db))
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func appendTo(path, text string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, text...), 0o600)
}

// bootstrap records the job in a clone of the target that is equal already.
func (s *stage) bootstrap(ctx context.Context, db string) error {
	config, err := s.configure(db, "none", 1)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, s.millrace, "bootstrap", "-q", "-c", config)
	cmd.Env = cleanEnv()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("millrace bootstrap: %w: %s", err, out)
	}
	return nil
}

func (a *millraceApplier) prepare(ctx context.Context, s *stage) error {
	if s.recorded {
		return nil
	}
	s.recorded = true
	if err := s.source.dropSlot(ctx, millraceSlot); err != nil {
		return err
	}
	if err := s.target.recreate(ctx, millraceDB, baseDB); err != nil {
		return err
	}
	if err := s.bootstrap(ctx, millraceDB); err != nil {
		return err
	}
	return s.source.copySlot(ctx, millraceSlot, millraceBaseSlot)
}

func (a *millraceApplier) arm(ctx context.Context, s *stage) error {
	if err := s.target.recreate(ctx, runDB, millraceDB); err != nil {
		return err
	}
	return s.source.copySlot(ctx, millraceBaseSlot, millraceSlot)
}

func (a *millraceApplier) start(ctx context.Context, s *stage) error {
	config, err := s.configure(runDB, "none", 1)
	if err != nil {
		return err
	}
	if a.notEager {
		if err := appendTo(config, "apply: {eager: off}\n"); err != nil {
			return err
		}
	}
	return a.launch(ctx, s.millrace, config)
}

func (a *millraceApplier) observe(ctx context.Context, s *stage, m *sample) {
	m.RowPath = s.rowPath(ctx)
	a.figures(m)
}

// rowPath asks the process how many transactions took the row path; nil when
// it can't be had.
func (s *stage) rowPath(ctx context.Context) *int64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	addr, err := s.target.value(ctx, runDB, "SELECT http FROM millrace.runtime WHERE job = '"+millraceJob+"'")
	if err != nil || addr == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/status", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var status struct {
		Fallback *int64 `json:"fallback_transactions"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&status); err != nil {
		return nil
	}
	return status.Fallback
}

func (a *millraceApplier) disarm(ctx context.Context, s *stage) error {
	return errors.Join(a.end(), s.source.dropSlot(ctx, millraceSlot))
}
