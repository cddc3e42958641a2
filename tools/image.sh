#!/usr/bin/env bash
# Build an image of flowzoo and try it. Wheels are gathered with the settings of this machine's pip
# (for the small CPU build of torch it must know an index that has it) and installed without network.
#
#   tools/image.sh [TARGET [BASE [EXTRAS]]]      cpu, python:3.11-slim, train; or gpu ... train,vllm
#
# The base `local` needs no registry: tools/local_base.py makes it from $PYTHON and the packages that
# are installed for it, so that the only wheel is flowzoo's. NETWORK=none is for an engine without one.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:-cpu} base=${2:-python:3.11-slim} extras=${3:-train} python=${PYTHON:-python3}
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
if [[ $base == local ]]; then
  base=flowzoo-base:local
  "$python" -m tools.local_base ${extras//,/ } | docker import \
    --change "ENV PYTHONPATH=/packages LD_LIBRARY_PATH=/lib LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/bin" \
    - "$base" >/dev/null
  "$python" -m build --wheel -o "$context/wheels" . >/dev/null
else
  version() { "$@" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
  outside=$(version "$python")
  inside=$(version docker run --rm --network none --entrypoint python3 "$base")
  [[ $outside == "$inside" ]] || {
    echo "image: wheels for Python $inside of $base are needed, $python is $outside: set PYTHON, or name another base" >&2
    exit 1
  }
  "$python" -m pip wheel -q --disable-pip-version-check -c constraints.txt -w "$context/wheels" ".[$extras]"
  # The wheels of the target cpu have the hashes that were recorded, where those are for them.
  known=,$(sed -n 's/^EXTRAS := //p' Makefile),
  for extra in ${extras//,/ }; do [[ $known == *,$extra,* ]] || known=; done
  if [[ $target != cpu || $outside != 3.11 || $(uname -m) != x86_64 || -z $known ]]; then
    echo "image: no hashes are checked: they are those of the target cpu, Python 3.11 on x86-64 and the extras of Makefile" >&2
  else for wheel in "$context"/wheels/*.whl; do
    [[ $wheel == */flowzoo-* ]] || grep -q "sha256:$(sha256sum "$wheel" | cut -d' ' -f1)" constraints-hashed.txt || {
      echo "image: ${wheel##*/} has another hash than constraints-hashed.txt" >&2
      exit 1
    }
  done; fi
fi

docker build -q --network "${NETWORK:-default}" -f deploy/Dockerfile --target "$target" \
  --build-arg BASE="$base" --build-arg EXTRAS="$extras" -t "flowzoo:$target" "$context"
run() { docker run --rm --network none "flowzoo:$target" "$@"; }
run doctor
run eval voting --policy pocket --n 20
docker image inspect -f 'flowzoo:'"$target"': {{.Size}} bytes' "flowzoo:$target"
