package kafka_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/rig"
	"github.com/millrace/millrace/kafka"
)

// TestNumberBesideOtherHeaders: the number of a large transaction changes nothing else of the
// record that it is in.
func TestNumberBesideOtherHeaders(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	e := endpoint(k, newPrefix())
	o := inStream(t, e)
	a := relation(1, "a")
	loaded(t, o, a)
	s, _ := claimed(t, o)
	const rows = 20_000
	write(t, s, txn(1, "v", a), txn(2, "v", a))
	write(t, s, parts(3, rows, a)...)
	awaitDurable(t, s, 350)
	first := regexp.MustCompile(`"seq":(\d+)`)
	large, numbers := 0, ""
	for numbers != "123" {
		large, numbers = 0, ""
		for _, r := range readTopics(t, k, 5, e.Prefix+".stream") {
			numbers += r.headers["number"]
			if r.headers["xid"] != "1003" {
				continue
			}
			if large++; r.headers["seq"] != first.FindStringSubmatch(r.value)[1] {
				t.Errorf("part %s begins with change %s, and its header says %s", r.headers["part"], first.FindStringSubmatch(r.value)[1], r.headers["seq"])
			}
		}
	}
	if large < 3 {
		t.Errorf("the large transaction has %d parts", large)
	}
}

// TestNumbersBehindAnEarlierVersion: what an earlier version has written has no numbers, in the topic or in
// the record, and is no loss; they begin anew behind it.
func TestNumbersBehindAnEarlierVersion(t *testing.T) {
	t.Parallel()
	k := rig.SharedKafka(t)
	j := writeThree(t, k, "")
	if err := j.w.Close(); err != nil {
		t.Fatal(err)
	}
	control := j.e.Prefix + ".millrace." + j.e.Job
	var checkpoint string
	for _, r := range readTopics(t, k, 5, control) {
		if r.key == "checkpoint" {
			checkpoint = r.value
		}
	}
	earlier := strings.Replace(checkpoint, `,"number":3`, "", 1)
	if earlier == checkpoint {
		t.Fatalf("the checkpoint is %s", checkpoint)
	}
	end := &kgo.Record{Topic: j.e.Prefix + ".transaction",
		Value: []byte(`{"status":"END","id":"9:320","event_count":0,"data_collections":[],"ts_ms":1,"xid":9,"commit_lsn":"0/140","end_lsn":"0/145","partitions":[]}`)}
	for key, value := range map[string]string{"commit_lsn": "0/140", "xid": "9", "system": "7", "timeline": "1", "generation": "1"} {
		end.Headers = append(end.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
	}
	cl := rawClient(t, k, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := cl.ProduceSync(deadline(t), end, &kgo.Record{Topic: control, Key: []byte("checkpoint"), Value: []byte(earlier)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{4, 5} {
		s, _ := claimed(t, j.o)
		write(t, s, txn(n, "v", j.a))
		awaitDurable(t, s, millrace.LSN(n*100+50))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var numbers []string
	for _, r := range readTopics(t, k, 11, end.Topic) {
		if strings.Contains(r.value, `"END"`) {
			numbers = append(numbers, r.headers["number"])
		}
	}
	if got := fmt.Sprintf("%q", numbers); got != `["1" "2" "3" "" "1" "2"]` {
		t.Errorf("the numbers are %s", got)
	}
	if given, err := j.fresh(t); err != nil || fmt.Sprint(given) != "[0/64 0/C8 0/12C 0/140 0/190 0/1F4]" {
		t.Errorf("who reads is given %v, %v", given, err)
	}
}

// atRequest does something behind the nth request of a kind that a producer sends, and before it sends
// another one to that broker.
type atRequest struct {
	key, nth, seen int
	began          bool
	do             func()
}

func (a *atRequest) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if a.began = a.began || key == int16(kmsg.InitProducerID); !a.began || int(key) != a.key {
		return
	}
	if a.seen++; a.seen == a.nth {
		a.do()
	}
}

// TestClaimThatIsOvertaken: what another instance has written since this one has read the job's record
// is no sign that the record has lost something.
func TestClaimThatIsOvertaken(t *testing.T) {
	t.Parallel()
	e, w, a := oneWritten(t)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var claims int
	late := *e
	late.Hooks = []kgo.Hook{&atRequest{key: int(kmsg.ListOffsets), nth: 3, do: func() { // the first two are about the record
		claims++
		s, _ := claimed(t, readable(t, e, 1))
		write(t, s, txn(2, "v", a))
		awaitDurable(t, s, 250)
	}}}
	s := kafka.New(readable(t, &late, 1))
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.Open(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(deadline(t)); claims != 1 || millrace.KindOf(err) != millrace.KindRetry || !strings.Contains(fmt.Sprint(err), "another instance has just taken the job over") {
		t.Errorf("behind %d other claims, who was overtaken is told: %v", claims, err)
	}
}
