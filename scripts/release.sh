#!/usr/bin/env bash
# Builds the release archives into dist/. The same commit, built with the same
# version of Go, gives the same bytes: paths, times, owners and build ids are not
# in them. The version is the tag, or what git describes.
#
# usage: release.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."
tar --version 2>/dev/null | grep -q 'GNU tar' || { echo 'GNU tar is needed, for archives that can be made again' >&2; exit 1; }
version=${1:-$(git describe --tags --always --dirty)}
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CGO_ENABLED=0 GOFLAGS=-mod=readonly LC_ALL=C TZ=UTC
dist=$PWD/dist
rm -rf "$dist"
mkdir "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-trimpath -buildvcs=false -ldflags "-s -w -buildid= -X main.release=$version")

# What the program says of itself is the same on all platforms.
go build "${flags[@]}" -o "$work/here" ./cmd/millrace
mkdir -p "$work/share/man" "$work/share/completions"
"$work/here" docs --man "$work/share/man"
"$work/here" completion bash >"$work/share/completions/millrace.bash"
"$work/here" completion zsh >"$work/share/completions/_millrace"
"$work/here" completion fish >"$work/share/completions/millrace.fish"

for platform in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do
	os=${platform%/*} arch=${platform#*/}
	name=millrace-$version-$os-$arch
	root=$work/$name
	mkdir "$root"
	GOOS=$os GOARCH=$arch go build "${flags[@]}" -o "$root/millrace" ./cmd/millrace
	cp -R "$work/share/man" "$work/share/completions" deploy docs monitoring LICENSE README.md CHANGELOG.md "$root"
	rm "$root"/docs/*.go
	chmod -R u=rwX,go=rX "$root"
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - "$name" |
		gzip -9n >"$dist/$name.tar.gz"
	echo "dist/$name.tar.gz"
done
cd "$dist"
sha256sum ./*.tar.gz | sed 's|\./||' >SHA256SUMS
echo dist/SHA256SUMS
