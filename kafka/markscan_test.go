package kafka

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace"
)

// What is appended by hand is what encoding/json makes of it.
func TestMarksAreJSON(t *testing.T) {
	name := rapid.OneOf(rapid.StringMatching(`[a-z_.-]{1,9}`), rapid.String(), rapid.SampledFrom([]string{`"`, `\`, "<", ">", "&", "\x7f", "é", "\u2028", "\xff"}))
	rapid.Check(t, func(t *rapid.T) {
		o := &open{id: name.Draw(t, "id"), events: rapid.Int().Draw(t, "events")}
		at := time.UnixMilli(rapid.Int64Range(-1<<50, 1<<50).Draw(t, "at"))
		pos := Position{rapid.Uint32().Draw(t, "xid"), millrace.LSN(rapid.Uint64().Draw(t, "commit")), millrace.LSN(rapid.Uint64().Draw(t, "end"))}
		begin := Begin{Status: statusBegin, ID: o.id, TS: at.UnixMilli(), Position: pos}
		end := End{Status: statusEnd, ID: o.id, EventCount: o.events, TS: at.UnixMilli(), Position: pos, Collections: []Collection{}, Partitions: []Partition{}}
		for range rapid.IntRange(0, 3).Draw(t, "n") {
			table := millrace.TableName{Schema: name.Draw(t, "schema"), Name: name.Draw(t, "table")}
			place := slot{name.Draw(t, "topic"), rapid.Int32().Draw(t, "partition")}
			n := rapid.Int().Draw(t, "count")
			o.tables.entries = append(o.tables.entries, counted[millrace.TableName]{table, n})
			o.counts.entries = append(o.counts.entries, counted[slot]{place, n})
		}
		for _, c := range o.tables.entries {
			end.Collections = append(end.Collections, Collection{c.of.Schema + "." + c.of.Name, c.n})
		}
		for _, c := range o.counts.entries {
			end.Partitions = append(end.Partitions, Partition{c.of.topic, c.of.partition, c.n})
		}
		for _, c := range []struct{ got, want []byte }{
			{appendBegin(nil, o.id, at, pos), mustJSON(begin)}, {appendEnd(nil, o, at, pos), mustJSON(end)}, {appendIDKey(nil, o.id), mustJSON(map[string]string{"id": o.id})},
		} {
			if string(c.got) != string(c.want) {
				t.Fatalf("%s\nwant %s", c.got, c.want)
			}
		}
	})
}

// What an END says is read alike by both ways, and what the writer writes does not need
// the long one unless a name has to be escaped.
func TestParseEnd(t *testing.T) {
	plain := End{Status: statusEnd, ID: "746:23817544", EventCount: 3, Collections: []Collection{{"public.item", 3}}, TS: 1700000000000,
		Position: Position{746, 0x16B6D48, 0x16B6D78}, Partitions: []Partition{{"shop.public.item", 0, 3}, {"shop.public.item", 1, 1}}}
	s := markScan{rest: mustJSON(plain), ok: true}
	if !s.end(&End{}) {
		t.Errorf("what the writer writes was not understood from %q on", s.rest)
	}
	name := rapid.OneOf(rapid.StringMatching(`[a-z_.-]{1,9}`), rapid.String(), rapid.Just(`a],"ts_ms":7,"xid":8`), rapid.Just(`\"END`))
	count := rapid.IntRange(0, math.MaxInt32)
	lsn := rapid.Map(rapid.Uint64(), func(v uint64) millrace.LSN { return millrace.LSN(v) })
	ends := rapid.Custom(func(t *rapid.T) End {
		return End{Status: rapid.SampledFrom([]string{statusEnd, statusEnd, statusBegin}).Draw(t, "status"), ID: name.Draw(t, "id"), EventCount: count.Draw(t, "events"), TS: rapid.Int64().Draw(t, "ts"),
			Position: Position{rapid.Uint32().Draw(t, "xid"), lsn.Draw(t, "commit"), lsn.Draw(t, "end")},
			Collections: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Collection {
				return Collection{name.Draw(t, "collection"), count.Draw(t, "count")}
			}), 0, 3).Draw(t, "collections"),
			Partitions: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Partition {
				return Partition{name.Draw(t, "topic"), int32(count.Draw(t, "partition")), count.Draw(t, "count")}
			}), 0, 3).Draw(t, "partitions")}
	})
	var got End // used again, as a Reader does
	rapid.Check(t, func(t *rapid.T) {
		b := mustJSON(ends.Draw(t, "end"))
		if rapid.IntRange(0, 4).Draw(t, "spoil") == 0 && len(b) > 2 {
			b = slices.Delete(b, rapid.IntRange(0, len(b)-1).Draw(t, "at"), len(b)-1)
		}
		var want End
		wrong := json.Unmarshal(b, &want)
		err := parseEnd(b, &got)
		if (err == nil) != (wrong == nil) {
			t.Fatalf("%s: %v, want %v", b, err, wrong)
		}
		if err != nil {
			return
		}
		want.EventCount, want.Collections, got.EventCount, got.Collections = 0, nil, 0, nil
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b []Partition) bool { return slices.Equal(a, b) })); d != "" {
			t.Fatalf("%s: %s", b, d)
		}
	})
}
