# Sourced with x86_64, aarch64 or armv7: what it takes to build against musl with Debian's packages. Debian has no compiled
# Rust standard library for musl, but it has its source, musl, and cross compilers: cargo builds the standard library with
# the program. Needs root (or sudo) for the packages. Sets rust, gnu, musl, lower and tools; exports what cargo reads.
case "$1" in
  x86_64)  rust=x86_64-unknown-linux-musl      gnu=x86_64-linux-gnu    musl=x86_64-linux-musl      debian=amd64 ;;
  aarch64) rust=aarch64-unknown-linux-musl     gnu=aarch64-linux-gnu   musl=aarch64-linux-musl     debian=arm64 ;;
  armv7)   rust=armv7-unknown-linux-musleabihf gnu=arm-linux-gnueabihf musl=arm-linux-musleabihf   debian=armhf ;;
  *) echo "$1: not one of x86_64, aarch64, armv7" >&2; exit 2 ;;
esac
sudo=(); [ "$(id -u)" -eq 0 ] || sudo=(sudo)
native=$(dpkg --print-architecture); foreign=""; [ "$debian" = "$native" ] || foreign=":$debian"
if [ -n "$foreign" ]; then "${sudo[@]}" dpkg --add-architecture "$debian"; fi
packages=(rustc-web cargo-web rust-web-src "musl-dev$foreign")
[ -n "$foreign" ] && packages+=("gcc-${gnu//_/-}" "libc6-dev-$debian-cross") || packages+=(gcc libc6-dev)
# A mirror in mid-update is no reason to stop: what is missing shows at the install.
"${sudo[@]}" apt-get update -qq || true
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null

# The unwinder, and a C compiler that sees musl instead of glibc.
tools=$PWD/target/dist/$1-tools; mkdir -p "$tools"
if [ ! -f "$tools/libunwind.a" ]; then
  (cd "$tools"; apt-get download -qq "libunwind-14-dev$foreign"; dpkg-deb -x libunwind-14-dev_*_"$debian".deb unwind)
  cp "$(find "$tools/unwind" -name libunwind.a -not -type l | head -1)" "$tools/libunwind.a"
fi
printf '#!/bin/sh\nexec %s-gcc "$@" -specs /usr/lib/%s/musl-gcc.specs\n' "$gnu" "$musl" > "$tools/cc"; chmod +x "$tools/cc"

upper=$(echo "$rust" | tr a-z- A-Z_); lower=$(echo "$rust" | tr - _)
export PATH=/usr/bin:$PATH RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$PWD/target
export "CARGO_TARGET_${upper}_LINKER=$tools/cc" "CC_$lower=$tools/cc" "AR_$lower=$gnu-ar"
