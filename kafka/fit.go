package kafka

import (
	"errors"

	"github.com/millrace/millrace"
)

// Unfit tells why a first load can't be made of what a job has written: rows are missing
// at the beginning, or it can't be told which changes come before their rows.
func (e *Endpoint) Unfit(w *Written) error {
	switch {
	case w.Rowless:
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer,
			Err:  errors.New("the prefix holds changes only: the job that writes to it began with snapshot.mode: none, and rows from before are not in it"),
			Hint: "load the prefix with another snapshot.mode, by `millrace bootstrap --restart-snapshot --yes` of the job that writes to it"}
	case w.Beside && !w.Early:
		return &millrace.Error{Kind: millrace.KindPreflight, Op: "read Kafka", Peer: e.Peer,
			Err: errors.New("the prefix was loaded beside the stream by an earlier version of Millrace, whose records don't say which changes come before their rows; " +
				"large values of some rows may not be in it at all"),
			Hint: "load the prefix anew with this version, by `millrace bootstrap --restart-snapshot --yes` of the job that writes to it"}
	}
	return nil
}
