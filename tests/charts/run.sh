#!/bin/sh
# The tests of charts/tidegate and of the images, with helm 3 and helm 4 and the binaries that are built already.
# Arguments go to pytest. TIDEGATE_UPDATE=1 writes the golden files and the chart's README anew.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
tools=$target/tidegate-test/charts
mkdir -p "$tools"

"$root/tests/bootstrap/helm.sh" "$tools"

wanted=$(cat "$here/requirements.txt")
if [ "$(cat "$tools/venv.from" 2>/dev/null)" != "$wanted" ]; then
  python3 -m venv --clear "$tools/venv"
  "$tools/venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
  printf '%s\n' "$wanted" >"$tools/venv.from"
fi

export TIDEGATE_HELM_DIR="$tools"
export TIDEGATE_BIN_DIR="${TIDEGATE_BIN_DIR:-$target/debug}"
export PYTHONDONTWRITEBYTECODE=1
cd "$here"
# Half of the time is one helm at a time. File by file, since tests of one share what they render. What was left out is told.
exec "$tools/venv/bin/python" -m pytest -p no:cacheprovider -rfEs --numprocesses=2 --dist=loadfile "$@"
