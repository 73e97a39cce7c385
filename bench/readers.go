package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// loadReaders measures what several readers of one table bring, under one snapshot and in
// chunks beside the stream, and what it costs that a reader of chunks waits for the commit of its chunk
// before the last (docs/snapshots.md: at most two are under way).
func (b *bench) loadReaders(ctx context.Context) ([]set, error) {
	n := 2_000_000
	if b.full {
		n = 5_000_000
	}
	n = b.size(n)
	out := set{Name: "readers", Kind: kindLoad, Title: thousands(n) + " narrow rows, by several readers", Rows: n}
	rushing, err := b.buildRushing(ctx)
	if err != nil {
		return nil, err
	}
	var loaders []loader
	if b.has("pipe1") {
		loaders = append(loaders, loader{label: pipeOne, load: pipe("narrow", 1)})
	}
	if b.has("millrace") {
		for _, k := range []struct{ mode, binary, more string }{
			{"consistent", "", ""}, {"incremental", "", ""}, {"incremental", rushing, ", not waiting for commits"},
		} {
			for _, readers := range []int{1, 2, 4} {
				label := fmt.Sprintf("%s, %s, %d readers%s", nameMillrace, k.mode, readers, k.more)
				if readers == 1 {
					label = strings.Replace(label, "readers", "reader", 1)
				}
				loaders = append(loaders, millraceLoadBy(k.binary, label, k.mode, readers))
			}
		}
	}
	if err := b.loads(ctx, &out, "load", n, b.rounds, loaders); err != nil {
		return nil, err
	}
	return []set{out}, nil
}

// waits is the condition in backfill/underway.go under which a reader waits for a commit.
const waits = "if p.after != nil {"

// buildRushing makes a binary whose readers don't wait for commits. It is made from another text of one file
// (go build -overlay), so that the program needs no switch for that.
func (b *bench) buildRushing(ctx context.Context) (string, error) {
	if !b.has("millrace") {
		return "", nil
	}
	path := filepath.Join(b.root, "backfill", "underway.go")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if strings.Count(string(text), waits) != 1 {
		return "", fmt.Errorf("%s: want %q in it, once", path, waits)
	}
	other, list, binary := filepath.Join(b.dir, "underway.go"), filepath.Join(b.dir, "overlay.json"), filepath.Join(b.dir, "millrace-rushing")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {path: other}})
	if err != nil {
		return "", err
	}
	rushing := strings.Replace(string(text), waits, "if false {", 1)
	if err := errors.Join(os.WriteFile(other, []byte(rushing), 0o600), os.WriteFile(list, overlay, 0o600)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", binary, "./cmd/millrace")
	cmd.Dir = b.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build millrace without waiting: %w: %s", err, out)
	}
	return binary, nil
}
