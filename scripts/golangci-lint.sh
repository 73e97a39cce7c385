#!/usr/bin/env bash
# Prints the path of golangci-lint at the given version; builds it once, into
# the directory for Go programs, if it is not there yet.
set -euo pipefail
version=$1
bin=$(go env GOBIN)
bin=${bin:-$(go env GOPATH)/bin}
for candidate in "$(command -v golangci-lint || true)" "$bin/golangci-lint"; do
	if [ -x "$candidate" ] && "$candidate" version 2>/dev/null | grep -q "version ${version#v} "; then
		echo "$candidate"
		exit 0
	fi
done
echo "building golangci-lint $version" >&2
GOBIN=$bin go install "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$version" >&2
echo "$bin/golangci-lint"
