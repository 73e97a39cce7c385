// Package pgserver runs real PostgreSQL servers as child processes, for tests
// and for the demo. The binaries are those that `make rig` fetched, or for
// PostgreSQL 15 those of the Debian package.
//
// A server never outlives the process that started it: the kernel signals it
// when that process dies, however it dies, and what remains of its files is
// removed by the next process that starts a server. Everything lives below
// [Dir]; locks there keep processes that run side by side out of each other's
// ports and files.
//
// It is not a way to run PostgreSQL for anything that matters: fsync is off and
// every local user may log in as the superuser.
package pgserver
