package kcheck

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// History is what a consumer has seen of the topics of a prefix.
type History struct {
	prefix string
	// Records counts those of tables; Commits and Aborts the marks of Kafka
	// transactions, each of which stands in every partition of its transaction.
	Records, Commits, Aborts int

	newest int64 // generation
	loads  map[int64]*load
}

// load is the history of one generation: a first load and what came behind it.
type load struct {
	parts  map[part]*progress
	counts map[place]int // records of tables
	wanted map[place]int // as END has it
	marks  []mark        // of the transaction topic, in its order
	txns   map[uint32][]change
	seqs   map[uint32][]uint64 // of txns
	rows   map[row][]change    // in the order of offsets
	homes  map[row]part
	faults []string // what is wrong by itself
}

// part is a partition.
type part struct {
	topic     string
	partition int32
}

// progress is the place up to which a partition was read.
type progress struct {
	commit, seq uint64
	deleted     row // whose tombstone has to come next
}

// place is a transaction in a partition.
type place struct {
	part
	commit uint64
	xid    uint32
}

// mark is a record of PREFIX.transaction.
type mark struct {
	Status     string `json:"status"`
	ID         string `json:"id"`
	Partitions []struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Count     int    `json:"count"`
	} `json:"partitions"`
	commit uint64
}

// headers are those that every record has.
type headers struct {
	commit, seq uint64
	xid         uint32
	generation  int64
}

func newHistory(prefix string) *History { return &History{prefix: prefix, loads: map[int64]*load{}} }

func newLoad() *load {
	return &load{parts: map[part]*progress{}, counts: map[place]int{}, wanted: map[place]int{}, txns: map[uint32][]change{},
		seqs: map[uint32][]uint64{}, rows: map[row][]change{}, homes: map[row]part{}}
}

func (h *History) load(generation int64) *load {
	l := h.loads[generation]
	if l == nil {
		l = newLoad()
		h.loads[generation] = l
	}
	h.newest = max(h.newest, generation)
	return l
}

// see takes one record, in the order of its partition.
func (h *History) see(r *kgo.Record) error {
	if r.Attrs.IsControl() {
		// The key is a version and a kind: 0 is an abort, 1 a commit.
		if len(r.Key) >= 4 && r.Key[3] == 1 {
			h.Commits++
		} else {
			h.Aborts++
		}
		return nil
	}
	hd, err := parseHeaders(r.Headers)
	if err != nil {
		return fmt.Errorf("%s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	l := h.load(hd.generation)
	if r.Topic == h.prefix+".transaction" {
		return l.seeMark(h.prefix, r, hd)
	}
	h.Records++
	if err := l.seeChange(strings.TrimPrefix(r.Topic, h.prefix+"."), r, hd); err != nil {
		return fmt.Errorf("%s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
	}
	return nil
}

func parseHeaders(all []kgo.RecordHeader) (headers, error) {
	text := map[string]string{}
	for _, h := range all {
		text[h.Key] = string(h.Value)
	}
	var h headers
	high, low, _ := strings.Cut(text["commit_lsn"], "/")
	a, err := strconv.ParseUint(high, 16, 32)
	if err != nil {
		return h, fmt.Errorf("header commit_lsn %q", text["commit_lsn"])
	}
	b, err := strconv.ParseUint(low, 16, 32)
	if err != nil {
		return h, fmt.Errorf("header commit_lsn %q", text["commit_lsn"])
	}
	h.commit = a<<32 | b
	xid, err := strconv.ParseUint(text["xid"], 10, 32)
	if err != nil {
		return h, fmt.Errorf("header xid %q", text["xid"])
	}
	h.xid = uint32(xid)
	if h.generation, err = strconv.ParseInt(text["generation"], 10, 64); err != nil {
		return h, fmt.Errorf("header generation %q", text["generation"])
	}
	if s, ok := text["seq"]; ok { // marks have none
		if h.seq, err = strconv.ParseUint(s, 10, 64); err != nil {
			return h, fmt.Errorf("header seq %q", s)
		}
	}
	return h, nil
}

func (l *load) seeMark(prefix string, r *kgo.Record, h headers) error {
	m := mark{commit: h.commit}
	if err := json.Unmarshal(r.Value, &m); err != nil {
		return err
	}
	l.marks = append(l.marks, m)
	if m.Status != "END" {
		return nil
	}
	for _, p := range m.Partitions {
		if p.Topic != prefix+".schema" {
			l.wanted[place{part{p.Topic, p.Partition}, h.commit, h.xid}] += p.Count
		}
	}
	return nil
}

// envelope is what is looked at of a value.
type envelope struct {
	Op    string          `json:"op"`
	After json.RawMessage `json:"after"`
}

func (l *load) seeChange(table string, r *kgo.Record, h headers) error {
	at := part{r.Topic, r.Partition}
	l.counts[place{at, h.commit, h.xid}]++
	p := l.parts[at]
	if p == nil {
		p = &progress{}
		l.parts[at] = p
	}
	if h.commit < p.commit || h.commit == p.commit && h.seq < p.seq && h.xid != 0 { // a chunk's has no commit of its own
		l.fault("disorder: %s/%d offset %d is of %X seq %d and comes behind %X seq %d", r.Topic, r.Partition, r.Offset, h.commit, h.seq, p.commit, p.seq)
	}
	p.commit, p.seq = h.commit, h.seq
	key, err := canonical(r.Key)
	if err != nil {
		return err
	}
	it := row{table, key}
	if home, ok := l.homes[it]; ok && home != at {
		l.fault("disorder: %s is in partitions %d and %d", it, home.partition, at.partition)
	}
	l.homes[it] = at
	if p.deleted != (row{}) && (r.Value != nil || p.deleted != it) {
		l.fault("lost: the tombstone of %s", p.deleted)
	} else if r.Value == nil && p.deleted == (row{}) {
		l.fault("repeated: a tombstone of %s that was not deleted", it)
	}
	p.deleted = row{}
	if r.Value == nil {
		return nil
	}
	return l.seeRow(p, it, r.Value, h)
}

func (l *load) seeRow(p *progress, it row, value []byte, h headers) error {
	var e envelope
	if err := json.Unmarshal(value, &e); err != nil {
		return err
	}
	c := change{row: it, xid: h.xid, op: e.Op}
	if c.op == "d" {
		p.deleted = it
	} else {
		after, err := canonical(e.After)
		if err != nil {
			return err
		}
		c.after = after
	}
	l.rows[it] = append(l.rows[it], c)
	if c.op != "r" {
		l.txns[h.xid] = append(l.txns[h.xid], c)
		l.seqs[h.xid] = append(l.seqs[h.xid], h.seq)
	}
	return nil
}

func (l *load) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}
