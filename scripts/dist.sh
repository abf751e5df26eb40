#!/usr/bin/env bash
# Builds the device side (mount, run, redirect, status) as a static musl binary: scripts/dist.sh x86_64|aarch64|armv7 [--full|--quick]
# With --full everything: the server and the benches too (the lab runs this one in its guest). With --quick everything, not
# optimised across crates: for tests, not for measurements. None of them unwinds: that takes
# the unwinder that library.sh puts together, and a server of the lab that panics should fail the run.
# Result: target/dist/runnel-ARCH[-full|-quick]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
arch=${1:-x86_64}
features=(--no-default-features); name=runnel-$arch; profile=release
case "${2:-}" in
  "") ;;
  --full) features=(); name=$name-full ;;
  --quick) features=(); name=$name-quick; profile=quick ;;
  *) echo "usage: $0 x86_64|aarch64|armv7 [--full|--quick]" >&2; exit 2 ;;
esac
. scripts/musl.sh "$arch"
export RUSTFLAGS="-C link-self-contained=no -C target-feature=+crt-static -C panic=abort -C relocation-model=static
  -L native=$tools -C link-arg=-lgcc -C link-arg=-lc"
RUSTFLAGS=$(echo $RUSTFLAGS)
cargo build --profile $profile --package runnel "${features[@]}" --target "$rust" -Zbuild-std=std,panic_abort
cp "target/$rust/$profile/runnel" "target/dist/$name"
ls -l "target/dist/$name"
