#!/bin/sh
# PID 1 of the guest: mounts what every Linux system has, fetches the driver and the plan from the host, runs the driver
# and powers off. Nothing is executed from the share: a guest that waits for its host loses its virtual time.
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C
mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/netns
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
modprobe 9pnet_virtio
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144 host /host || echo "lab-init: cannot mount the share"
cp /host/runnel /host/runnel-bench /host/plan /tmp/ && umount /host && chmod 755 /tmp/runnel /tmp/runnel-bench
/tmp/runnel-bench lab-guest --plan /tmp/plan </dev/null
echo "lab-init: the driver ended with $?"
sync
echo o > /proc/sysrq-trigger
# The kernel powers off on its own time; PID 1 must not end before.
while :; do sleep 1; done
