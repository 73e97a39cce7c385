package main

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/capture"
	"github.com/millrace/millrace/catalog"
	"github.com/millrace/millrace/session"
)

// memoryLimit is what `millrace run` makes of the default memory_budget.
const memoryLimit = 104 << 20

// decodeMain is the contender "decode only": capture reads a slot up to a
// position and throws everything away. It is a process of its own, so that its
// CPU time and memory can be told from the bench's.
func decodeMain(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return errors.New("usage: bench decode URL SLOT PUBLICATION LSN")
	}
	url, slot, pub := args[0], args[1], args[2]
	end, err := millrace.ParseLSN(args[3])
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(memoryLimit)
	src := capture.New(capture.Options{
		Endpoint: session.Static(millrace.PeerSource, url, "bench"), Slot: slot, Publication: pub,
		Tables: func(ctx context.Context) ([]capture.Table, error) { return publishedTables(ctx, url, pub) },
		Match:  func(millrace.TableName) bool { return true },
	})
	if err := src.Start(ctx, millrace.Checkpoint{Acked: end}); err != nil {
		return err
	}
	for reached := millrace.LSN(0); reached < end; {
		t, err := src.Next(ctx)
		if err != nil {
			return errors.Join(err, src.Close())
		}
		reached = max(reached, t.End)
		t.Release()
	}
	return src.Close()
}

// publishedTables is the set of tables, as a job's record would have it.
func publishedTables(ctx context.Context, url, publication string) ([]capture.Table, error) {
	conn, err := session.Static(millrace.PeerSource, url, "bench").Connect(ctx, session.Watch)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	pub, err := catalog.ReadPublication(ctx, conn, publication)
	if err != nil {
		return nil, err
	}
	var oids []uint32
	for _, t := range pub.Tables {
		oids = append(oids, t.OID)
	}
	described, err := catalog.Describe(ctx, conn, oids)
	if err != nil {
		return nil, err
	}
	var tables []capture.Table
	for _, t := range described {
		tables = append(tables, capture.Table{OID: t.OID, Name: t.Name, Filenode: t.Filenode, Shape: catalog.ShapeOf(t)})
	}
	return tables, nil
}
