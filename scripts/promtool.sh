#!/usr/bin/env bash
# Checks and tests the alert rules with promtool: that of PATH, else that of
# Debian's package prometheus, which is unpacked into a folder and not installed.
set -euo pipefail
cd "$(dirname "$0")/../monitoring"
tool=$(command -v promtool || true)
if [ -z "$tool" ]; then
	command -v apt-get >/dev/null || { echo 'no promtool: put it into PATH' >&2; exit 1; }
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	(cd "$dir" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } >&2 && dpkg-deb -x prometheus_*.deb .)
	tool=$dir/usr/bin/promtool
fi
"$tool" check rules alerts.yml
"$tool" test rules alerts_test.yml
