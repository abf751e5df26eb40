# SPDX-License-Identifier: GPL-2.0
# Mounts an image as the root of the system. For initial file systems, which source this.
#
# On the kernel's command line:
#   root=DEVICE rootfstype=runnelfs   the image is on this device
#   rootflags=id=HEX                  no other image than this one
#   runnel.image=PATH                 the image is this file, in the file system on the device
#                                     (not with dracut)
#   runnel.changes=SIZE               memory for changes, which are lost when the system ends;
#                                     as for tmpfs; no: the root is read-only [50%]

runnelfs_base=/run/runnelfs

# runnelfs_option NAME: its value on the kernel's command line
runnelfs_option()
{
	# shellcheck disable=SC2013
	for runnelfs_word in $(cat /proc/cmdline); do
		case $runnelfs_word in
		"runnel.$1="*) echo "${runnelfs_word#*=}" ;;
		esac
	done
}

# runnelfs_add_changes IMAGE TARGET: mounts a mounted image with room for changes over it
runnelfs_add_changes()
{
	runnelfs_changes=$(runnelfs_option changes)
	modprobe -q overlay || : # It may be built in.
	mkdir -p $runnelfs_base/changes &&
	mount -t tmpfs -o "mode=0755,size=${runnelfs_changes:-50%}" changes $runnelfs_base/changes &&
	mkdir $runnelfs_base/changes/upper $runnelfs_base/changes/work &&
	mount -t overlay \
		-o "lowerdir=$1,upperdir=$runnelfs_base/changes/upper,workdir=$runnelfs_base/changes/work" \
		runnelfs "$2"
}

# runnelfs_mount DEVICE FLAGS TARGET
runnelfs_mount()
{
	runnelfs_source=$1
	runnelfs_target=$3
	runnelfs_image=$(runnelfs_option image)
	modprobe -q runnelfs || :
	if [ -n "$runnelfs_image" ]; then
		mkdir -p $runnelfs_base/device
		runnelfs_mount_any "$1" $runnelfs_base/device || return 1
		runnelfs_source=$runnelfs_base/device/$runnelfs_image
	fi
	if [ "$(runnelfs_option changes)" != no ]; then
		runnelfs_target=$runnelfs_base/image
		mkdir -p $runnelfs_target
	fi
	# That of busybox makes a loop device of a file, which would lack the end of the image.
	runnelfs_tool=/usr/lib/runnelfs/mount
	[ -x $runnelfs_tool ] || runnelfs_tool=mount
	$runnelfs_tool -t runnelfs -o "ro${2:+,$2}" "$runnelfs_source" "$runnelfs_target" || return 1
	[ "$runnelfs_target" = "$3" ] || runnelfs_add_changes "$runnelfs_target" "$3"
}

# runnelfs_mount_any DEVICE TARGET: mounts a file system whose type nobody said
runnelfs_mount_any()
{
	for runnelfs_type in $(grep -v nodev /proc/filesystems) ext4 vfat exfat btrfs xfs f2fs; do
		mount -t "$runnelfs_type" -o ro "$1" "$2" 2>/dev/null && return 0
	done
	return 1
}
