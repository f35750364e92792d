#!/bin/sh
# Puts together what an image of one binary holds: collect.sh BINARY FOLDER
#
# The binary without its debugging information, every library that it is linked with at the path where the loader looks
# for it, the certificate authorities of the web (for `rediss://`; everything else brings its own), a user that is not
# root, and a folder that nobody needs to make.
set -eu

binary=$1
folder=$2

mkdir -p "$folder/usr/local/bin" "$folder/etc/ssl/certs" "$folder/tmp" "$folder/var/lib/tidegate"
strip --strip-debug -o "$folder/usr/local/bin/$(basename "$binary")" "$binary"
chmod 0755 "$folder/usr/local/bin/$(basename "$binary")"

# Lines are `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` for the loader; what the kernel brings has no path.
libraries=$(ldd "$binary")
case $libraries in
*"not found"*)
  printf '%s\n' "$libraries" >&2
  exit 1
  ;;
esac
printf '%s\n' "$libraries" | sed -n 's/^.*=> \(\/[^ ]*\) (.*$/\1/p; s/^[[:space:]]*\(\/[^ ]*\) (.*$/\1/p' |
  while read -r library; do
    mkdir -p "$folder$(dirname "$library")"
    cp --dereference "$library" "$folder$library"
  done

cp --dereference /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0::/:/nologin\ntidegate:x:65532:65532::/var/lib/tidegate:/nologin\n' >"$folder/etc/passwd"
printf 'root:x:0:\ntidegate:x:65532:\n' >"$folder/etc/group"
chmod 1777 "$folder/tmp"
chown 65532:65532 "$folder/var/lib/tidegate"
