package e2e

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestServersGoInALoad: target and source crash, and connections to both are cut, in the middle of a load beside the stream,
// with commits of the source that are not durable when they are seen. The program goes on by itself, with what is complete.
func TestServersGoInALoad(t *testing.T) {
	t.Parallel()
	const rows = 2000
	var proxies []*rig.Proxy
	p := newPair(t, plan{source: rig.Start(t, rig.Newest, "synchronous_commit=off"), target: rig.Start(t, rig.Newest), schema: fmt.Sprintf(killedSchema, rows),
		options: func(o *blackbox.Options, p *pair) {
			from, to := rig.NewProxy(t, p.source.Server), rig.NewProxy(t, p.target.Server)
			o.SourceURL, o.TargetURL = from.URL(p.source.Name), to.URL(p.target.Name)
			proxies = []*rig.Proxy{from, to}
			o.Extra += fmt.Sprintf("snapshot: {mode: incremental, rate: %d}\n", rows*200)
		}})
	stop := churn(t, p, rows)
	p.Start(t, "--bootstrap")
	pid, copied := p.PID(), 0
	goesOn := func() {
		t.Helper()
		rig.Eventually(t, patience, func() bool { return loadedRows(p) > copied || !p.Running() }, "the load goes on")
		now := loadedRows(p)
		if now < copied {
			t.Errorf("%d rows were copied before, now %d are", copied, now)
		}
		copied = now
	}
	goesOn()
	p.target.Server.Crash(t)
	p.target.Server.Restart(t)
	goesOn()
	for _, proxy := range proxies {
		proxy.CutAfter(100)
	}
	goesOn()
	stop()
	p.source.Server.Crash(t)
	p.source.Server.Restart(t)
	if p.record(t, "consistent_from IS NULL") != "t" {
		t.Error("the load was over too soon")
	}
	stop = churn(t, p, rows)
	rig.Eventually(t, 2*patience, func() bool { return p.record(t, "state") == "streaming" || !p.Running() }, "the load is complete")
	stop()
	p.finish(t)
	if p.PID() != pid {
		t.Error("it is another process")
	}
}
