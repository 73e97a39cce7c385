package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/kafka"
	"github.com/millrace/millrace/record"
)

// consumer reads the shop back from Kafka, whole transactions in their order, and
// knows how many rows each table has then. It is what a program that uses this
// module would write.
type consumer struct {
	transactions atomic.Int64

	mu   sync.Mutex
	rows map[string]int64 // by table
}

// follow reads until ctx ends. It begins once the job streams: the topics are there
// then, and hold the first load.
func (c *consumer) follow(ctx context.Context, job *runner) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for job.status().State != string(record.Streaming) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	r, err := kafka.OpenReader(ctx, kafka.ReaderOptions{Endpoint: job.kafka, Log: job.log})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		t, err := r.Next(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the shop back from Kafka: %w", err)
		}
		c.take(t)
		t.Release()
	}
}

func (c *consumer) take(t *millrace.Txn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range t.Changes {
		switch x := &t.Changes[i]; x.Op {
		case millrace.Insert, millrace.Read:
			c.rows[x.Rel.Name.Name]++
		case millrace.Delete:
			c.rows[x.Rel.Name.Name]--
		}
	}
	if t.Last {
		c.transactions.Add(1)
	}
}

// counted is what is compared: the rows of each table.
const counted = "%d customers, %d products, %d orders, %d items, %d payments"

func (c *consumer) tally() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf(counted, c.rows["customers"], c.rows["products"], c.rows["orders"], c.rows["order_items"], c.rows["payments"])
}

// tally is the same at a server.
func (s *shop) tally(ctx context.Context, url string) (string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var n [5]int64
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM customers), (SELECT count(*) FROM products), (SELECT count(*) FROM orders),
		(SELECT count(*) FROM order_items), (SELECT count(*) FROM payments)`).Scan(&n[0], &n[1], &n[2], &n[3], &n[4])
	return fmt.Sprintf(counted, n[0], n[1], n[2], n[3], n[4]), err
}
