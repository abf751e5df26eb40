//! A text of everything in an image's metadata: stable, one fact a line, made for golden tests and
//! for reading.
//!
//! Names are printed as they are if they are printable ASCII without space and backslash; all other
//! bytes as `\xNN`.

use crate::{Inode, Kind, Metadata, device_parts, format};
use std::fmt::{Result, Write};
use units::{BlockId, ChunkId, InodeId};

/// Writes the dump of `metadata` to `out`: superblock, sections, inodes with their first path,
/// extents, chunks, blocks.
///
/// # Errors
/// Only those of `out`.
pub fn dump(metadata: &Metadata, out: &mut dyn Write) -> Result {
    dump_superblock(metadata, out)?;
    for id in (1..=metadata.inode_count()).map(InodeId) {
        if let Some(inode) = metadata.inode(id) {
            dump_inode(metadata, &inode, out)?;
        }
    }
    for id in (0..metadata.chunk_count()).map(ChunkId) {
        let (Some(place), Some(hash)) = (metadata.chunk(id), metadata.chunk_hash(id)) else { continue };
        write!(out, "chunk {id} block {} offset {} bytes {} blake3 ", place.block, place.offset, place.bytes)?;
        hex(&hash, out)?;
        match metadata.chunk_owner(id) {
            Some(owner) => writeln!(out, " owner {owner}")?,
            None => writeln!(out)?,
        }
    }
    for id in (0..metadata.block_count()).map(BlockId) {
        let Some(block) = metadata.block(id) else { continue };
        let (at, stored, raw) = (block.file_offset, block.stored_bytes, block.raw_bytes);
        write!(out, "block {id} offset {at} stored {stored} raw {raw} {}", block.codec)?;
        if block.filter != crate::Filter::None {
            write!(out, " filter {}", block.filter.name())?;
        }
        if block.filter == crate::Filter::Deflate {
            write!(out, " expansion {}", block.expansion_bytes)?;
        }
        if let Some(index) = block.dictionary {
            write!(out, " dictionary {index}")?;
        }
        if id.0 < metadata.hot_blocks() {
            write!(out, " hot")?;
        }
        write!(out, " blake3 ")?;
        hex(&metadata.block_hash(id).unwrap_or_default(), out)?;
        writeln!(out)?;
    }
    Ok(())
}

fn dump_superblock(metadata: &Metadata, out: &mut dyn Write) -> Result {
    let superblock = metadata.superblock();
    writeln!(out, "image {}", superblock.id)?;
    writeln!(out, "version {}", superblock.version)?;
    writeln!(out, "file-bytes {}", superblock.file_bytes)?;
    writeln!(out, "metadata offset {} bytes {}", superblock.metadata_offset, superblock.metadata_bytes)?;
    writeln!(out, "chunk-bytes {}", superblock.chunk_bytes())?;
    writeln!(out, "block-bytes {}", superblock.block_bytes)?;
    if superblock.features != 0 {
        writeln!(out, "features {:#x}", superblock.features)?;
    }
    if superblock.hot_blocks != 0 {
        writeln!(out, "hot-blocks {}", superblock.hot_blocks)?;
    }
    for section in metadata.section_report() {
        let (name, codec) = (section.name(), section.codec_name());
        write!(out, "section {} {name} {codec} offset {}", section.kind, section.offset)?;
        write!(out, " stored {} raw {} blake3 ", section.stored_bytes, section.raw_bytes)?;
        hex(&section.hash, out)?;
        let filter = match section.filter {
            format::FILTER_COLUMNS => " columns",
            format::FILTER_DIFFERENCES => " differences",
            _ => "",
        };
        writeln!(out, "{filter}{}", if section.optional { " optional" } else { "" })?;
    }
    Ok(())
}

fn dump_inode(metadata: &Metadata, inode: &Inode, out: &mut dyn Write) -> Result {
    let id = inode.id();
    let (seconds, nanoseconds) = inode.mtime();
    write!(out, "inode {id} {}{:04o} {}:{}", inode.kind().letter(), inode.permissions(), inode.uid(), inode.gid())?;
    write!(out, " links {} mtime {seconds}.{nanoseconds:09} size {}", inode.nlink(), inode.size())?;
    if matches!(inode.kind(), Kind::Char | Kind::Block) {
        let (major, minor) = device_parts(inode.rdev());
        write!(out, " device {major}:{minor}")?;
    }
    out.write_char(' ')?;
    text(&metadata.path(id).unwrap_or_default(), out)?;
    if let Some(target) = metadata.symlink(id) {
        out.write_str(" -> ")?;
        text(target, out)?;
    }
    writeln!(out)?;
    for (name, value) in metadata.xattrs(id) {
        out.write_str("  xattr ")?;
        text(name, out)?;
        out.write_char('=')?;
        text(value, out)?;
        writeln!(out)?;
    }
    for run in metadata.extents(id) {
        match run.chunk {
            Some(chunk) => writeln!(out, "  extent {} chunks {} from {chunk}", run.file_chunk, run.chunks)?,
            None => writeln!(out, "  extent {} hole {}", run.file_chunk, run.chunks)?,
        }
    }
    for entry in metadata.entries(id) {
        out.write_str("  entry ")?;
        text(entry.name, out)?;
        writeln!(out, " inode {}", entry.inode)?;
    }
    Ok(())
}

fn text(bytes: &[u8], out: &mut dyn Write) -> Result {
    bytes.iter().try_for_each(|&byte| match byte {
        b'\\' => out.write_str("\\x5c"),
        byte if byte.is_ascii_graphic() => out.write_char(byte.into()),
        byte => write!(out, "\\x{byte:02x}"),
    })
}

fn hex(bytes: &[u8], out: &mut dyn Write) -> Result {
    bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
}
