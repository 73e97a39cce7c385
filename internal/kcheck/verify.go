package kcheck

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Verdict is what was found.
type Verdict struct {
	Transactions, Changes, Rows int // that were held against the ledger: Rows by their whole life
	Snapshot                    int // rows of the first load
	Faults                      []string
}

// Err is nil if there is no fault.
func (v *Verdict) Err() error {
	if len(v.Faults) == 0 {
		return nil
	}
	const shown = 8
	return errors.New(fmt.Sprintf("%d faults:\n", len(v.Faults)) + strings.Join(v.Faults[:min(shown, len(v.Faults))], "\n"))
}

func (v *Verdict) String() string {
	return fmt.Sprintf("%d transactions, %d changes, %d rows, %d of the first load, %d faults", v.Transactions, v.Changes, v.Rows, v.Snapshot, len(v.Faults))
}

// Verify holds the newest generation against the ledger.
func (h *History) Verify(ledger *Ledger) *Verdict {
	l := h.loads[h.newest]
	if l == nil {
		return &Verdict{Faults: []string{"lost: nothing was read at all"}}
	}
	v := &judge{Verdict: Verdict{Faults: slices.Clone(l.faults)}, load: l, ledger: ledger}
	v.marks()
	v.counts()
	v.transactions()
	v.rows()
	return &v.Verdict
}

type judge struct {
	Verdict
	load   *load
	ledger *Ledger
}

func (v *judge) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}

// marks looks at the transaction topic: BEGIN and END take turns, each
// transaction has one of them, commits ascend.
func (v *judge) marks() {
	seen := map[string]bool{}
	var open string
	var last uint64
	for _, m := range v.load.marks {
		switch {
		case m.Status == "BEGIN" && open == "":
			open = m.ID
			if seen[m.ID] {
				v.fault("repeated: BEGIN %s", m.ID)
			}
			seen[m.ID] = true
			if m.commit < last || m.commit == last && !strings.HasPrefix(m.ID, "chunk:") {
				v.fault("disorder: BEGIN %s comes behind %X", m.ID, last)
			}
			last = m.commit
		case m.Status == "END" && open == m.ID:
			open = ""
		default:
			v.fault("torn: %s %s while transaction %q is open", m.Status, m.ID, open)
			open = ""
		}
	}
	if open != "" {
		v.fault("torn: no END of %s", open)
	}
}

// counts holds the partitions against what the ENDs say of them.
func (v *judge) counts() {
	for at, want := range v.load.wanted {
		if got := v.load.counts[at]; got != want {
			v.fault("torn: transaction %d (%X) has %d records in %s/%d, its END says %d", at.xid, at.commit, got, at.topic, at.partition, want)
		}
	}
	for at, got := range v.load.counts {
		if _, ok := v.load.wanted[at]; !ok {
			v.fault("torn: %d records in %s/%d of transaction %d (%X), which no END names", got, at.topic, at.partition, at.xid, at.commit)
		}
	}
}

// transactions holds each source transaction, put together from all topics,
// against the ledger. One that is missing altogether must be in the first load:
// the rows tell.
func (v *judge) transactions() {
	for xid, changes := range v.load.txns {
		want, ok := v.ledger.txns[xid]
		if !ok {
			v.fault("repeated: transaction %d with %s, which the source never committed", xid, changes[0])
			continue
		}
		v.Transactions++
		v.Changes += len(changes)
		got := bySeq(changes, v.load.seqs[xid])
		if len(got) != len(want) {
			v.fault("torn or repeated: transaction %d has %d changes, the source made %d", xid, len(got), len(want))
			continue
		}
		for i := range got {
			if !got[i].same(want[i]) {
				v.fault("disorder: change %d of transaction %d is %s, the source made %s", i+1, xid, describe(got[i]), describe(want[i]))
				break
			}
		}
	}
}

func describe(c change) string { return strings.TrimSpace(c.String() + " " + c.after) }

// bySeq puts the changes of all topics into the order of the transaction. The two
// records of a changed key have one number, and the deletion is the first.
func bySeq(changes []change, seqs []uint64) []change {
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if seqs[a] != seqs[b] {
			return int(seqs[a]) - int(seqs[b])
		}
		return strings.Compare(changes[b].op, changes[a].op) // d before c
	})
	out := make([]change, len(order))
	for i, at := range order {
		out[i] = changes[at]
	}
	return out
}

// rows holds the life of each row against the ledger: the row of the first load
// is the state behind some change, or there is none where that is a deletion or
// nothing; all that the source did to it afterwards follows, to the end.
func (v *judge) rows() {
	for it, got := range v.load.rows {
		want := v.ledger.rows[it]
		v.Rows++
		found := "" // the row of the first load
		if got[0].op == "r" {
			found = got[0].after
			got = got[1:]
			v.Snapshot++
		}
		before := len(want) - len(got)
		if before < 0 {
			v.fault("repeated: %s changed %d times, the source changed it %d times", it, len(got), len(want))
			continue
		}
		if state := stateBehind(want[:before]); state != found {
			v.fault("lost or repeated: %s changed %d times behind the first load, which found %q; the source had %q there, with %d changes to come",
				it, len(got), found, state, len(got))
			continue
		}
		v.life(it, got, want[before:])
	}
	for it, want := range v.ledger.rows {
		if _, ok := v.load.rows[it]; !ok && stateBehind(want) != "" {
			v.fault("lost: %s, which was last changed by transaction %d", it, want[len(want)-1].xid)
		}
	}
}

func (v *judge) life(it row, got, want []change) {
	for i := range got {
		if got[i].xid != want[i].xid || !got[i].same(want[i]) {
			v.fault("disorder: change %d of %s is %s of transaction %d, the source made %s in %d", i+1, it,
				describe(got[i]), got[i].xid, describe(want[i]), want[i].xid)
			return
		}
	}
}

// stateBehind is the row behind all of the changes, "" if there is none.
func stateBehind(changes []change) string {
	if len(changes) == 0 {
		return ""
	}
	return changes[len(changes)-1].after
}
