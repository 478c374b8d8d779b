#!/usr/bin/env bash
# Builds the two images of the tests from Debian packages alone; no registry is asked.
#   hermes-test:latest  Debian with python3, git, procps, curl   hermes-bare:latest  no python3
#   hermes-empty:latest a single empty directory
set -euo pipefail
suite=${SUITE:-bookworm}
have() { docker image inspect "$1" >/dev/null 2>&1; }
tree() { mmdebstrap --quiet --variant=minbase --include="$2" "$suite" "$1"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! have hermes-test:latest; then
  tree "$work/test.tar" python3,git,procps,curl,ca-certificates,sudo
  docker import --change 'WORKDIR /root' "$work/test.tar" hermes-test:latest >/dev/null
fi
if ! have hermes-bare:latest; then
  tree "$work/bare.tar" procps
  docker import "$work/bare.tar" hermes-bare:latest >/dev/null
fi
if ! have hermes-empty:latest; then
  mkdir "$work/empty" && mkdir "$work/empty/tmp"
  tar -C "$work/empty" -c . | docker import - hermes-empty:latest >/dev/null
fi
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep '^hermes-'
