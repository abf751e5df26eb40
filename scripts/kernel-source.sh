#!/usr/bin/env bash
# Fetches Debian's source of Linux 6.12 once, by apt and without installing it; prints its folder.
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/runnel/kernel
if [ ! -e "$folder/source/Makefile" ]; then
  rm -rf "$folder/unpack" "$folder/source.new"
  mkdir -p "$folder/unpack" "$folder/source.new"
  cd "$folder/unpack"
  apt-get -qq -o APT::Sandbox::User=root download linux-source-6.12 >&2 || {
    echo "apt knows no linux-source-6.12: bookworm-security or bookworm-backports must be in apt's sources" >&2
    exit 1
  }
  dpkg-deb -x linux-source-6.12_*.deb .
  tar -xf usr/src/linux-source-6.12.tar.xz -C "$folder/source.new" --strip-components=1
  cd "$folder"
  mv source.new source
  rm -rf unpack
fi
echo "$folder/source"
