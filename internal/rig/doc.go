// Package rig gives tests real PostgreSQL servers, databases on them, Kafka
// clusters, and faults: crashes, pauses, cut and stalled networks.
//
// [Start] gives a test a server of its own, to crash or to configure; [Shared]
// gives one that all tests of the binary share, each with a database of its own
// ([Postgres.NewDB]). Most tests want the latter: a server takes a few tenths
// of a second to start. Servers are run by package pgserver, which has nothing
// to do with testing. [StartKafka] and [SharedKafka] do the same for Apache
// Kafka, with package kafkaserver.
package rig
