#!/usr/bin/env bash
# Prints the path of kcat, and installs it where it is missing and this is a
# Debian machine whose root we are.
set -euo pipefail
for name in kcat kafkacat; do
	command -v "$name" && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	{ apt-get update && apt-get install -y --no-install-recommends kcat; } >&2
	command -v kcat
	exit
fi
echo 'no kcat: install it, or set MILLRACE_KCAT' >&2
exit 1
