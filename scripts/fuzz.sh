#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each. Making an input
# smaller is bounded as well: by default it takes a minute for each new one.
set -euo pipefail
time=${1:-30s}
found=0
while IFS=: read -r file target; do
	found=1
	echo "== ./$(dirname "$file") $target"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 100x
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's|^\./||; s|func ||' | sort)
[ "$found" = 1 ] || { echo 'no fuzz target found' >&2; exit 1; }
