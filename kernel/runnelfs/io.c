// SPDX-License-Identifier: GPL-2.0
/*
 * Reading bytes of the image, from a block device or from a file.
 *
 * Parts of an image start at any byte, devices are read in sectors. So a device is read into room
 * that has a sector more at each end. What is read does not enter the page cache of the device:
 * it is needed once, and what it decodes to is kept in that of the files.
 */
#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/cred.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/overflow.h>
#include <linux/vmalloc.h>

#include "runnelfs.h"

/* Bytes of what the image lies in. */
u64 rnl_size(struct super_block *sb)
{
	struct file *file = rnl_info(sb)->file;

	return file ? i_size_read(file_inode(file)) : bdev_nr_bytes(sb->s_bdev);
}

/**
 * rnl_read_room() - bytes of memory that rnl_read() needs for @bytes
 * @sb: the mount
 * @bytes: what will be read
 *
 * Whole pages, so that kvmalloc() returns them at the start of a page.
 */
size_t rnl_read_room(struct super_block *sb, size_t bytes)
{
	size_t more = sb->s_bdev ? 2 * bdev_logical_block_size(sb->s_bdev) : 0;

	return PAGE_ALIGN(max_t(size_t, bytes, 1) + more);
}

static int read_device(struct block_device *bdev, u8 *room, u64 offset, size_t bytes)
{
	while (bytes) {
		unsigned int pages = min_t(size_t, DIV_ROUND_UP(bytes, PAGE_SIZE), BIO_MAX_VECS);
		struct bio *bio = bio_alloc(bdev, pages, REQ_OP_READ, GFP_NOIO);
		size_t done = 0;
		int error;

		bio->bi_iter.bi_sector = offset >> SECTOR_SHIFT;
		while (done < bytes && pages--) {
			u8 *at = room + done;
			struct page *page = is_vmalloc_addr(at) ? vmalloc_to_page(at) :
								  virt_to_page(at);
			unsigned int part = min_t(size_t, bytes - done, PAGE_SIZE);

			if (bio_add_page(bio, page, part, 0) != part)
				break;
			done += part;
		}
		error = done ? submit_bio_wait(bio) : -EIO;
		bio_put(bio);
		if (error)
			return error;
		if (is_vmalloc_addr(room))
			invalidate_kernel_vmap_range(room, done);
		room += done;
		offset += done;
		bytes -= done;
	}
	return 0;
}

static int read_file(struct file *file, u8 *room, u64 offset, size_t bytes)
{
	/* With the rights of who mounted, not of who reads. */
	const struct cred *old = override_creds(file->f_cred);
	loff_t at = offset;
	ssize_t part = 0;

	while (bytes) {
		part = kernel_read(file, room, bytes, &at);
		if (part <= 0)
			break;
		room += part;
		bytes -= part;
	}
	revert_creds(old);
	if (!bytes)
		return 0;
	return part < 0 ? part : -EIO;
}

/**
 * rnl_read() - reads bytes of the image
 * @sb: the mount
 * @room: memory of rnl_read_room() bytes
 * @offset: where they start in the image
 * @bytes: how many
 *
 * Return: where in @room they are, or an error.
 */
void *rnl_read(struct super_block *sb, void *room, u64 offset, size_t bytes)
{
	struct file *file = rnl_info(sb)->file;
	u64 start = offset, end;
	int error;

	if (check_add_overflow(offset, (u64)bytes, &end) || end > rnl_size(sb))
		return ERR_PTR(-EIO);
	if (file) {
		error = read_file(file, room, offset, bytes);
	} else {
		unsigned int sector = bdev_logical_block_size(sb->s_bdev);

		start = round_down(offset, sector);
		error = read_device(sb->s_bdev, room, start, round_up(end, sector) - start);
	}
	return error ? ERR_PTR(error) : room + (offset - start);
}
