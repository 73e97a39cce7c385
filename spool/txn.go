package spool

import (
	"encoding/binary"
	"errors"
	"os"
)

// Txn is a transaction in a spool.
type Txn struct {
	spool *Spool
	file  string // exists once there is a run
	err   error  // ends all further work with the transaction

	buf  []byte // whole records, not yet on disk; nil if there are none
	runs []run  // what is on disk

	highest uint32              // of the subtransactions that were ever on disk
	dropped map[uint32]struct{} // subtransactions that may be on disk and don't count

	follower *Follower
}

// run is a row of frames on disk that hold records of one subtransaction only,
// or of any (mixed).
type run struct {
	end   int64 // where it ends in the file
	sub   uint32
	mixed bool
}

// Append adds a record of a subtransaction; those of the transaction itself
// carry any number that no subtransaction has. The record is copied.
func (t *Txn) Append(sub uint32, record []byte) error {
	s := t.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	t.err = t.append(sub, record)
	return t.err
}

func (t *Txn) append(sub uint32, record []byte) error {
	size := recordHeader + len(record)
	if len(t.buf)+size > frameSize {
		if err := t.flush(); err != nil {
			return err
		}
	}
	if size > frameSize {
		return t.appendLong(sub, record)
	}
	if t.buf == nil {
		if err := t.spool.buffer(t); err != nil {
			return err
		}
	}
	t.buf = appendHeader(t.buf, sub, len(record))
	t.buf = append(t.buf, record...)
	return nil
}

func appendHeader(b []byte, sub uint32, length int) []byte {
	b = binary.LittleEndian.AppendUint32(b, sub)
	return binary.LittleEndian.AppendUint32(b, uint32(length))
}

// appendLong writes a record in pieces, so that it is never in memory once
// more.
func (t *Txn) appendLong(sub uint32, record []byte) error {
	if err := t.spool.buffer(t); err != nil {
		return err
	}
	first := frameSize - recordHeader
	t.buf = append(appendHeader(t.buf, sub, len(record)), record[:first]...)
	err := t.write(firstPiece, t.buf, run{sub: sub})
	t.spool.unbuffer(t)
	for rest := record[first:]; len(rest) > 0 && err == nil; {
		n := min(len(rest), frameSize)
		err = t.write(furtherPiece, rest[:n], run{sub: sub})
		rest = rest[n:]
	}
	t.highest = max(t.highest, sub)
	return err
}

// flush writes the buffer and gives it back.
func (t *Txn) flush() error {
	if len(t.buf) == 0 {
		t.spool.unbuffer(t)
		return nil
	}
	r := run{sub: binary.LittleEndian.Uint32(t.buf)}
	for sub := range records(t.buf) {
		r.mixed = r.mixed || sub != r.sub
		t.highest = max(t.highest, sub)
	}
	err := t.write(wholeRecords, t.buf, r)
	if err != nil {
		t.err = err // the records are gone, also if the room was wanted for another transaction
	}
	t.spool.unbuffer(t)
	return err
}

// records walks through a list of whole records: number of the subtransaction,
// and the record with its header.
func records(b []byte) func(yield func(uint32, []byte) bool) {
	return func(yield func(uint32, []byte) bool) {
		for len(b) > 0 {
			n := recordHeader + int(binary.LittleEndian.Uint32(b[4:]))
			if !yield(binary.LittleEndian.Uint32(b), b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// write appends a frame to the file.
func (t *Txn) write(kind byte, content []byte, r run) error {
	s := t.spool
	s.stored = seal(s.stored, kind, content)
	n := int64(len(s.stored))
	if err := s.reserve(n); err != nil {
		return err
	}
	f, err := os.OpenFile(t.file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.Write(s.stored)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		s.used.Add(-n)
		t.err = diskError("spool", err) // whatever was written of it stands in the way of the next
		return t.err
	}
	r.end = t.size() + n
	if last := len(t.runs) - 1; last >= 0 && t.runs[last].mixed == r.mixed && (r.mixed || t.runs[last].sub == r.sub) {
		t.runs[last].end = r.end
		return nil
	}
	t.runs = append(t.runs, r)
	return nil
}

// size is that of the file.
func (t *Txn) size() int64 {
	if len(t.runs) == 0 {
		return 0
	}
	return t.runs[len(t.runs)-1].end
}

// Bytes is what the transaction takes on disk.
func (t *Txn) Bytes() int64 {
	t.spool.mu.Lock()
	defer t.spool.mu.Unlock()
	return t.size()
}

// DropSub forgets the records of a subtransaction that were appended so far,
// and only those: not what is nested in it.
func (t *Txn) DropSub(sub uint32) error {
	s := t.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.err != nil {
		return t.err
	}
	if f := t.follower; f != nil {
		f.dropped = append(f.dropped, sub)
	}
	kept := t.buf[:0]
	for of, record := range records(t.buf) {
		if of != sub {
			kept = append(kept, record...)
		}
	}
	t.buf = kept
	if len(kept) == 0 {
		s.unbuffer(t)
	}
	if len(t.runs) > 0 && sub <= t.highest {
		if t.dropped == nil {
			t.dropped = map[uint32]struct{}{}
		}
		t.dropped[sub] = struct{}{}
	}
	t.err = t.cut()
	return t.err
}

// cut gives back the end of the file if nothing in it counts.
func (t *Txn) cut() error {
	n := len(t.runs)
	for n > 0 && !t.runs[n-1].mixed && t.isDropped(t.runs[n-1].sub) {
		n--
	}
	if n == len(t.runs) {
		return nil
	}
	before := t.size()
	t.runs = t.runs[:n]
	t.spool.used.Add(t.size() - before)
	if err := t.follower.cut(t.size()); err != nil {
		return diskError("spool", err)
	}
	return diskError("spool", os.Truncate(t.file, t.size()))
}

func (t *Txn) isDropped(sub uint32) bool {
	_, ok := t.dropped[sub]
	return ok
}

// Drop forgets the transaction. Nothing but Drop may be called afterwards.
func (t *Txn) Drop() error {
	s := t.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	err := t.drop()
	t.err = errDropped
	return diskError("spool", err)
}

var errDropped = errors.New("the spooled transaction was dropped")

func (t *Txn) drop() error {
	s := t.spool
	s.unbuffer(t)
	delete(s.txns, t)
	s.used.Add(-t.size())
	t.runs, t.dropped = nil, nil
	if err := os.Remove(t.file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
