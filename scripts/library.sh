#!/usr/bin/env bash
# Builds librunnel for musl: scripts/library.sh x86_64|aarch64|armv7. Result: target/dist/librunnel-ARCH, with lib (shared,
# static, pkg-config), include, man page and examples; and an example linked statically, to show what a program becomes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/musl.sh "${1:-x86_64}"
arch=${1:-x86_64}
# Instead of gcc's unwinder, which wants glibc: whatever asks for that one gets LLVM's. Debian built it to print with glibc's
# checks before it aborts; here it has nothing to say.
cp "$tools/libunwind.a" "$tools/libgcc_s.a"
echo '__attribute__((visibility("hidden"))) int __fprintf_chk(void *f, int c, const char *t, ...) { (void)f, (void)c, (void)t; return 0; }' |
  "$tools/cc" -Os -fPIC -x c -c -o "$tools/silent.o" -
"$gnu-ar" rs "$tools/libgcc_s.a" "$tools/silent.o"
export RUSTFLAGS="-C link-self-contained=no -C target-feature=-crt-static -L native=$tools"
cargo build --profile library --package runnel-capi --target "$rust" -Zbuild-std=std,panic_unwind -Zbuild-std-features=

out=target/dist/librunnel-$arch
built=target/$rust/library CC=$tools/cc TOOLS=$gnu- UNWINDER=$tools/libgcc_s.a LIBS='-Wl,--eh-frame-hdr' scripts/package-library.sh "$out"
"$tools/cc" -Os -static -Wl,--gc-sections,--eh-frame-hdr -s -I "$out/include" -o "$out/cat-static" crates/capi/examples/cat.c "$out/lib/librunnel.a"
ls -l "$out/lib" "$out/cat-static"
size=$(stat -c %s "$out/lib/librunnel.so.0" "$out/cat-static" | sort -n | tail -1)
[ "$size" -lt 1500000 ] || { echo "$size bytes: more than 1.5 MB" >&2; exit 1; }
