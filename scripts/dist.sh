#!/usr/bin/env bash
# Builds the device side (mount, run, redirect, status) as a static musl binary: scripts/dist.sh x86_64|aarch64|armv7 [--full|--guest] [--quick]
# With --guest instead of it the first program of the guests that try the kernel module (xtask).
# With --full everything: the server, and runnel-bench beside it (the lab runs both in its guest). With --quick it is not
# optimised across crates: for tests, not for measurements. None of them unwinds: that takes
# the unwinder that library.sh puts together, and a server of the lab that panics should fail the run.
# DEVICE_RUSTFLAGS says what the devices have beyond what every ARCH has: "-C target-feature=+neon" for ARMv7 with NEON, which
# makes BLAKE3 use it (AArch64 has it always).
# Result: target/dist/runnel-ARCH[-full][-quick], and beside a full one target/dist/runnel-bench-ARCH-full[-quick]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
arch=${1:-x86_64}
features=(--no-default-features); binaries=(runnel); kind=""; profile=release
for option in "${@:2}"; do
  case "$option" in
    --full) features=(); binaries+=(runnel-bench); kind=-full$kind ;;
    --guest) binaries=(xtask) ;;
    --quick) kind=$kind-quick; profile=quick ;;
    *) echo "usage: $0 x86_64|aarch64|armv7 [--full|--guest] [--quick]" >&2; exit 2 ;;
  esac
done
. scripts/musl.sh "$arch"
export RUSTFLAGS="-C link-self-contained=no -C target-feature=+crt-static -C panic=abort -C relocation-model=static
  -L native=$tools -C link-arg=-lgcc -C link-arg=-lc ${DEVICE_RUSTFLAGS:-}"
RUSTFLAGS=$(echo $RUSTFLAGS)
cargo build --profile $profile "${binaries[@]/#/--package=}" "${features[@]}" --target "$rust" -Zbuild-std=std,panic_abort
for binary in "${binaries[@]}"; do
  cp "target/$rust/$profile/$binary" "target/dist/$binary-$arch$kind"
  ls -l "target/dist/$binary-$arch$kind"
done
