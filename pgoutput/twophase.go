package pgoutput

import (
	"time"

	"github.com/millrace/millrace"
)

// The messages of protocol version 3, which sends a transaction when it is
// prepared (PREPARE TRANSACTION), and later whether it was committed.
const (
	TagBeginPrepare     Tag = 'b'
	TagPrepare          Tag = 'P'
	TagCommitPrepared   Tag = 'K'
	TagRollbackPrepared Tag = 'r'
	TagStreamPrepare    Tag = 'p'
)

// Prepare is what Begin Prepare, Prepare and Stream Prepare say. Begin Prepare
// stands in the place of Begin, Prepare in that of Commit, and Stream Prepare in
// that of Stream Commit.
type Prepare struct {
	Prepare millrace.LSN // of the prepare record
	End     millrace.LSN // end of the prepare record
	Time    time.Time
	XID     uint32
	GID     []byte // the name that PREPARE TRANSACTION gave
}

// ParseBeginPrepare reads a Begin Prepare message.
func ParseBeginPrepare(msg []byte) (Prepare, error) {
	r := open(msg, TagBeginPrepare, "Begin Prepare")
	m := r.prepare()
	return m, r.close()
}

// ParsePrepare reads a Prepare message.
func ParsePrepare(msg []byte) (Prepare, error) {
	r := open(msg, TagPrepare, "Prepare")
	r.flags(0)
	m := r.prepare()
	return m, r.close()
}

// ParseStreamPrepare reads a Stream Prepare message.
func ParseStreamPrepare(msg []byte) (Prepare, error) {
	r := open(msg, TagStreamPrepare, "Stream Prepare")
	r.flags(0)
	m := r.prepare()
	return m, r.close()
}

func (r *reader) prepare() Prepare {
	return Prepare{Prepare: r.lsn(), End: r.lsn(), Time: r.time(), XID: r.uint32(), GID: r.cstring()}
}

// CommitPrepared says that a prepared transaction was committed.
type CommitPrepared struct {
	Commit
	XID uint32
	GID []byte
}

// ParseCommitPrepared reads a Commit Prepared message.
func ParseCommitPrepared(msg []byte) (CommitPrepared, error) {
	r := open(msg, TagCommitPrepared, "Commit Prepared")
	r.flags(0)
	m := CommitPrepared{
		Commit: Commit{Commit: r.lsn(), End: r.lsn(), Time: r.time()},
		XID:    r.uint32(),
		GID:    r.cstring(),
	}
	return m, r.close()
}

// RollbackPrepared says that a prepared transaction was rolled back.
type RollbackPrepared struct {
	PrepareEnd  millrace.LSN // end of the prepare record
	End         millrace.LSN // end of the rollback record
	PrepareTime time.Time
	Time        time.Time
	XID         uint32
	GID         []byte
}

// ParseRollbackPrepared reads a Rollback Prepared message.
func ParseRollbackPrepared(msg []byte) (RollbackPrepared, error) {
	r := open(msg, TagRollbackPrepared, "Rollback Prepared")
	r.flags(0)
	m := RollbackPrepared{
		PrepareEnd:  r.lsn(),
		End:         r.lsn(),
		PrepareTime: r.time(),
		Time:        r.time(),
		XID:         r.uint32(),
		GID:         r.cstring(),
	}
	return m, r.close()
}
