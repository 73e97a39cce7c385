package replication

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace"
)

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// TestFramesInAnyPieces reads the same frames however the network cuts them.
func TestFramesInAnyPieces(t *testing.T) {
	bodies := []string{"", "a", strings.Repeat("b", 40), strings.Repeat("c", 200), "d", strings.Repeat("e", 64-frameHeader), strings.Repeat("f", 65-frameHeader), ""}
	var stream []byte
	for _, b := range bodies {
		stream = append(stream, wire('d', []byte(b))...)
	}
	readers := map[string]func(io.Reader) io.Reader{
		"whole":   func(r io.Reader) io.Reader { return r },
		"halves":  iotest.HalfReader,
		"bytes":   iotest.OneByteReader,
		"dataErr": iotest.DataErrReader,
	}
	for name, cut := range readers {
		t.Run(name, func(t *testing.T) {
			g := gulp{src: cut(bytes.NewReader(stream)), buf: make([]byte, 64), max: 1000}
			var got []string
			for range bodies {
				f, err := g.next()
				if err != nil {
					t.Fatal(err)
				}
				if wantOwned := frameHeader+len(f.body) > 64; f.owned != wantOwned {
					t.Errorf("body of %d bytes: owned is %t", len(f.body), f.owned)
				}
				got = append(got, string(f.body))
			}
			if diff := cmp.Diff(bodies, got); diff != "" {
				t.Error(diff)
			}
			if _, err := g.next(); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("at the end: %v", err)
			}
		})
	}
}

func TestReadyMeansAWholeFrame(t *testing.T) {
	stream := append(wire('d', []byte("one")), wire('d', []byte("two"))...)
	g := gulp{src: bytes.NewReader(stream[:len(stream)-1]), buf: make([]byte, 64), max: 1000}
	if g.ready() {
		t.Error("ready before anything was read")
	}
	if _, err := g.next(); err != nil {
		t.Fatal(err)
	}
	if g.ready() {
		t.Error("ready with a frame that lacks a byte")
	}
}

func TestTooLargeIsFoundOnTheLength(t *testing.T) {
	head := make([]byte, dataHeader+headSize)
	copy(head[dataHeader:], "I\x00\x00\x40\x01")
	stream := wire('d', head)
	copy(stream[1:5], "\x7f\xff\xff\xff") // 2 GiB, which never come
	g := gulp{src: bytes.NewReader(stream), buf: make([]byte, minBuffer), max: 16 << 20}
	_, err := g.next()
	var large *TooLarge
	if !errors.As(err, &large) || millrace.KindOf(err) != millrace.KindData {
		t.Fatalf("got %v", err)
	}
	if large.Size != 0x7fffffff-4-dataHeader || large.Limit != 16<<20 || string(large.Head[:5]) != "I\x00\x00\x40\x01" {
		t.Errorf("got %+v", large)
	}
	if !strings.Contains(err.Error(), "resources.max_message") || !strings.Contains(millrace.HintOf(err), "2048MiB") {
		t.Errorf("%v; hint: %s", err, millrace.HintOf(err))
	}
}

func TestLimitIsThatOfThePluginsMessage(t *testing.T) {
	for size, ok := range map[int]bool{100: true, 101: false} {
		g := gulp{src: bytes.NewReader(wire('d', make([]byte, dataHeader+size))), buf: make([]byte, minBuffer), max: 100}
		if _, err := g.next(); (err == nil) != ok {
			t.Errorf("%d bytes with a limit of 100: %v", size, err)
		}
	}
}

func TestMalformedLength(t *testing.T) {
	for _, stream := range []string{"d\x00\x00\x00\x03", "d\x00\x00\x00\x00", "N\x7f\xff\xff\xff"} {
		g := gulp{src: strings.NewReader(stream), buf: make([]byte, minBuffer), max: 1000}
		if _, err := g.next(); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

// TestIdleIsNotPaced holds that the pause costs nothing when little comes.
func TestIdleIsNotPaced(t *testing.T) {
	var p pace
	p.saw(100)
	p.since = p.since.Add(-time.Second) // a second ago
	p.saw(1000)
	if p.now.Before(p.until) {
		t.Error("1 kB in a second counts as much")
	}
	p.since = p.since.Add(-10 * time.Millisecond)
	p.saw(100 << 10)
	if !p.now.Before(p.until) {
		t.Error("100 kB in 10 ms counts as little")
	}
	p.until = p.until.Add(-hotFor)
	if p.now.Before(p.until) {
		t.Error("it stays hot")
	}
}

func TestParseHistory(t *testing.T) {
	got, err := parseHistory("1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t16/B374D848\tbefore 2024-01-01 00:00:00+00\n")
	want := []Switch{{1, 0x3000000}, {2, 0x16B374D848}}
	if err != nil || !cmp.Equal(want, got) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"1", "x\t0/1", "1\t0-1", "1\t0/1/2"} {
		if _, err := parseHistory(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestStartCommandQuotes(t *testing.T) {
	got := startCommand(Options{Slot: `a"b`, Start: 0x16B374D848, Publications: []string{`p`, `it's "odd", really`}, Binary: true})
	want := `START_REPLICATION SLOT "a""b" LOGICAL 16/B374D848 (proto_version '1', publication_names '"p","it''s ""odd"", really"', binary 'true', messages 'true')`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTooLargeIsPassedOver goes on behind a frame that was refused, however much
// of it is there already, and takes one that is larger by what was expected.
func TestTooLargeIsPassedOver(t *testing.T) {
	var stream []byte
	for _, size := range []int{104, 105, 3000, 10} {
		stream = append(stream, wire('d', append(make([]byte, dataHeader), bytes.Repeat([]byte{'x'}, size)...))...)
	}
	for name, src := range map[string]io.Reader{"whole": bytes.NewReader(stream), "bytes": iotest.OneByteReader(bytes.NewReader(stream))} {
		g := gulp{src: src, buf: make([]byte, 64), max: 100, extra: 4}
		for i, ok := range []bool{true, false, false, true} {
			f, err := g.next()
			var large *TooLarge
			switch {
			case ok && err != nil, !ok && !errors.As(err, &large):
				t.Fatalf("%s: frame %d: %v", name, i, err)
			case !ok:
				if err := g.skip(); err != nil {
					t.Fatalf("%s: frame %d: %v", name, i, err)
				}
			case i == 3 && len(f.body) != dataHeader+10:
				t.Errorf("%s: %d bytes", name, len(f.body))
			}
		}
	}
}
