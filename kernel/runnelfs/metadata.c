// SPDX-License-Identifier: GPL-2.0
/*
 * Opening an image: the superblock, then every section that a mount needs, each verified before it
 * is decoded. The chunk hashes, the largest part of the metadata, are not read: blocks are verified
 * by the block table.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "runnelfs.h"

/* Without RNL_FEATURE_BLOCK_HASHES; see record_bytes_of(). */
static const u8 record_bytes[RNL_TABLES] = {
	[RNL_INODES] = sizeof(struct rnl_disk_inode),
	[RNL_ENTRIES] = sizeof(struct rnl_disk_entry),
	[RNL_XATTR_SETS] = sizeof(struct rnl_disk_number),
	[RNL_XATTRS] = sizeof(struct rnl_disk_xattr),
	[RNL_EXTENTS] = sizeof(struct rnl_disk_extent),
	[RNL_CHUNKS] = sizeof(__le64),
	[RNL_BLOCKS] = sizeof(struct rnl_disk_block),
	[RNL_CHUNK_HASHES] = RNL_CHUNK_HASH_BYTES,
	[RNL_SHORTS] = sizeof(struct rnl_disk_short),
	[RNL_INTRODUCED] = sizeof(struct rnl_disk_number),
	[RNL_BY_POSITION] = sizeof(struct rnl_disk_number),
};

static int bad_bytes(struct fs_context *fc, const char *what, u32 kind)
{
	errorf(fc, "runnelfs: the image is damaged: %s of section %u", what, kind);
	return -EIO;
}

static u32 record_bytes_of(u32 kind, u32 features)
{
	if (kind == RNL_BLOCKS && features & RNL_FEATURE_BLOCK_HASHES)
		return sizeof(struct rnl_disk_block_sizes);
	return kind == RNL_BLOCK_HASHES ? RNL_HASH_BYTES : record_bytes[kind];
}

/* Kinds ascend in the file, except that the hashes of chunks come last, behind those of blocks. */
static u32 rank_of(u32 kind)
{
	if (kind == RNL_CHUNK_HASHES)
		return RNL_BLOCK_HASHES;
	return kind == RNL_DICTIONARIES || kind == RNL_BLOCK_HASHES ? kind - 1 : kind;
}

static int check_section(struct fs_context *fc, const struct rnl_disk_section *section,
			 u32 features)
{
	u32 kind = le32_to_cpu(section->kind);
	u64 stored = le64_to_cpu(section->stored_bytes), raw = le64_to_cpu(section->raw_bytes);
	bool is_derived = section->flags & RNL_SECTION_DERIVED;
	bool is_required = kind >= RNL_INODES && kind <= RNL_CHUNK_HASHES;

	if (section->flags & ~(RNL_SECTION_OPTIONAL | RNL_SECTION_DERIVED))
		return rnl_too_new(fc, "section flags", section->flags);
	if (section->reserved)
		return rnl_bad(fc, "a reserved byte of section", kind);
	if (is_derived != (kind == RNL_CHUNK_HASHES && features & RNL_FEATURE_DERIVED_HASHES))
		return rnl_bad(fc, "the derived flag of section", kind);
	is_required |= kind == RNL_DICTIONARIES && features & RNL_FEATURE_DICTIONARIES;
	is_required |= kind == RNL_BLOCK_HASHES && features & RNL_FEATURE_BLOCK_HASHES;
	if (!is_required) {
		if (section->flags & RNL_SECTION_OPTIONAL)
			return 0;
		return rnl_too_new(fc, "required section", kind);
	}
	if (section->flags & RNL_SECTION_OPTIONAL)
		return rnl_bad(fc, "the optional flag of section", kind);
	if (section->filter > (record_bytes[kind] ? rnl_last_filter(kind) : 0))
		return rnl_too_new(fc, "section filter", section->filter);
	if (section->codec >= RNL_CODECS)
		return rnl_too_new(fc, "section codec", section->codec);
	if (section->codec && !is_derived ? stored >= raw : stored != raw)
		return rnl_bad(fc, "the stored size of section", kind);
	if (section->codec && (is_derived || kind == RNL_BLOCK_HASHES))
		return rnl_bad(fc, "the codec of section", kind);
	return 0;
}

/* Checks the table of sections and puts the required ones into @found by kind. */
static int check_sections(struct fs_context *fc, const struct rnl_disk_super *super,
			  const struct rnl_disk_section **found)
{
	u64 end = le64_to_cpu(super->metadata_offset), file_bytes = le64_to_cpu(super->file_bytes);
	u32 count = le32_to_cpu(super->section_count), features = le32_to_cpu(super->features);
	u32 i, rank = 0;
	u64 raw = 0;
	int error;

	if (count > RNL_SECTIONS_MAX)
		return rnl_bad(fc, "the number of sections", count);
	for (i = 0; i < count; i++) {
		const struct rnl_disk_section *section = &super->sections[i];
		u32 kind = le32_to_cpu(section->kind);
		bool is_derived = section->flags & RNL_SECTION_DERIVED;
		u64 stored = le64_to_cpu(section->stored_bytes);

		if (rank_of(kind) <= rank)
			return rnl_bad(fc, "the order of section", i);
		rank = rank_of(kind);
		error = check_section(fc, section, features);
		if (error)
			return error;
		if (le64_to_cpu(section->offset) != (is_derived ? file_bytes : end))
			return rnl_bad(fc, "the offset of section", i);
		if (le64_to_cpu(section->raw_bytes) > RNL_METADATA_BYTES_MAX ||
		    stored > RNL_METADATA_BYTES_MAX)
			return rnl_bad(fc, "the size of section", i);
		end += is_derived ? 0 : stored;
		raw += le64_to_cpu(section->raw_bytes);
		if (kind < RNL_KINDS && !(section->flags & RNL_SECTION_OPTIONAL))
			found[kind] = section;
	}
	if (end != file_bytes)
		return rnl_bad(fc, "the end of the last of sections", count);
	if (raw > RNL_METADATA_BYTES_MAX)
		return rnl_bad(fc, "the size of all sections", count);
	if (memchr_inv(&super->sections[count], 0,
		       (RNL_SECTIONS_MAX - count) * sizeof(*super->sections)))
		return rnl_bad(fc, "the unused sections behind", count);
	for (i = RNL_INODES; i <= RNL_CHUNK_HASHES; i++)
		if (!found[i])
			return rnl_bad(fc, "there is no section", i);
	if (!found[RNL_DICTIONARIES] != !(features & RNL_FEATURE_DICTIONARIES) ||
	    !found[RNL_BLOCK_HASHES] != !(features & RNL_FEATURE_BLOCK_HASHES))
		return rnl_bad(fc, "a section is missing, or is not announced, features", features);
	if (features & RNL_FEATURE_BLOCK_HASHES && features & RNL_FEATURE_DERIVED_HASHES)
		return rnl_bad(fc, "the features, which exclude one another,", features);
	return 0;
}

/* Checks that the counts of records are within the limits and agree with their sections. */
static int check_counts(struct fs_context *fc, const struct rnl_disk_super *super,
			const struct rnl_disk_section **found)
{
	const struct {
		u32 kind;
		__le32 count;
		u32 count_max;
	} counts[] = {
		{ RNL_INODES, super->inode_count, RNL_INODES_MAX },
		{ RNL_ENTRIES, super->entry_count, RNL_ENTRIES_MAX },
		{ RNL_EXTENTS, super->extent_count, RNL_HOLE },
		{ RNL_CHUNKS, super->chunk_count, RNL_CHUNKS_MAX },
		{ RNL_CHUNK_HASHES, super->chunk_count, RNL_CHUNKS_MAX },
		{ RNL_BLOCKS, super->block_count, RNL_BLOCKS_MAX },
		{ RNL_BLOCK_HASHES, super->block_count, RNL_BLOCKS_MAX },
	};
	u32 features = le32_to_cpu(super->features);
	size_t i;

	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		u32 kind = counts[i].kind, count = le32_to_cpu(counts[i].count);
		u64 bytes = (u64)count * record_bytes_of(kind, features);

		if (found[kind] && (count > counts[i].count_max ||
				    le64_to_cpu(found[kind]->raw_bytes) != bytes))
			return rnl_bad(fc, "the number of records of section", kind);
	}
	if (le64_to_cpu(found[RNL_XATTR_SETS]->raw_bytes) % record_bytes[RNL_XATTR_SETS] ||
	    le64_to_cpu(found[RNL_XATTRS]->raw_bytes) % record_bytes[RNL_XATTRS])
		return rnl_bad(fc, "the size of section", RNL_XATTRS);
	if (le32_to_cpu(super->block_bytes) > RNL_BLOCK_BYTES_MAX)
		return rnl_bad(fc, "the size of a block", le32_to_cpu(super->block_bytes));
	return 0;
}

static int check_features(struct fs_context *fc, const struct rnl_disk_super *super)
{
	u32 features = le32_to_cpu(super->features);
	u32 hot_max = features & RNL_FEATURE_HOT ? le32_to_cpu(super->block_count) : 0;

	if (features & ~RNL_FEATURES_KNOWN)
		return rnl_too_new(fc, "features", features & ~RNL_FEATURES_KNOWN);
	if (features & RNL_FEATURE_DEFLATE ||
	    (features & RNL_FEATURE_DICTIONARIES && !RNL_HAS_DICTIONARIES)) {
		errorf(fc, "runnelfs: the image uses %s", features & RNL_FEATURE_DEFLATE ?
		       "recompression, which runnelfs has not" : "dictionaries, of Linux 6.12");
		return -EOPNOTSUPP;
	}
	if (super->chunk_shift < RNL_CHUNK_SHIFT_MIN || super->chunk_shift > RNL_CHUNK_SHIFT_MAX)
		return rnl_bad(fc, "the size of chunks, as a power of two,", super->chunk_shift);
	if (super->reserved_a || super->reserved_b ||
	    memchr_inv(super->reserved_c, 0, sizeof(super->reserved_c)))
		return rnl_bad(fc, "a reserved field of the superblock", 0);
	if (le32_to_cpu(super->hot_blocks) > hot_max)
		return rnl_bad(fc, "the number of hot blocks", le32_to_cpu(super->hot_blocks));
	return 0;
}

static int check_super(struct fs_context *fc, struct super_block *sb, struct rnl_disk_super *super,
		       const struct rnl_disk_section **found)
{
	struct rnl_info *info = rnl_info(sb);
	u64 start, bytes, file_bytes, there = rnl_size(sb);
	u8 check[RNL_HASH_BYTES], hash[RNL_HASH_BYTES];
	int error;

	if (memcmp(super->magic, RNL_MAGIC, sizeof(super->magic)))
		return invalf(fc, "runnelfs: this is no image");
	if (le16_to_cpu(super->version) > RNL_VERSION)
		return rnl_too_new(fc, "version", le16_to_cpu(super->version));
	rnl_hash((u8 *)super, sizeof(*super), info->id);
	memcpy(check, super->check, sizeof(check));
	memset(super->check, 0, sizeof(super->check));
	rnl_hash((u8 *)super, sizeof(*super), hash);
	if (memcmp(check, hash, sizeof(hash))) {
		errorf(fc, "runnelfs: the superblock is damaged");
		return -EIO;
	}
	if (info->is_wanted && memcmp(info->id, info->wanted, sizeof(info->id))) {
		errorf(fc, "runnelfs: this is image %32phN, not the one that id= names", info->id);
		return -EBADMSG;
	}
	if (le16_to_cpu(super->version) != RNL_VERSION)
		return rnl_bad(fc, "the version", le16_to_cpu(super->version));
	error = check_features(fc, super);
	if (error)
		return error;
	start = le64_to_cpu(super->metadata_offset);
	bytes = le64_to_cpu(super->metadata_bytes);
	file_bytes = le64_to_cpu(super->file_bytes);
	if (start < RNL_SUPER_BYTES || bytes > RNL_METADATA_BYTES_MAX || start > S64_MAX - bytes ||
	    start + bytes != file_bytes)
		return rnl_bad(fc, "the place of the metadata", 0);
	if (there < file_bytes) {
		errorf(fc, "runnelfs: the image is cut off: %llu of %llu bytes are there%s", there,
		       file_bytes, sb->s_bdev ? "; if this is a loop device, mount its file" : "");
		return -EIO;
	}
	error = check_sections(fc, super, found);
	if (error)
		return error;
	return check_counts(fc, super, found);
}

/* Reads, verifies and decodes a section into info->section. */
static int load_section(struct fs_context *fc, struct super_block *sb, struct rnl_decoder *decoder,
			const struct rnl_disk_section *section, u32 features)
{
	u64 offset = le64_to_cpu(section->offset);
	u32 stored_bytes = le64_to_cpu(section->stored_bytes);
	u32 raw_bytes = le64_to_cpu(section->raw_bytes);
	u32 kind = le32_to_cpu(section->kind);
	struct rnl_info *info = rnl_info(sb);
	void *room, *stored, *raw = NULL;
	u8 hash[RNL_HASH_BYTES];
	int error;

	room = rnl_alloc(rnl_read_room(sb, stored_bytes));
	if (!room)
		return -ENOMEM;
	stored = rnl_read(sb, room, offset, stored_bytes);
	error = PTR_ERR_OR_ZERO(stored);
	if (error) {
		errorf(fc, "runnelfs: section %u cannot be read (%d)", kind, error);
		goto out;
	}
	rnl_hash(stored, stored_bytes, hash);
	if (memcmp(hash, section->hash, sizeof(hash))) {
		error = bad_bytes(fc, "the hash", kind);
		goto out;
	}
	raw = rnl_alloc(raw_bytes);
	if (!raw || rnl_codec_prepare(decoder, section->codec)) {
		error = -ENOMEM;
		goto out;
	}
	if (!rnl_decode(decoder, section->codec, NULL, stored, stored_bytes, raw, raw_bytes)) {
		error = bad_bytes(fc, "the compression", kind);
		goto out;
	}
	if (section->filter) {
		u32 width = record_bytes_of(kind, features);
		void *records = rnl_records(kind, section->filter, raw, width, raw_bytes / width);

		kvfree(raw);
		raw = records;
		if (!raw)
			error = -ENOMEM;
	}
	info->section[kind] = raw;
	info->section_bytes[kind] = raw_bytes;
	raw = NULL;
out:
	kvfree(raw);
	kvfree(room);
	return error;
}

static void set_tables(struct rnl_info *info, const struct rnl_disk_super *super)
{
	struct rnl_column *columns = info->columns;

	info->file_bytes = le64_to_cpu(super->file_bytes);
	info->features = le32_to_cpu(super->features);
	info->chunk_shift = super->chunk_shift;
	info->block_bytes = le32_to_cpu(super->block_bytes);
	info->hot_blocks = le32_to_cpu(super->hot_blocks);
	info->inode_count = le32_to_cpu(super->inode_count);
	info->entry_count = le32_to_cpu(super->entry_count);
	info->extent_count = le32_to_cpu(super->extent_count);
	info->chunk_count = le32_to_cpu(super->chunk_count);
	info->block_count = le32_to_cpu(super->block_count);
	info->set_count = columns[RNL_SET_FIRST].count;
	info->xattr_count = columns[RNL_XATTR_NAME].count;
	columns[RNL_INODE_ENTRY_FIRST].end = info->entry_count;
	columns[RNL_INODE_EXTENT_FIRST].end = info->extent_count;
	columns[RNL_ENTRY_NAME].end = info->section_bytes[RNL_NAMES];
	columns[RNL_SET_FIRST].end = info->xattr_count;
	columns[RNL_XATTR_NAME].end = info->section_bytes[RNL_XATTR_BYTES];
	info->names = info->section[RNL_NAMES];
	info->targets = info->section[RNL_TARGETS];
	info->xattr_bytes = info->section[RNL_XATTR_BYTES];
}

/* A count, so many lengths, and the dictionaries back to back. */
static int load_dictionaries(struct fs_context *fc, struct rnl_info *info)
{
	const u8 *bytes = info->section[RNL_DICTIONARIES];
	u32 size = info->section_bytes[RNL_DICTIONARIES], count, i, at;

	if (!bytes)
		return 0;
	count = size >= 4 ? get_unaligned_le32(bytes) : 0;
	if (!count || count > RNL_DICTIONARIES_MAX || size / 4 < count + 1)
		return rnl_bad(fc, "the number of dictionaries", count);
	info->dictionaries = kcalloc(count, sizeof(void *), GFP_KERNEL);
	if (!info->dictionaries)
		return -ENOMEM;
	at = 4 * (count + 1);
	for (i = 0; i < count; i++) {
		u32 length = get_unaligned_le32(bytes + 4 * (i + 1));
		void *dictionary;

		if (length < RNL_DICTIONARY_BYTES_MIN || length > RNL_DICTIONARY_BYTES_MAX ||
		    length > size - at)
			return rnl_bad(fc, "the length of dictionary", i);
		dictionary = rnl_dictionary_new(bytes + at, length);
		if (dictionary == ERR_PTR(-ENOMEM))
			return -ENOMEM;
		if (IS_ERR(dictionary))
			return rnl_bad(fc, "the tables of dictionary", i);
		info->dictionaries[info->dictionary_count++] = dictionary;
		at += length;
	}
	if (at != size)
		return rnl_bad(fc, "the end of the dictionaries", count);
	return 0;
}

/*
 * Puts the places of blocks into the block table, so that all images have the same one. The sums
 * are bounded when the table is checked.
 */
static int join_blocks(struct rnl_info *info, u32 count)
{
	const struct rnl_disk_block_sizes *sizes = info->section[RNL_BLOCKS];
	u64 file_end = RNL_SUPER_BYTES, raw_end = 0;
	struct rnl_disk_block *blocks;
	u32 i;

	blocks = rnl_alloc(sizeof(*blocks) * (size_t)count);
	if (!blocks)
		return -ENOMEM;
	for (i = 0; i < count; i++) {
		blocks[i] = (struct rnl_disk_block){
			.file_offset = cpu_to_le64(file_end),
			.raw_start = cpu_to_le64(raw_end),
			.sizes = sizes[i],
		};
		file_end += le32_to_cpu(sizes[i].stored_bytes);
		raw_end += le32_to_cpu(sizes[i].raw_bytes);
	}
	kvfree(info->section[RNL_BLOCKS]);
	info->section[RNL_BLOCKS] = blocks;
	info->section_bytes[RNL_BLOCKS] = count * sizeof(*blocks);
	return 0;
}

/* Memory for @count records of a kind that no section has. NULL if there is none. */
void *rnl_table(struct rnl_info *info, u32 kind, u32 count)
{
	info->section_bytes[kind] = count * record_bytes[kind];
	info->section[kind] = rnl_alloc(info->section_bytes[kind]);
	return info->section[kind];
}

/* Puts columns in the place of records. Returns 0 or -ENOMEM. */
int rnl_pack(struct rnl_info *info, u32 kind)
{
	u32 width = record_bytes[kind];
	void *columns = rnl_columns(info, kind, info->section[kind], width,
				    info->section_bytes[kind] / width);

	if (!columns)
		return -ENOMEM;
	kvfree(info->section[kind]);
	info->section[kind] = columns;
	return 0;
}

/* Most chunks are full; the lengths of others are kept apart. */
static int pack_chunks(struct rnl_info *info)
{
	const __le64 *chunks = info->section[RNL_CHUNKS];
	u32 full = 1U << info->chunk_shift, count = 0, i;
	struct rnl_disk_short *at;
	int error;

	for (i = 0; i < info->chunk_count; i++)
		count += le64_to_cpu(chunks[i]) >> RNL_CHUNK_LENGTH_SHIFT != full;
	at = rnl_table(info, RNL_SHORTS, count);
	if (!at)
		return -ENOMEM;
	for (i = 0; i < info->chunk_count; i++) {
		u32 bytes = le64_to_cpu(chunks[i]) >> RNL_CHUNK_LENGTH_SHIFT;

		if (bytes != full)
			*at++ = (struct rnl_disk_short){ cpu_to_le32(i), cpu_to_le32(bytes) };
	}
	error = rnl_pack(info, RNL_SHORTS);
	return error ? error : rnl_pack(info, RNL_CHUNKS);
}

static int pack_blocks(struct rnl_info *info)
{
	const struct rnl_disk_block *blocks = info->section[RNL_BLOCKS];
	u8 (*hashes)[RNL_HASH_BYTES] = info->section[RNL_BLOCK_HASHES];
	u32 i;

	if (!hashes) {
		hashes = rnl_alloc(sizeof(*hashes) * (size_t)info->block_count);
		if (!hashes)
			return -ENOMEM;
		info->section[RNL_BLOCK_HASHES] = hashes;
		for (i = 0; i < info->block_count; i++)
			memcpy(hashes[i], blocks[i].hash, RNL_HASH_BYTES);
	}
	info->hashes = hashes;
	return rnl_pack(info, RNL_BLOCKS);
}

static int load_sections(struct fs_context *fc, struct super_block *sb,
			 const struct rnl_disk_super *super,
			 const struct rnl_disk_section **found)
{
	struct rnl_info *info = rnl_info(sb);
	struct rnl_decoder decoder = {};
	int error = 0;
	u32 kind;

	for (kind = RNL_INODES; kind < RNL_KINDS && !error; kind++) {
		if (!found[kind] || kind == RNL_CHUNK_HASHES)
			continue;
		error = load_section(fc, sb, &decoder, found[kind], le32_to_cpu(super->features));
		if (!error && record_bytes[kind] && kind != RNL_CHUNKS && kind != RNL_BLOCKS)
			error = rnl_pack(info, kind);
	}
	rnl_codec_free(&decoder);
	if (!error && found[RNL_BLOCK_HASHES])
		error = join_blocks(info, le32_to_cpu(super->block_count));
	if (error)
		return error;
	set_tables(info, super);
	error = load_dictionaries(fc, info);
	if (!error)
		error = pack_blocks(info);
	if (!error)
		error = rnl_check_data(fc, info, le64_to_cpu(super->metadata_offset));
	if (!error)
		error = pack_chunks(info);
	if (!error)
		error = rnl_check_tree(fc, info);
	return error ? error : rnl_check_files(fc, info);
}

/* Reads and checks everything but the blocks; what was allocated is freed by rnl_unload(). */
int rnl_load(struct fs_context *fc, struct super_block *sb)
{
	const struct rnl_disk_section *found[RNL_KINDS] = {};
	struct rnl_disk_super *super;
	void *room;
	int error;

	if (rnl_size(sb) < RNL_SUPER_BYTES)
		return invalf(fc, "runnelfs: this is no image, it is too short");
	room = kvmalloc(rnl_read_room(sb, RNL_SUPER_BYTES), GFP_KERNEL);
	if (!room)
		return -ENOMEM;
	super = rnl_read(sb, room, 0, RNL_SUPER_BYTES);
	if (IS_ERR(super)) {
		error = PTR_ERR(super);
		errorf(fc, "runnelfs: the superblock cannot be read (%d)", error);
	} else {
		error = check_super(fc, sb, super, found);
	}
	if (!error)
		error = load_sections(fc, sb, super, found);
	kvfree(room);
	return error;
}

void rnl_unload(struct rnl_info *info)
{
	u32 i;

	for (i = 0; i < info->dictionary_count; i++)
		rnl_dictionary_free(info->dictionaries[i]);
	kfree(info->dictionaries);
	for (i = 0; i < RNL_TABLES; i++)
		kvfree(info->section[i]);
}
