#!/usr/bin/env bash
# Prints the path of a Chromium for the browser tests, and installs it where it
# is missing and this is a Debian machine whose root we are.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
	command -v "$name" && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	{ apt-get update && apt-get install -y --no-install-recommends chromium; } >&2
	command -v chromium
	exit
fi
echo 'no Chromium: install it, or set MILLRACE_BROWSER' >&2
exit 1
