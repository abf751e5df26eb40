#!/usr/bin/env bash
# Lays out librunnel as packages want it, from the archive that cargo built: scripts/package-library.sh FOLDER, with the environment:
#   built     where librunnel.a lies                        PREFIX  where it will be installed (default /usr/local)
#   CC TOOLS  the compiler; prefix of ld, objcopy and ar    LIBS    what a static link needs more
#   UNWINDER  an archive to put into the libraries
# Both libraries are made of one object that shows nothing but what is in runnel.h: its zstd, blake3 and Rust never meet those of a
# program.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.."; pwd); out=$1; capi=$root/crates/capi
: "${built:?}" "${CC:=cc}" "${TOOLS:=}" "${PREFIX:=/usr/local}" "${LIBS:=}" "${UNWINDER:=}"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)
rm -rf "$out"; mkdir -p "$out"/lib/pkgconfig "$out"/include "$out"/share/man/man3 "$out"/share/doc/librunnel/examples

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
grep -o '\brunnel_[a-z_]*(' "$capi/include/runnel.h" | tr -d '(' | sort -u > "$work/names"
sed 's/^/--require-defined=/' "$work/names" > "$work/roots"
# What is not used goes at the final link: binutils 2.40 for ARM breaks on what such a link leaves when it is done here.
"${TOOLS}ld" -r "@$work/roots" -o "$work/whole.o" "$built/librunnel.a" $UNWINDER
# Without the intermediate code of the compiler, which tools of other versions stumble over.
"${TOOLS}objcopy" --keep-global-symbols="$work/names" --strip-debug -R .llvmbc -R .llvmcmd "$work/whole.o" "$work/librunnel.o"
"${TOOLS}ar" rcs "$out/lib/librunnel.a" "$work/librunnel.o"
"$CC" -shared -o "$out/lib/librunnel.so.0" "$work/librunnel.o" -s -Wl,-soname,librunnel.so.0,--gc-sections,--eh-frame-hdr \
  -Wl,-z,now,-z,relro,-z,noexecstack,-z,nodelete,-z,defs -Wl,--as-needed -lpthread -ldl -lm
ln -s librunnel.so.0 "$out/lib/librunnel.so"

cp "$capi/include/runnel.h" "$out/include"
cp "$root/docs/man/librunnel.3" "$out/share/man/man3"
cp "$capi"/examples/*.c "$out/share/doc/librunnel/examples"
sed "s|@PREFIX@|$PREFIX|; s|@VERSION@|$version|; s|@PRIVATE@|$LIBS|" "$capi/runnel.pc.in" > "$out/lib/pkgconfig/runnel.pc"
