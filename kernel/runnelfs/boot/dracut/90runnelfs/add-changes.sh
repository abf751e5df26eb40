#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
. /lib/runnelfs-mount.sh
if grep -q " $NEWROOT runnelfs " /proc/mounts && [ "$(runnelfs_option changes)" != no ]; then
	mkdir -p $runnelfs_base/image
	mount --bind "$NEWROOT" $runnelfs_base/image
	runnelfs_add_changes $runnelfs_base/image "$NEWROOT" || warn "the root takes no changes"
fi
