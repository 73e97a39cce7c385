package kafka

// tally counts things in the order in which they first came. A transaction has
// almost always the same one or two over and over.
type tally[K comparable] struct {
	entries []counted[K]
	last    int       // the entry that was added to last
	at      map[K]int // where entries are, once there are many
}

type counted[K comparable] struct {
	of K
	n  int
}

// tallyScan is how many entries are searched one by one.
const tallyScan = 8

func (t *tally[K]) add(k K) {
	if t.last < len(t.entries) && t.entries[t.last].of == k {
		t.entries[t.last].n++
		return
	}
	if i, ok := t.find(k); ok {
		t.entries[i].n++
		t.last = i
		return
	}
	t.last = len(t.entries)
	t.entries = append(t.entries, counted[K]{k, 1})
	switch n := len(t.entries); {
	case n == tallyScan+1:
		t.at = make(map[K]int, 2*n)
		for i := range t.entries {
			t.at[t.entries[i].of] = i
		}
	case n > tallyScan:
		t.at[k] = t.last
	}
}

func (t *tally[K]) find(k K) (int, bool) {
	if t.at != nil {
		i, ok := t.at[k]
		return i, ok
	}
	for i := range t.entries {
		if t.entries[i].of == k {
			return i, true
		}
	}
	return 0, false
}

// empty gives a tally of nothing that uses the memory of this one.
func (t *tally[K]) empty() tally[K] { return tally[K]{entries: t.entries[:0]} }
