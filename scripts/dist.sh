#!/usr/bin/env bash
# Builds the device side (mount, run, redirect, status) as a static musl binary: scripts/dist.sh x86_64|aarch64|armv7 [--full]
# With --full everything: the server and the benches too (the lab runs this one in its guest).
# Debian has no compiled Rust standard library for musl, but it has its source, musl, and cross compilers: cargo builds the
# standard library with the program. Needs root (or sudo) for the packages. Result: target/dist/runnel-ARCH[-full]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-x86_64}" in
  x86_64)  rust=x86_64-unknown-linux-musl      gnu=x86_64-linux-gnu    musl=x86_64-linux-musl      debian=amd64 ;;
  aarch64) rust=aarch64-unknown-linux-musl     gnu=aarch64-linux-gnu   musl=aarch64-linux-musl     debian=arm64 ;;
  armv7)   rust=armv7-unknown-linux-musleabihf gnu=arm-linux-gnueabihf musl=arm-linux-musleabihf   debian=armhf ;;
  *) echo "usage: $0 x86_64|aarch64|armv7 [--full]" >&2; exit 2 ;;
esac
features=(--no-default-features); name=runnel-${1:-x86_64}
case "${2:-}" in
  "") ;;
  --full) features=(); name=$name-full ;;
  *) echo "usage: $0 x86_64|aarch64|armv7 [--full]" >&2; exit 2 ;;
esac
sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
native=$(dpkg --print-architecture); foreign=""; [ "$debian" = "$native" ] || foreign=":$debian"
if [ -n "$foreign" ]; then "${sudo[@]}" dpkg --add-architecture "$debian"; fi
packages=(rustc-web cargo-web rust-web-src "musl-dev$foreign")
[ -n "$foreign" ] && packages+=("gcc-${gnu//_/-}" "libc6-dev-$debian-cross") || packages+=(gcc libc6-dev)
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null

# The unwinder, for backtraces, and a C compiler that sees musl instead of glibc.
tools=$PWD/target/dist/$1-tools; mkdir -p "$tools"
(cd "$tools"; apt-get download -qq "libunwind-14-dev$foreign"; dpkg-deb -x libunwind-14-dev_*_"$debian".deb unwind)
cp "$(find "$tools/unwind" -name libunwind.a -not -type l | head -1)" "$tools/libunwind.a"
printf '#!/bin/sh\nexec %s-gcc "$@" -specs /usr/lib/%s/musl-gcc.specs\n' "$gnu" "$musl" > "$tools/cc"; chmod +x "$tools/cc"

upper=$(echo "$rust" | tr a-z- A-Z_); lower=$(echo "$rust" | tr - _)
export PATH=/usr/bin:$PATH RUSTC_BOOTSTRAP=1
export "CARGO_TARGET_${upper}_LINKER=$tools/cc" "CC_$lower=$tools/cc" "AR_$lower=$gnu-ar"
export RUSTFLAGS="-C link-self-contained=no -C target-feature=+crt-static -C panic=abort -C relocation-model=static
  -L native=$tools -C link-arg=-lgcc -C link-arg=-lc"
RUSTFLAGS=$(echo $RUSTFLAGS)
cargo build --release --package runnel "${features[@]}" --target "$rust" -Zbuild-std=std,panic_abort
cp "target/$rust/release/runnel" "target/dist/$name"
ls -l "target/dist/$name"
