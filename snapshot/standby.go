package snapshot

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/catalog"
)

// oldestStandby is the first version that decodes on a standby.
const oldestStandby = 16

// CheckStandby finds what is in the way of reading from a standby.
//
// Feedback is what makes a first load from a standby exact. The slot's snapshot
// is made of transaction numbers, so that it does not depend on how far replay
// is; but between the record at which it becomes consistent and the moment when
// the server protects it, row versions that it sees could be removed. They are
// not, since from the creation of the slot on the standby tells the primary that
// they are needed, and had told it an older number before.
func CheckStandby(server *catalog.Server, s *catalog.Standby, loading bool) (problems, warnings []Finding) {
	if server.Major() < oldestStandby {
		return []Finding{{Subject: "source", Text: fmt.Sprintf("it is a standby, from which PostgreSQL %d can't be decoded", server.Major()),
			Cure: "connect to the primary, or upgrade to PostgreSQL 16 or newer"}}, nil
	}
	if !s.Feedback {
		problems = append(problems, Finding{Subject: "source",
			Text: "it is a standby with hot_standby_feedback = off: the primary removes rows that the slot and the first load still need",
			Cure: "on the standby: ALTER SYSTEM SET hot_standby_feedback = on; SELECT pg_reload_conf()"})
	}
	if !s.Receiving {
		problems = append(problems, Finding{Subject: "source",
			Text: "it is a standby that does not stream from a primary, which then does not know what is needed here",
			Cure: "let it stream: primary_conninfo, and a primary that is reachable"})
	}
	if s.PrimarySlot == "" {
		warnings = append(warnings, Finding{Subject: "source",
			Text: "it is a standby without primary_slot_name: when its connection is lost, the primary may remove what the slot needs, and the slot is invalidated",
			Cure: "make a physical slot on the primary and name it in primary_slot_name on the standby"})
	}
	if loading && s.StreamingDelay >= 0 {
		warnings = append(warnings, Finding{Subject: "source",
			Text: fmt.Sprintf("max_standby_streaming_delay is %v: a first load that is in the way of replay for longer, such as of an ALTER TABLE, is cancelled",
				time.Duration(s.StreamingDelay)*time.Millisecond),
			Cure: "on the standby, for the time of the load: ALTER SYSTEM SET max_standby_streaming_delay = -1; SELECT pg_reload_conf()"})
	}
	return problems, warnings
}
