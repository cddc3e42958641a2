#!/usr/bin/env bash
# The wheel and the sdist in FOLDER with one interpreter: import, an episode, the command line.
#   tests/smoke.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$(realpath "$2") root=$(realpath "$(dirname "$0")/..")
works() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# A shim of pyenv fails for a version that is not active, though it is installed.
if ! works "$python"; then
  for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/"$python"; do
    if works "$path"; then python=$path; fi
  done
fi
if ! works "$python"; then
  echo "$python: not here, nothing was tried"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$root/tests/core_only.py" "$root/constraints.txt" "$scratch"
cd "$scratch"
for made in "$folder"/flowzoo-*.whl "$folder"/flowzoo-*.tar.gz; do
  "$python" -m venv --clear venv
  venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt "$made"
  venv/bin/python -I core_only.py
  venv/bin/flowzoo play voting --policy scripted:0.8 >/dev/null
  echo "$("$python" --version): $(basename "$made") works"
done
