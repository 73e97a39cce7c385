package apply

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"errors"

	"github.com/millrace/millrace"
)

func TestDevCases(t *testing.T) {
	files, _ := filepath.Glob("/work/shared/cases/*.sql")
	if len(files) == 0 {
		t.Skip()
	}
	for _, f := range files {
		for _, mode := range []string{"text", "binary", "one", "parts", "rows"} {
			t.Run(filepath.Base(f)+"/"+mode, func(t *testing.T) { devCase(t, f, mode) })
		}
	}
}

func devCase(t *testing.T, file, mode string) {
	raw, _ := os.ReadFile(file)
	var setup, target, expect string
	var changes []string
	cur := ""
	buf := map[string]*strings.Builder{}
	flush := func() {}
	_ = flush
	section := ""
	var parts []struct{ name, body string }
	for _, line := range strings.Split(string(raw), "\n") {
		switch line {
		case "-- setup", "-- target", "-- change", "-- expect", "-- literal":
			section = line[3:]
			parts = append(parts, struct{ name, body string }{section, ""})
			continue
		}
		if section != "" {
			parts[len(parts)-1].body += line + "\n"
		}
	}
	_, _ = cur, buf
	for _, p := range parts {
		switch p.name {
		case "setup":
			setup = p.body
		case "target":
			target = p.body
		case "change":
			changes = append(changes, p.body)
		case "expect":
			expect = p.body
		}
	}
	if strings.Contains(string(raw), "-- outputs: kafka\n") {
		t.Skip()
	}
	p := newPair(t, mode == "binary" || mode == "parts", setup)
	if mode == "one" {
		p.opt.Group = 1
	}
	if target != "" {
		p.dst.Script(t, target)
	}
	s := p.open(t)
	for _, c := range changes {
		ddl := strings.HasPrefix(c, "-- note: ddl\n")
		if ddl {
			p.dst.Script(t, c)
		}
		txns := p.change(t, c)
		if mode == "parts" {
			var all []*millrace.Txn
			for _, x := range txns {
				if len(x.Changes) > 3 {
					all = append(all, split(x, max(2, len(x.Changes)/7))...)
				} else {
					all = append(all, x)
				}
			}
			txns = all
		}
		err := tryWrite(t, s, txns)
		if errors.Is(err, millrace.ErrNeedText) {
			t.Skip("needs text")
		}
		if err != nil {
			t.Fatalf("%v\nhint: %s", err, millrace.HintOf(err))
		}
		if mode == "rows" {
			// next batches by row
		}
	}
	want, got := p.src.Script(t, expect), p.dst.Script(t, expect)
	if want != got {
		t.Errorf("source\n%s\ndestination\n%s", want, got)
	}
	t.Logf("%+v", s.Stats())
	s.Close()
	p.released(t)
}
