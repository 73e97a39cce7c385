// Package kafkaserver runs real Apache Kafka brokers as child processes: one
// node or three, each broker and controller (KRaft), with small heaps. It has
// nothing to do with testing; package rig gives clusters to tests.
package kafkaserver
