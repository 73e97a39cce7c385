#!/usr/bin/env bash
# Prints the path of a Python that has Airbyte's models, its CDK and PyAirbyte in
# the versions of internal/connector/testdata/airbyte/requirements.txt; makes it
# once, in the cache, if it is not there yet. Needs uv, or python3 with pip.
set -euo pipefail
requirements=$(dirname "$0")/../internal/connector/testdata/airbyte/requirements.txt
sum=$(cksum "$requirements")
dir=${XDG_CACHE_HOME:-$HOME/.cache}/millrace/airbyte-${sum%% *}
if [ ! -e "$dir/ready" ]; then
	echo "installing PyAirbyte into $dir" >&2
	rm -rf "$dir"
	mkdir -p "$dir"
	uv=$(command -v uv || true)
	if [ -z "$uv" ]; then
		python3 -m venv "$dir/uv" && "$dir/uv/bin/pip" --quiet install uv==0.13.9
		uv=$dir/uv/bin/uv
	fi
	# pip's resolver takes more than a minute for these, uv a few seconds.
	"$uv" venv --quiet --python '>=3.10,<3.13' "$dir/venv" 2>"$dir/log" || { cat "$dir/log" >&2; exit 1; }
	"$uv" pip install --quiet --python "$dir/venv/bin/python" --requirement "$requirements" >&2
	touch "$dir/ready"
fi
echo "$dir/venv/bin/python"
