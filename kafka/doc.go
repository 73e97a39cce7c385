// Package kafka carries histories into Kafka and out of it.
//
// [Sink] is the Kafka destination: as many whole source transactions as are
// waiting go into one Kafka transaction, together with the checkpoint, which is
// a record in the job's control topic. A reader with isolation level
// read_committed sees each source transaction wholly and once. [Control] is the
// job's record in that topic, for whoever only looks.
//
// [Reader] gives what such a prefix of topics holds back as whole transactions in commit
// order, to any program; [Source] is the same as a source of a job.
//
// The invariants it owns: one writer, fenced by the transactional id; nothing is
// durable before its Kafka transaction has committed; an outcome that is not
// known is found out by fencing first and reading the control topic then.
package kafka
