package kafkaserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// CutLog takes the last batches of a partition away from a node that does not run, as if
// its disk had lost what it was to write last. The log must be one segment.
func (c *Cluster) CutLog(node int, topic string, partition, batches int) error {
	n := c.nodes[node-1]
	if n.current() != nil {
		return fmt.Errorf("node %d runs", n.id)
	}
	path := filepath.Join(n.dir, "data", topic+"-"+strconv.Itoa(partition), fmt.Sprintf("%020d.log", 0))
	log, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// A batch begins with its first offset, 8 bytes, and the length of what follows, 4 bytes.
	const head = 12
	var begins []int
	for at := 0; at+head <= len(log); {
		size := head + int(binary.BigEndian.Uint32(log[at+8:]))
		if size == head || at+size > len(log) {
			break
		}
		begins = append(begins, at)
		at += size
	}
	if len(begins) < batches {
		return errors.New("the log has fewer batches")
	}
	return os.Truncate(path, int64(begins[len(begins)-batches]))
}
