package replication

import (
	"bytes"
	"testing"
)

// FuzzFrames feeds any bytes to the framing. Memory must stay within the limit
// whatever a length says.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("d\x00\x00\x00\x05x"))
	f.Add(signOfLife(0x1234, true))
	f.Add(wire('d', append([]byte("w"), make([]byte, 40)...)))
	f.Add(wire('E', []byte("SERROR\x00C42704\x00Mno\x00\x00")))
	f.Add([]byte("d\x7f\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		s := &Stream{wake: make(chan struct{}, 1), in: gulp{src: bytes.NewReader(stream), buf: make([]byte, 64), max: 1 << 10}}
		for {
			m, err := s.Receive()
			if err != nil {
				return
			}
			if len(m.Data) > 1<<10 {
				t.Fatalf("a message of %d bytes", len(m.Data))
			}
		}
	})
}
