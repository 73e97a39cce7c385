package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/klauspost/compress/s2"
)

// A frame on disk is a header and what s2 made of its content:
//
//	kind (1 byte), three zeros, length of the content, length as stored, CRC-32C of all before and of what is stored
//
// Numbers are little-endian, 4 bytes. The content is a list of whole records,
// or a piece of one that is too long for a frame. A record is the number of its
// subtransaction (4 bytes), its length (4 bytes), and its bytes.
const (
	frameSize    = 128 << 10 // of content
	frameHeader  = 16
	recordHeader = 8
)

// The kinds of frames.
const (
	wholeRecords byte = 'R'
	firstPiece   byte = 'F'
	furtherPiece byte = 'P'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal makes a frame of the content, in the memory of dst.
func seal(dst []byte, kind byte, content []byte) []byte {
	most := frameHeader + s2.MaxEncodedLen(len(content))
	if cap(dst) < most {
		dst = make([]byte, most)
	}
	dst = dst[:cap(dst)]
	stored := s2.Encode(dst[frameHeader:], content)
	dst = dst[:frameHeader+len(stored)]
	h := dst[:frameHeader]
	h[0], h[1], h[2], h[3] = kind, 0, 0, 0
	binary.LittleEndian.PutUint32(h[4:], uint32(len(content)))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(stored)))
	binary.LittleEndian.PutUint32(h[12:], checksum(h, stored))
	return dst
}

func checksum(header, stored []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[:12], castagnoli), castagnoli, stored)
}

// errDamaged is wrapped by errors about files that are not what was written.
var errDamaged = errors.New("a spooled transaction was damaged on disk")

// frames reads a file frame by frame.
type frames struct {
	file    *os.File
	end     int64 // of what was written
	at      int64
	header  [frameHeader]byte
	stored  []byte
	content []byte
}

// next gives the next frame. The content is valid until the next call.
func (f *frames) next() (kind byte, content []byte, err error) {
	if f.at == f.end {
		return 0, nil, io.EOF
	}
	h := f.header[:]
	if _, err := io.ReadFull(f.file, h); err != nil {
		return 0, nil, f.damaged(err)
	}
	size, stored := int(binary.LittleEndian.Uint32(h[4:])), int(binary.LittleEndian.Uint32(h[8:]))
	if size > frameSize || stored > s2.MaxEncodedLen(frameSize) || int64(frameHeader+stored) > f.end-f.at {
		return 0, nil, f.damaged(errors.New("impossible length"))
	}
	if f.stored == nil {
		f.stored, f.content = make([]byte, s2.MaxEncodedLen(frameSize)), make([]byte, frameSize)
	}
	if _, err := io.ReadFull(f.file, f.stored[:stored]); err != nil {
		return 0, nil, f.damaged(err)
	}
	if checksum(h, f.stored[:stored]) != binary.LittleEndian.Uint32(h[12:]) {
		return 0, nil, f.damaged(errors.New("wrong checksum"))
	}
	content, err = s2.Decode(f.content[:0:frameSize], f.stored[:stored])
	if err == nil && len(content) != size {
		err = errors.New("wrong length")
	}
	if err != nil {
		return 0, nil, f.damaged(err)
	}
	f.at += int64(frameHeader + stored)
	return h[0], content, nil
}

func (f *frames) damaged(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the other says that all is well
	}
	return fmt.Errorf("%w: %s at byte %d: %w", errDamaged, f.file.Name(), f.at, err)
}
