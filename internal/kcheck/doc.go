// Package kcheck proves, or refutes, that the topics of a prefix hold the
// source's history: every committed transaction whole, once, in the order of
// each key, and no other. It reads the topics as any consumer would, with none
// of Millrace's code, and holds them against a ledger that triggers of the source
// have written. It says nothing about tables without a key, and about TRUNCATE,
// which fires no trigger for rows.
package kcheck
