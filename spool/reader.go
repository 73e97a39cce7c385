package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/millrace/millrace"
)

// Reader gives the records of a transaction in the order in which they were
// appended.
type Reader struct {
	txn    *Txn
	frames *frames // nil once the file is read, or if there is none
	rest   []byte  // whole records of the current frame
	last   []byte  // what is not on disk
}

// Record is one that was appended.
type Record struct {
	Sub  uint32
	Data []byte
	// Owned tells that Data is the caller's for good; else it is valid until the
	// next call.
	Owned bool
}

// Read begins to read. Until the Reader is closed nothing may be appended or
// dropped. A transaction can be read again.
func (t *Txn) Read() (*Reader, error) {
	s := t.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.err != nil {
		return nil, t.err
	}
	// A copy: the buffer may be written out and given to another transaction.
	r := &Reader{txn: t, last: slices.Clone(t.buf)}
	if len(t.runs) == 0 {
		return r, nil
	}
	f, err := os.Open(t.file)
	if err != nil {
		return nil, diskError("read the spool", err)
	}
	r.frames = &frames{file: f, end: t.size()}
	return r, nil
}

// Next gives the next record, or io.EOF after the last.
func (r *Reader) Next() (Record, error) {
	for {
		for len(r.rest) > 0 {
			sub := binary.LittleEndian.Uint32(r.rest)
			n := recordHeader + int(binary.LittleEndian.Uint32(r.rest[4:]))
			data := r.rest[recordHeader:n:n]
			r.rest = r.rest[n:]
			if !r.txn.isDropped(sub) {
				return Record{Sub: sub, Data: data}, nil
			}
		}
		long, err := r.frame()
		if err != nil {
			return Record{}, err
		}
		if long.Data != nil && !r.txn.isDropped(long.Sub) {
			return long, nil
		}
	}
}

// frame reads the next frame, and all of a record that is longer than one.
func (r *Reader) frame() (long Record, err error) {
	if r.frames == nil {
		if len(r.last) == 0 {
			return long, io.EOF
		}
		r.rest, r.last = r.last, nil
		return long, nil
	}
	kind, content, err := r.frames.next()
	switch {
	case errors.Is(err, io.EOF):
		err = r.closeFile()
	case err != nil:
		err = damaged(err)
	case kind == wholeRecords:
		r.rest = content
	case kind == firstPiece:
		long, err = r.frames.long(content)
	default:
		err = damaged(fmt.Errorf("%w: frame of kind %q", errDamaged, kind))
	}
	return long, err
}

// long gathers the pieces of a record that is longer than a frame.
func (f *frames) long(first []byte) (Record, error) {
	rec := Record{Sub: binary.LittleEndian.Uint32(first), Owned: true}
	size := int(binary.LittleEndian.Uint32(first[4:]))
	rec.Data = append(make([]byte, 0, size), first[recordHeader:]...)
	for len(rec.Data) < size {
		kind, content, err := f.next()
		if err == nil && (kind != furtherPiece || len(content) > size-len(rec.Data)) {
			err = fmt.Errorf("%w: frame of kind %q within a record", errDamaged, kind)
		}
		if err != nil {
			return Record{}, damaged(err)
		}
		rec.Data = append(rec.Data, content...)
	}
	return rec, nil
}

func damaged(err error) error {
	return &millrace.Error{
		Kind: millrace.KindData,
		Op:   "read the spool",
		Err:  err,
		Hint: "look at the disk of resources.spool.dir; nothing was lost: the source sends the transaction again when the job is started",
	}
}

func (r *Reader) closeFile() error {
	if r.frames == nil {
		return nil
	}
	err := r.frames.file.Close()
	r.frames = nil
	return diskError("read the spool", err)
}

// Close ends reading, at any point.
func (r *Reader) Close() error {
	r.rest, r.last = nil, nil
	return r.closeFile()
}
