#!/usr/bin/env bash
# Builds the newest mkfs.erofs that Debian has the source of (Debian 12's own knows LZ4 alone); apt
# checks the source's signature. Prints the program's path. `scripts/erofs-utils.sh new` asks Debian
# again although there is one.
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/runnel/erofs-utils
if [ "${1:-}" = new ] || [ ! -x "$folder/mkfs.erofs" ]; then
  apt=$folder/apt work=$folder/build
  rm -rf "$work"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$work"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian sid main" >"$apt/sources"
  apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$apt/sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists" \
      -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root "$@" >&2
  }
  apt update
  cd "$work"
  apt source --download-only erofs-utils/sid || {
    echo "Debian's sid gives no source of erofs-utils" >&2
    exit 1
  }
  tar -xf erofs-utils_*.orig.tar.* --strip-components=1
  {
    ./autogen.sh
    ./configure --disable-fuse --without-selinux --without-uuid --enable-lzma --with-libzstd --enable-lz4
    make -j2
  } >"$folder/log" 2>&1 || {
    echo "mkfs.erofs cannot be built; $folder/log says why" >&2
    exit 1
  }
  cp mkfs/mkfs.erofs "$folder/mkfs.erofs"
  rm -rf "$work"
fi
echo "$folder/mkfs.erofs"
