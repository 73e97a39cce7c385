package kafka

import (
	"encoding/hex"
	"errors"
	"slices"
)

var (
	errDeleted = errors.New("it was deleted")
	errRemade  = errors.New("it was deleted and created again")
)

// left tells whether a topic that was read is one that the job which writes has dropped
// with its table: it is gone, or now is another one that the job has made since, when the table was added
// again. Nothing more of it is needed, unless an END that comes names it.
func (r *Reader) left(name string, now *topic) bool {
	if r.opt.Pinned == nil || name == r.main() || name == r.schemas {
		return false
	}
	pinned := r.opt.Pinned(name)
	if now == nil {
		return pinned == ""
	}
	return pinned == hex.EncodeToString(now.id[:])
}

// forget takes such a topic out of what is read, as if no END had named it.
func (r *Reader) forget(t, now *topic) bool {
	needed := r.end != nil && slices.ContainsFunc(r.sources, func(s *taking) bool { return s.p.topic == t && s.left > 0 })
	if needed || !r.left(t.name, now) {
		return false
	}
	r.log.Info("the topic of a table that has left the job was deleted", "topic", t.name)
	for i := range t.leaders {
		p := r.parts[slot{t.name, int32(i)}]
		p.page = 0 // nothing more is fetched
		if p.ahead != nil {
			r.flying -= p.ahead.size
			p.ahead = nil
		}
		for len(p.queue) > 0 { // of which no END has come, or one of another generation
			p.pop(r)
		}
		delete(r.parts, slot{t.name, int32(i)})
	}
	delete(r.topics, t.name)
	return true
}
