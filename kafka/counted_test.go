package kafka

import (
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// TestNumbersOfTransactions: one that is missing, or comes again, is noticed, in each generation; those of
// earlier versions have no number, and what follows them is taken.
func TestNumbersOfTransactions(t *testing.T) {
	for _, c := range []struct {
		numbers string // generation.number, or a generation alone
		says    string // behind the last
	}{
		{"1.1 1.2 1.3", ""},
		{"1.7 1.8", ""},
		{"1.1 1.3", "transactions 2 to 2 of generation 1 are not in"},
		{"1.1 1.5", "transactions 2 to 4 of generation 1 are not in"},
		{"1.1 1.2 1.2", "transaction 2 of generation 1 comes again"},
		{"1.3 1.1", "transaction 1 of generation 1 comes again"},
		{"1.3 2.1 2.2", ""},
		{"1.3 2.2", "transactions 1 to 1 of generation 2 are not in"},
		{"1 1 1.1 1.2", ""},
		{"1.5 1 1.1", ""},
		{"1 1.1 1.3", "transactions 2 to 2"},
	} {
		r := &Reader{opt: ReaderOptions{Endpoint: &Endpoint{Prefix: "p"}}, last: number{of: -1}}
		all := strings.Fields(c.numbers)
		for i, text := range all {
			rec := &kgo.Record{Topic: "p.transaction"}
			generation, n, numbered := strings.Cut(text, ".")
			if rec.Headers = []kgo.RecordHeader{{Key: headerGeneration, Value: []byte(generation)}}; numbered {
				rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: headerNumber, Value: []byte(n)})
			}
			err := r.counted(rec)
			wrong := i == len(all)-1 && c.says != ""
			if wrong != (err != nil) || wrong && (!strings.Contains(err.Error(), c.says) || millrace.KindOf(err) != millrace.KindResync) {
				t.Errorf("%s: behind %s: %v", c.numbers, text, err)
			}
		}
	}
}

// TestPartitionsGoOn: what is written to a partition lies behind what was written to it before.
func TestPartitionsGoOn(t *testing.T) {
	var h heights
	for i, c := range []struct {
		topic     string
		partition int32
		offset    int64
		lost      bool
	}{
		{"a", 0, 5, false}, {"a", 0, 6, false}, {"a", 1, 2, false}, {"b", 0, 1, false}, {"a", 0, 8, false}, {"a", 0, -1, false},
		{"a", 1, 2, true}, {"b", 0, 0, true}, {"a", 0, 7, true}, {"a", 0, 8, false},
	} {
		if err := h.take(&kgo.Record{Topic: c.topic, Partition: c.partition, Offset: c.offset}); (err != nil) != c.lost || err != nil && millrace.KindOf(err) != millrace.KindResync {
			t.Errorf("%d: %s [%d] at %s: %v", i, c.topic, c.partition, strconv.FormatInt(c.offset, 10), err)
		}
	}
}

// TestNewestAndRecord: what who claims a job makes of the newest transaction and the job's record; -1 is that of an
// earlier version, and of 0 the newest one is of such a version, or there is none.
func TestNewestAndRecord(t *testing.T) {
	for _, c := range []struct {
		newest, record number
		expired        bool
		lost           bool
		goesOn         int64
	}{
		{number{1, 3}, number{1, 3}, false, false, 3},
		{number{1, 3}, number{1, 2}, false, true, 0},
		{number{1, 3}, number{1, 0}, false, true, 0},
		{number{1, 2}, number{1, 3}, false, true, 0},
		{number{1, 0}, number{1, 3}, false, true, 0},
		{number{2, 1}, number{1, 3}, false, true, 0},
		{number{1, 3}, number{2, 0}, false, false, 0}, // a load that has written nothing yet
		{number{1, 3}, number{2, 1}, false, true, 0},
		{number{}, number{1, 0}, false, false, 0},
		{number{}, number{1, 3}, false, true, 0},
		{number{}, number{1, 3}, true, false, 3},
		{number{1, 0}, number{1, -1}, false, false, 0},
		{number{1, 3}, number{1, -1}, false, false, 3}, // it has claimed the job and written nothing
		{number{1, 0}, number{1, 0}, false, false, 0},
		{number{1, 3}, number{2, -1}, false, false, 0},
		{number{3, 0}, number{1, -1}, false, false, 0}, // of another job, before
		{number{3, 0}, number{1, 0}, false, false, 0},
	} {
		s := &State{Generation: c.record.generation, Number: c.record.of}
		err := (&Endpoint{Prefix: "p", Job: "job"}).lossOf("p.transaction", c.newest, !c.expired, s)
		if (err != nil) != c.lost || err != nil && millrace.KindOf(err) != millrace.KindResync {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil && s.goesOn(c.newest) != c.goesOn {
			t.Errorf("%+v: it goes on behind %d", c, s.goesOn(c.newest))
		}
	}
}
