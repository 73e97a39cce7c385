package kafka

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	krecord "github.com/millrace/millrace/kafka/record"
)

// tableReader reads the records of a table.
type tableReader struct {
	version *krecord.TableVersion
	decoder *krecord.Decoder
	skip    bool // not selected
	// keyed is set if the topic is compacted: the relation with the records' key.
	keyed *millrace.Relation
}

// readVersions reads the descriptions of tables that come before the cursor.
func (r *Reader) readVersions(ctx context.Context) error {
	p := r.parts[slot{schemaTopic(r.opt.Endpoint.Prefix), 0}]
	if r.stream != nil {
		p.used = p.first // all of them, whatever the cursor says: a part names those that it needs
		return r.moreVersions(ctx)
	}
	if p.used == 0 {
		return nil
	}
	r.old = true
	defer func() { r.old = false }()
	_, err := r.f.readAll(ctx, p.topic, p.first, func(page) int64 { return p.used }, func(rec *kgo.Record) error {
		if rec.Offset < p.used && rec.Value != nil {
			return r.take(ctx, rec)
		}
		return nil
	})
	return err
}

// take takes up the description of a table.
func (r *Reader) take(ctx context.Context, rec *kgo.Record) error {
	v, err := krecord.ParseTableVersion(rec.Value)
	if err != nil {
		return &millrace.Error{Kind: millrace.KindData, Op: "read Kafka", Peer: r.opt.Endpoint.Peer, Err: err,
			Hint: "use a version of Millrace that is at least as new as the one that writes"}
	}
	t := &tableReader{version: v, skip: r.opt.Match != nil && !r.opt.Match(v.Name())}
	if !t.skip {
		if t.decoder, err = newTableReader(v); err != nil {
			return unreadable(r.opt.Endpoint, v, err)
		}
		if r.opt.Described != nil && !r.old {
			if err := r.opt.Described(ctx, v); err != nil {
				return err
			}
		}
	}
	r.tables[v.Topic] = t
	return nil
}

func newTableReader(v *krecord.TableVersion) (*krecord.Decoder, error) {
	rel, key, o, err := v.Relation()
	if err != nil {
		return nil, err
	}
	return krecord.NewDecoder(o, rel, key)
}

func unreadable(e *Endpoint, v *krecord.TableVersion, err error) error {
	return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer, Table: v.Name(), Err: err,
		Hint: "write the topics with format: json, json-inline, json-schema or avro, which hold whole rows, or exclude the table"}
}

// chunkTable gives the table of a chunk by its name, which is that of the table and
// a number.
func (r *Reader) chunkTable(name string) (table millrace.TableName) {
	for _, tr := range r.tables {
		if strings.HasPrefix(name, tr.version.Schema+"."+tr.version.Table+":") {
			table = tr.version.Name()
		}
	}
	return table
}

// Versions gives the newest description of each selected table that was read so far.
func (r *Reader) Versions() []*krecord.TableVersion {
	newest := map[string]*krecord.TableVersion{}
	for topic, t := range r.tables {
		newest[topic] = t.version
	}
	if r.stream != nil { // whose parts name those that they need
		for _, rec := range r.stream.versions {
			v, err := krecord.ParseTableVersion(rec.Value)
			if err == nil && (newest[v.Topic] == nil || newest[v.Topic].Version < v.Version) {
				newest[v.Topic] = v
			}
		}
	}
	var all []*krecord.TableVersion
	for _, v := range newest {
		if r.opt.Match == nil || r.opt.Match(v.Name()) {
			all = append(all, v)
		}
	}
	return all
}

// Described gives the newest description of each table that the prefix holds now, in
// the order of their names.
func (e *Endpoint) Described(ctx context.Context) ([]*krecord.TableVersion, error) {
	cl, err := e.client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	name := schemaTopic(e.Prefix)
	found, err := topics(ctx, cl, name)
	if err != nil || found[name] == nil {
		return nil, e.wrap("read Kafka", err)
	}
	t := found[name]
	first, err := offsets(ctx, cl, -2, t)
	if err != nil {
		return nil, e.wrap("read Kafka", err)
	}
	newest := map[string]*krecord.TableVersion{}
	_, err = newFetcher(cl, true).readAll(ctx, t, first[t][0], func(p page) int64 { return p.stable }, func(rec *kgo.Record) error {
		if rec.Value == nil {
			return nil
		}
		v, err := krecord.ParseTableVersion(rec.Value)
		if err == nil {
			newest[v.Topic] = v
		}
		return err
	})
	if err != nil {
		return nil, e.wrap("read Kafka", err)
	}
	return slices.SortedFunc(maps.Values(newest), func(a, b *krecord.TableVersion) int {
		return strings.Compare(a.Name().String(), b.Name().String())
	}), nil
}

// Unreadable finds tables whose newest description says that transactions can't be
// rebuilt from their records.
func (e *Endpoint) Unreadable(ctx context.Context) (problems []error, err error) {
	all, err := e.Described(ctx)
	for _, v := range all {
		if _, err := newTableReader(v); err != nil {
			problems = append(problems, unreadable(e, v, err))
		}
	}
	return problems, err
}
