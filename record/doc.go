// Package record keeps what Millrace knows about its jobs on the PostgreSQL
// target, in the schema millrace: which tables a job carries, how far its first
// load got, which prefix of the source's history the target holds, and who is
// writing.
//
// It owns two invariants. Progress is insert-only: each target transaction adds
// the row with the next sequence number, and the primary key (job, seq) together
// with the epoch makes that insert a compare-and-set, so that two writers can
// never both commit. And a job's generation only rises, also over a removal of
// the job, so that positions of different first loads are never taken for each
// other.
//
// It knows nothing of rows of user tables.
package record
