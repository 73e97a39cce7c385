package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// Follower reads a transaction while others go on to append to it and to drop
// parts of it. It is for one goroutine; a transaction has at most one.
type Follower struct {
	txn     *Txn
	most    int     // bytes of a record
	frames  *frames // nil until there is a file
	records []Record
	dropped []uint32 // since the last call of Next
	done    bool     // all of it was read
}

// ErrTooLong says that a Follower does not take a record.
var ErrTooLong = errors.New("a row is too large")

// Follow begins to read at the transaction's start. A record of more than most bytes is
// refused, before it takes memory.
func (t *Txn) Follow(most int) *Follower {
	s := t.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	t.follower = &Follower{txn: t, most: most}
	return t.follower
}

// Next gives the records that were written out next, without those of
// subtransactions that are dropped by now, which may leave none. They are valid
// until the next call. dropped are the subtransactions that were dropped since the
// call before, of which it may have given records. io.EOF says that there are no more
// records at the moment; with all, those that are still in memory are given before
// it, and nothing may be appended any more.
func (f *Follower) Next(all bool) (given []Record, dropped []uint32, err error) {
	t := f.txn
	t.spool.mu.Lock()
	defer t.spool.mu.Unlock()
	if t.err != nil {
		return nil, nil, t.err
	}
	f.records = f.records[:0]
	dropped, f.dropped = f.dropped, nil
	switch size := t.size(); {
	case size > 0 && (f.frames == nil || f.frames.at < size):
		err = f.frame(size)
		return f.records, dropped, err
	case all && !f.done:
		f.done = true
		f.take(slices.Clone(t.buf)) // it may be given to another transaction
		return f.records, dropped, nil
	}
	return nil, dropped, io.EOF
}

// frame reads one frame, or all of a record that is longer.
func (f *Follower) frame(size int64) error {
	if f.frames == nil {
		file, err := os.Open(f.txn.file)
		if err != nil {
			return diskError("read the spool", err)
		}
		f.frames = &frames{file: file}
	}
	f.frames.end = size
	kind, content, err := f.frames.next()
	switch {
	case err != nil:
		return damaged(err)
	case kind == wholeRecords:
		f.take(content)
	case kind == firstPiece && int(binary.LittleEndian.Uint32(content[4:])) > f.most:
		return ErrTooLong
	case kind == firstPiece:
		long, err := f.frames.long(content)
		if err != nil {
			return err
		}
		if !f.txn.isDropped(long.Sub) {
			f.records = append(f.records, long)
		}
	default:
		return damaged(fmt.Errorf("%w: frame of kind %q", errDamaged, kind))
	}
	return nil
}

func (f *Follower) take(content []byte) {
	for sub, record := range records(content) {
		if !f.txn.isDropped(sub) {
			f.records = append(f.records, Record{Sub: sub, Data: record[recordHeader:len(record):len(record)]})
		}
	}
}

// cut goes back to the new end of the file, if that lies before what was read:
// what comes next is written there.
func (f *Follower) cut(size int64) error {
	if f == nil || f.frames == nil || f.frames.at <= size {
		return nil
	}
	f.frames.at = size
	_, err := f.frames.file.Seek(size, io.SeekStart)
	return err
}

// Close ends reading, at any point.
func (f *Follower) Close() error {
	t := f.txn
	t.spool.mu.Lock()
	defer t.spool.mu.Unlock()
	t.follower = nil
	if f.frames == nil {
		return nil
	}
	err := f.frames.file.Close()
	f.frames = nil
	return diskError("read the spool", err)
}
