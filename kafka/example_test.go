package kafka_test

import (
	"context"
	"fmt"
	"os"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/kafka"
)

// A program of your own reads whole transactions in commit order, and goes on behind the
// last one that it is done with.
func ExampleOpenReader() {
	ctx := context.Background()
	cursor, _ := os.ReadFile("cursor") // none: from the beginning
	r, err := kafka.OpenReader(ctx, kafka.ReaderOptions{
		Endpoint: &kafka.Endpoint{Peer: millrace.PeerSource, Brokers: []string{"127.0.0.1:9092"}, Prefix: "shop"},
		Cursor:   cursor,
	})
	if err != nil {
		fmt.Println(err, millrace.HintOf(err))
		return
	}
	defer r.Close()
	for {
		t, err := r.Next(ctx) // waits; an error is final: open another reader from the last cursor
		if err != nil {
			fmt.Println(err, millrace.HintOf(err))
			return
		}
		for i := range t.Changes {
			c := &t.Changes[i]
			if c.Rel == nil { // of several tables, or of none
				continue
			}
			fmt.Printf("%c %v in transaction %d of %v\n", c.Op, c.Rel.Name, t.XID, t.Commit)
		}
		if t.Last { // a large transaction comes in parts
			// Best in one step with what the changes were used for.
			if err := os.WriteFile("cursor", t.Cursor, 0o600); err != nil {
				fmt.Println(err)
				return
			}
		}
		t.Release() // its memory is used again
	}
}
