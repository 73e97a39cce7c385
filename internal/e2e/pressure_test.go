package e2e

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/internal/blackbox"
)

// TestSmallestBudget passes rows of max_message, among small ones and in
// transactions that come while they are open, with the smallest budget that the
// configuration takes for them: nobody waits for memory that nobody gives back.
func TestSmallestBudget(t *testing.T) {
	t.Parallel()
	const message = 7 << 20
	setup, _ := early(t)
	p := running(t, plan{schema: "CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
		options: func(o *blackbox.Options, p *pair) {
			setup(o, p)
			o.Extra = "resources: {memory_budget: 32MiB, max_inflight: 1MiB, buffer_size: 4KiB, max_message: 7MiB}\n" +
				"snapshot: {parallel: 1}\napply: {max_batch_bytes: 64KiB}\n"
		}})
	const overhead = 100
	for i := range 3 {
		p.source.SQL(t, fmt.Sprintf("INSERT INTO t SELECT i, 'small' FROM generate_series(%d, %d) i", i*10000, i*10000+4999))
		p.source.SQL(t, fmt.Sprintf("INSERT INTO t VALUES (%d, repeat('x', %d))", i*10000+9000, message-overhead))
		p.source.SQL(t, fmt.Sprintf("BEGIN; INSERT INTO t SELECT i, 'more' FROM generate_series(%d, %d) i; UPDATE t SET v = repeat('y', %d) WHERE id = %d; COMMIT",
			i*10000+5000, i*10000+8999, message-overhead, i*10000+9000))
	}
	p.sync(t)
	t.Logf("the peak of resident memory is %d MiB", p.peak(t)>>20)
	p.finish(t)
}
