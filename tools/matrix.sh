#!/usr/bin/env bash
# Runs the tests over several Pythons, each with the oldest and the newest dependencies.
#
#   tools/matrix.sh                          everything
#   tools/matrix.sh 3.10/lowest 3.13/highest some of it
#   ARGS='-m "not engine" -n 2' tools/matrix.sh ...   what is passed to pytest
#
# Pythons come from PYTHON_3_10 and so on, else from pyenv, else from the PATH. Lowest means the
# floors that pyproject.toml states for what this package needs, or the first above them that has a
# wheel for that Python; test tools are always the newest that go with them.
set -uo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools" && "$work/tools/bin/pip" install -q uv || exit 1
uv="$work/tools/bin/uv"

find_python() {
  local variable="PYTHON_${1/./_}"
  if [ -n "${!variable:-}" ]; then
    echo "${!variable}"
  elif command -v pyenv >/dev/null && pyenv prefix "$(pyenv latest "$1" 2>/dev/null)" >/dev/null 2>&1; then
    echo "$(pyenv prefix "$(pyenv latest "$1")")/bin/python"
  else
    command -v "python$1"
  fi
}

combinations=("$@")
if [ $# -eq 0 ]; then
  for version in 3.10 3.11 3.12 3.13; do
    combinations+=("$version/lowest" "$version/highest")
  done
fi

failed=0
for combination in "${combinations[@]}"; do
  version=${combination%/*}
  resolution=${combination#*/}
  [ "$resolution" = lowest ] && resolution=lowest-direct
  echo "== Python $version, $resolution"
  python=$(find_python "$version") || { echo "no Python $version: set PYTHON_${version/./_}"; failed=1; continue; }
  venv="$work/$version-$resolution"
  # the floors of this package first, then the test tools around what that gave
  "$python" -m venv "$venv" &&
    "$uv" pip compile -q --python "$venv/bin/python" --resolution "$resolution" --only-binary :all: --extra fast pyproject.toml -o "$venv/pins.txt" &&
    "$uv" pip install -q --python "$venv/bin/python" -c "$venv/pins.txt" -e '.[fast,test]' || { failed=1; continue; }
  "$uv" pip list -q --python "$venv/bin/python" |
    grep -E '^(pytest|pytest-asyncio|httpx|anyio|httptools|msgspec|pydantic|numpy|pyyaml|prometheus-client|filelock|execnet|uvicorn|rich|jinja2|uvloop) ' | tr -s ' ' | paste -sd, -
  eval "set -- ${ARGS:-}"
  # what fails is run once more, by one process: some tests measure in real time
  cache=(-o "cache_dir=$venv/cache")
  "$venv/bin/python" -m pytest -q "${cache[@]}" "$@" ||
    "$venv/bin/python" -m pytest -q "${cache[@]}" -p no:xdist --last-failed --last-failed-no-failures none || failed=1
  rm -rf "$venv"
done
exit $failed
