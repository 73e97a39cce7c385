package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
	"github.com/millrace/millrace/internal/rig"
)

// TestCutInCommit: the connection to the target breaks after some more bytes of
// answers, so that it stays open whether the last COMMIT was done. Each insert
// goes into a table without a key, where twice is twice.
func TestCutInCommit(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"auto", "1"} {
		t.Run("group "+group, func(t *testing.T) {
			t.Parallel()
			var proxy *rig.Proxy
			p := running(t, plan{schema: eventsSchema, options: func(o *blackbox.Options, p *pair) {
				proxy = rig.NewProxy(t, p.target.Server)
				o.TargetURL = proxy.URL(p.target.Name)
				o.Extra += "apply: {group: " + group + "}\n"
			}})
			rng := rand.New(rand.NewPCG(1, 2))
			rounds := 25
			if full() {
				rounds = 200
			}
			for i := range rounds {
				// An answer to a group of 3 is a few hundred bytes.
				proxy.CutAfter(rng.Int64N(600))
				for n := range 3 {
					p.source.SQL(t, fmt.Sprintf("INSERT INTO events VALUES (%d, 'row'); UPDATE t SET v = v + 1 WHERE id = %d", 3*i+n, 1+i%100))
				}
				p.sync(t)
			}
			if p.metric(t, "reconnects_total") < float64(rounds)/3 {
				t.Errorf("only %v reconnects", p.metric(t, "reconnects_total"))
			}
			p.finish(t)
			if rows, want := p.target.Query(t, "SELECT count(*), count(DISTINCT n) FROM events"), fmt.Sprintf("%d|%[1]d", 3*rounds); rows != want {
				t.Errorf("events on the target (rows|different): %s, want %s", rows, want)
			}
		})
	}
}
