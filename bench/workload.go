package main

import (
	"embed"
	"fmt"
	"slices"
	"strings"
)

// The files create tables and a procedure generate(n). They are run by psql
// with the variable n, on the source and on the target's template alike; only
// the source then calls generate(n).
//
//go:embed workloads/*.sql
var workloadFiles embed.FS

// workload is one kind of backlog. Everything is given by n.
type workload struct {
	name  string
	title string // what happened at the source; %s is the number below
	quick int
	full  int
	rows  func(n int) int // row changes in the stream
	txs   func(n int) int // transactions in the stream
}

func times(k int) func(int) int { return func(n int) int { return k * n } }
func per(k int) func(int) int   { return func(n int) int { return n / k } }
func one(int) int               { return 1 }

// The full sizes let a native subscription work for three seconds or more on
// two cores. All of them are multiples of a hundred. The first ones matter most,
// since a run may end early.
var workloads = []workload{
	{"small", "%s transactions × 3 rows", 40_000, 200_000, times(3), times(1)},
	{"wide", "%s inserts × 30 columns, 10 each", 60_000, 450_000, times(1), per(10)},
	{"toast", "%s documents of 7 KB, and 2 updates each", 6_000, 40_000, times(3), per(10)},
	{"insert", "one transaction, %s inserts", 200_000, 1_500_000, times(1), one},
	{"update", "one transaction, %s updates", 100_000, 600_000, times(1), one},
	{"tables", "%s transactions × 2 rows, 100 tables", 50_000, 300_000, times(2), times(1)},
	{"thousand", "%s transactions × 2 rows, 1,000 tables", 60_000, 200_000, times(2), times(1)},
	{"delete", "%s deletes, 100 each", 200_000, 1_200_000, times(1), per(100)},
	{"hot", "%s pgbench transactions, 10 branches", 30_000, 150_000, times(4), times(1)},
	{"keys", "%s transactions × 3 rows, composite and uuid keys", 30_000, 150_000, times(3), times(1)},
	{"arrays", "%s rows with array columns, 10 each", 60_000, 500_000, times(1), per(10)},
}

// withReaders are the workloads that pg_recvlogical and decode only always run
// with.
var withReaders = []string{"small", "wide", "insert"}

func (w workload) describe(n int) string { return fmt.Sprintf(w.title, thousands(n)) }

func workloadSQL(name string) string {
	b, err := workloadFiles.ReadFile("workloads/" + name + ".sql")
	if err != nil {
		panic(err) // embedded: only a wrong name in this program
	}
	return string(b)
}

// thousands writes 1500000 as 1,500,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	var parts []string
	for len(s) > 3 {
		parts = append(parts, s[len(s)-3:])
		s = s[:len(s)-3]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return strings.Join(parts, ",")
}
