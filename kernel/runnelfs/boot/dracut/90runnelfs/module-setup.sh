#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For dracut, which mounts the image itself (rootfstype=runnelfs): room for changes over it.

check() { return 255; } # Only when asked for: dracut --add runnelfs

depends() { echo rootfs-block; }

installkernel() { instmods runnelfs overlay; }

install()
{
	inst_multiple cat grep mkdir mount
	inst_simple /usr/share/runnelfs/mount-root.sh /lib/runnelfs-mount.sh
	inst_hook pre-pivot 10 "$moddir/add-changes.sh"
}
