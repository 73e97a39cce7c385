package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace/millrace"
)

func open(t testing.TB, opt Options) *Spool {
	t.Helper()
	if opt.Dir == "" {
		opt.Dir = t.TempDir()
	}
	if opt.Job == "" {
		opt.Job = "job"
	}
	s, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if s.Bytes() != 0 {
			t.Errorf("%d bytes are counted after Close", s.Bytes())
		}
		if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the directory is still there: %v", err)
		}
	})
	return s
}

type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// contents reads a transaction.
func contents(t fataler, txn *Txn) (subs []uint32, data [][]byte) {
	t.Helper()
	r, err := txn.Read()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return subs, data
		}
		if err != nil {
			t.Fatal(err)
		}
		if !rec.Owned {
			rec.Data = bytes.Clone(rec.Data)
		}
		subs, data = append(subs, rec.Sub), append(data, rec.Data)
	}
}

// sizeOnDisk adds up the files of transactions.
func sizeOnDisk(t fataler, s *Spool) int64 {
	entries, err := os.ReadDir(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

// TestLikeAList does what a caller may do, in any order and with many
// transactions, and compares with plain lists.
func TestLikeAList(t *testing.T) {
	type record struct {
		sub  uint32
		data []byte
	}
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s, err := Open(Options{Dir: base, Job: "job"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil || s.Bytes() != 0 {
				t.Fatal(err, s.Bytes())
			}
		}()
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		var txns []*Txn
		model := map[*Txn][]record{}
		for range rapid.IntRange(1, 40).Draw(t, "transactions") {
			txns = append(txns, s.Begin())
		}
		first := rapid.SampledFrom([]uint32{1, 1<<32 - 5}).Draw(t, "first sub")
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			txn := txns[rng.IntN(len(txns))]
			sub := first + uint32(rng.IntN(10))
			switch n := rng.IntN(100); {
			case n < 85:
				size := rng.IntN(1 << rng.IntN(14))
				if n == 0 {
					size = rng.IntN(4 * frameSize)
				}
				data := make([]byte, size)
				for i := range data {
					data[i] = byte(rng.IntN(4))
				}
				if err := txn.Append(sub, data); err != nil {
					t.Fatal(err)
				}
				model[txn] = append(model[txn], record{sub, data})
			case n < 95:
				if err := txn.DropSub(sub); err != nil {
					t.Fatal(err)
				}
				kept := model[txn][:0]
				for _, r := range model[txn] {
					if r.sub != sub {
						kept = append(kept, r)
					}
				}
				model[txn] = kept
				// A subtransaction's number never comes again: another one stands for it.
				txn2 := s.Begin()
				for _, r := range kept {
					if err := txn2.Append(r.sub, r.data); err != nil {
						t.Fatal(err)
					}
				}
				subs, _ := contents(t, txn)
				if len(subs) != len(kept) {
					t.Fatalf("%d records after a drop, want %d", len(subs), len(kept))
				}
				if err := txn.Drop(); err != nil {
					t.Fatal(err)
				}
				delete(model, txn)
				model[txn2] = kept
				for i := range txns {
					if txns[i] == txn {
						txns[i] = txn2
					}
				}
			default:
				subs, data := contents(t, txn)
				if len(subs) != len(model[txn]) {
					t.Fatalf("%d records, want %d", len(subs), len(model[txn]))
				}
				for i, r := range model[txn] {
					if subs[i] != r.sub || !bytes.Equal(data[i], r.data) {
						t.Fatalf("record %d is not what was appended", i)
					}
				}
			}
			if got := sizeOnDisk(t, s); got != s.Bytes() {
				t.Fatalf("%d bytes on disk, %d are counted", got, s.Bytes())
			}
		}
	})
}

// TestManySubtransactions has 10,000 of which every second is dropped, and a
// last one that fills frames of its own: their room comes back.
func TestManySubtransactions(t *testing.T) {
	s := open(t, Options{})
	txn := s.Begin()
	row := bytes.Repeat([]byte("0123456789"), 10)
	for i := range uint32(10_000) {
		for range 3 {
			if err := txn.Append(i, row); err != nil {
				t.Fatal(err)
			}
		}
		if i%2 == 1 {
			if err := txn.DropSub(i); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := s.Bytes()
	noise := make([]byte, 1000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for range 10_000 {
		if err := txn.Append(10_000, noise); err != nil {
			t.Fatal(err)
		}
	}
	if s.Bytes() <= before {
		t.Errorf("%d bytes after %d", s.Bytes(), before)
	}
	if err := txn.DropSub(10_000); err != nil {
		t.Fatal(err)
	}
	if got := s.Bytes(); got > before+2*frameSize {
		t.Errorf("%d bytes after the drop, before %d", got, before)
	}
	subs, _ := contents(t, txn)
	if len(subs) != 15_000 {
		t.Errorf("%d records", len(subs))
	}
}

// TestDropIsExact drops a subtransaction and keeps what is nested in it.
func TestDropIsExact(t *testing.T) {
	for _, size := range []int{10, frameSize / 2, 3 * frameSize} {
		s := open(t, Options{})
		txn := s.Begin()
		for _, sub := range []uint32{1, 2, 3, 2, 1} {
			if err := txn.Append(sub, bytes.Repeat([]byte{byte(sub)}, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := txn.DropSub(2); err != nil {
			t.Fatal(err)
		}
		subs, data := contents(t, txn)
		if fmt.Sprint(subs) != "[1 3 1]" || data[1][size-1] != 3 {
			t.Errorf("size %d: %v", size, subs)
		}
	}
}

// TestMemoryIsConstant has more transactions open than buffers, and no file.
func TestMemoryIsConstant(t *testing.T) {
	s := open(t, Options{})
	txns := make([]*Txn, 500)
	row := make([]byte, 1000)
	for i := range row {
		row[i] = byte(rand.IntN(256))
	}
	for i := range txns {
		txns[i] = s.Begin()
	}
	measure := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := measure()
	for range 50 {
		for _, txn := range txns {
			if err := txn.Append(1, row); err != nil {
				t.Fatal(err)
			}
		}
	}
	if grown := int64(measure()) - int64(before); grown > 4<<20 {
		t.Errorf("25 MB in 500 transactions take %d bytes of memory", grown)
	}
	if n := openFiles(t, s.Dir()); n != 1 { // the lock
		t.Errorf("%d files are open", n)
	}
	for _, txn := range txns {
		if subs, _ := contents(t, txn); len(subs) != 50 {
			t.Fatalf("%d records", len(subs))
		}
	}
}

func openFiles(t *testing.T, dir string) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	n := 0
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

// TestLimit names the setting, and what fits still fits.
func TestLimit(t *testing.T) {
	s := open(t, Options{Limit: 300 << 10})
	noise := make([]byte, 100<<10)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	small, large := s.Begin(), s.Begin()
	if err := small.Append(1, noise); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil && i < 10; i++ {
		err = large.Append(1, noise)
	}
	if millrace.KindOf(err) != millrace.KindData || !strings.Contains(err.Error(), "resources.spool.limit") || !strings.Contains(millrace.HintOf(err), "raise resources.spool.limit") {
		t.Fatalf("got %v; hint: %s", err, millrace.HintOf(err))
	}
	if again := large.Append(1, nil); !errors.Is(again, err) {
		t.Errorf("after the error: %v", again)
	}
	if s.Bytes() > s.Limit() {
		t.Errorf("%d bytes", s.Bytes())
	}
	if err := large.Drop(); err != nil {
		t.Error(err)
	}
	if err := small.Append(1, noise); err != nil {
		t.Error(err)
	}
	if subs, _ := contents(t, small); len(subs) != 2 {
		t.Errorf("%d records", len(subs))
	}
}

func TestFullDisk(t *testing.T) {
	err := diskError("spool", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	if millrace.KindOf(err) != millrace.KindData || !strings.Contains(millrace.HintOf(err), "make room on the disk of resources.spool.dir") {
		t.Errorf("%v; hint: %s", err, millrace.HintOf(err))
	}
}

// TestDamage changes each byte region of a file, and cuts it.
func TestDamage(t *testing.T) {
	for name, harm := range map[string]func([]byte) []byte{
		"header":    func(b []byte) []byte { b[5] ^= 1; return b },
		"kind":      func(b []byte) []byte { b[0] = furtherPiece; return b },
		"content":   func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
		"cut short": func(b []byte) []byte { return b[:len(b)-1] },
		"empty":     func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{})
			txn := s.Begin()
			row := make([]byte, 100)
			for range 3 * frameSize / 100 {
				for i := range row {
					row[i] = byte(rand.IntN(256)) // stored as it is: the decompressor notices nothing
				}
				if err := txn.Append(1, row); err != nil {
					t.Fatal(err)
				}
			}
			b, err := os.ReadFile(txn.file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(txn.file, harm(b), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := txn.Read()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Close() }()
			for err == nil {
				_, err = r.Next()
			}
			if !errors.Is(err, errDamaged) || millrace.KindOf(err) != millrace.KindData {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestCleaning has directories of a dead process, of a living one, of another
// job, and a file that is not ours.
func TestCleaning(t *testing.T) {
	base := t.TempDir()
	dead := filepath.Join(base, "job.0123456789abcdef.spool")
	foreign := filepath.Join(base, "job.fedcba9876543210.spool")
	other := filepath.Join(base, "job_2.0123456789abcdef.spool")
	for _, dir := range []string{dead, foreign, other} {
		for _, name := range []string{"1.txn", "lock"} {
			write(t, filepath.Join(dir, name))
		}
	}
	write(t, filepath.Join(foreign, "notes"))
	living := open(t, Options{Dir: base})
	txn := living.Begin()
	if err := txn.Append(1, make([]byte, 3*frameSize)); err != nil {
		t.Fatal(err)
	}
	open(t, Options{Dir: base})
	for path, want := range map[string]bool{
		dead: false, foreign: true, filepath.Join(foreign, "notes"): true, filepath.Join(foreign, "1.txn"): false,
		filepath.Join(other, "1.txn"): true, txn.file: true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", path, err, want)
		}
	}
	if subs, _ := contents(t, txn); len(subs) != 1 {
		t.Errorf("the living one has %d records", len(subs))
	}
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file)
	for _, opt := range []Options{{Dir: filepath.Join(file, "sub"), Job: "job"}, {Dir: t.TempDir(), Job: "a.b"}} {
		if _, err := Open(opt); millrace.KindOf(err) != millrace.KindPreflight || millrace.HintOf(err) == "" {
			t.Errorf("%+v: %v", opt, err)
		}
	}
}

func BenchmarkSpool(b *testing.B) {
	s := open(b, Options{})
	row := []byte("I\x00\x00\x40\x00N\x00\x04b\x00\x00\x00\x08\x00\x00\x00\x00\x00\x01\xe2\x40t\x00\x00\x00\x20abcdefghijklmnopqrstuvwxyz012345n")
	const rows = 1_000_000
	for b.Loop() {
		txn := s.Begin()
		for i := range uint32(rows) {
			row[20], row[19] = byte(i), byte(i>>8)
			if err := txn.Append(1, row); err != nil {
				b.Fatal(err)
			}
		}
		r, err := txn.Read()
		for err == nil {
			_, err = r.Next()
		}
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(txn.Bytes())/rows, "stored-B/row")
		if err := txn.Drop(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

// TestReadWhileOthersFill: the buffer of a transaction that is being read is wanted
// for others, as when the source takes open transactions while the destination reads
// one back.
func TestReadWhileOthersFill(t *testing.T) {
	s := open(t, Options{})
	record := func(of int) []byte { return bytes.Repeat([]byte{byte(of)}, 1000) }
	txn := s.Begin()
	for range 100 { // the fullest of all
		if err := txn.Append(1, record(255)); err != nil {
			t.Fatal(err)
		}
	}
	for try := range 2 {
		r, err := txn.Read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 * maxBuffers {
			if err := s.Begin().Append(1, record(i)); err != nil {
				t.Fatal(err)
			}
		}
		n := 0
		for ; ; n++ {
			rec, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || !bytes.Equal(rec.Data, record(255)) {
				t.Fatalf("try %d, record %d is another's: %x… (%v)", try, n, rec.Data[:2], err)
			}
		}
		if err := r.Close(); err != nil || n != 100 {
			t.Fatalf("%d records, %v", n, err)
		}
	}
}

// TestLimitMetForAnother: what could not be written of a transaction, to make room
// for another one, is not missing without an error.
func TestLimitMetForAnother(t *testing.T) {
	s := open(t, Options{Limit: 1000})
	noise := make([]byte, 100<<10)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	txn := s.Begin()
	if err := txn.Append(1, noise); err != nil {
		t.Fatal(err)
	}
	var failed error
	for range maxBuffers {
		failed = errors.Join(failed, s.Begin().Append(1, noise[:10]))
	}
	if failed == nil {
		t.Fatal("nothing had to be written: this tests nothing")
	}
	r, err := txn.Read()
	if err != nil {
		return
	}
	if _, err := r.Next(); err != nil {
		t.Errorf("the record is gone, and reading the transaction says: %v", err)
	}
}
