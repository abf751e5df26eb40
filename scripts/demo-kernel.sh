#!/usr/bin/env bash
# A kernel for a web server made of BusyBox: built once (minutes), reduced to what BusyBox, the command line and QEMU's hardware can
# reach, started in QEMU, and asked for a page.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
runnel=$PWD/target/demo/runnel
cache=${XDG_CACHE_HOME:-$HOME/.cache}/runnel/kernel
source=$(scripts/kernel-source.sh)
line="console=ttyS0 quiet panic=-1"

device=$(mktemp -d)
machine=
trap 'if [ -n "$machine" ]; then kill "$machine" 2>/dev/null || true; fi; rm -rf "$device"' EXIT
mkdir -p "$device"/root/{bin,proc,www}
cp /bin/busybox "$device/root/bin/"
echo "hello from a kernel of this device alone" > "$device/root/www/index.html"
cat > "$device/root/init" <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc
$B ifconfig eth0 10.0.2.15 up
$B httpd -h /www
echo "serving; $($B uname -sr), $($B free -k | $B awk '/^Mem/ {print $4}') KiB of 64 MiB are free"
while :; do $B sleep 1000; done
INIT
chmod 755 "$device/root/init"

"$runnel" specialise --kernel-source "$source" --config crates/kernel/devices/tiny-web.config --cmdline "$line" \
  --image "$device/root" --devices crates/kernel/devices/qemu-q35.devices --build "$cache/build-tiny-web" -o "$cache/demo"

(cd "$device/root"; find . | cpio --quiet -o -H newc) > "$device/initramfs"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkfifo "$device/console"
timeout 300 qemu-system-x86_64 -M q35 -m 64 -accel tcg,thread=single -cpu max -nodefaults -no-user-config -no-reboot -display none \
  -serial stdio -kernel "$cache/demo/bzImage" -initrd "$device/initramfs" -append "$line" \
  -netdev "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:$port-:80" -device virtio-net-pci,netdev=net \
  < /dev/null > "$device/console" &
machine=$!
exec 3< "$device/console"
serves=
while [ -z "$serves" ] && read -r said <&3; do
  echo "device: $said"
  case $said in serving*) serves=yes ;; esac
done
if [ -z "$serves" ]; then echo "the device ended before it served anything" >&2; exit 1; fi
page=$(python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode().strip())' "http://127.0.0.1:$port/")
echo "its page: $page"
[ "$page" = "$(cat "$device/root/www/index.html")" ]
