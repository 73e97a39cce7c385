// Package spool keeps transactions on disk, within a limit: those that are too
// large for memory and can't be passed on yet, because their source has not
// committed them or their destination must not begin before it has them whole.
//
// A transaction is a list of records, each of a (sub)transaction; they come
// back in the order in which they were appended, without those of dropped
// subtransactions. Records are gathered into frames, which are compressed and
// checksummed. The memory is constant: a fixed number of frames being filled
// for all transactions together, and a few bytes per run of frames and per
// dropped subtransaction. No file is open but while it is written or read.
//
// The invariant it owns: nothing in a spool outlives its process. What a crash
// leaves is removed by the next Open of the same job, which touches no
// directory that is locked by a living one, and none of another job.
package spool
