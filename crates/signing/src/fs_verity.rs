//! The digest that Linux's fs-verity has of a file: SHA-256, blocks of 4096 bytes, no salt.
//!
//! fs-verity hashes each block of a file, and blocks of these hashes, level by level, until one
//! hash is left. The digest is the hash of a descriptor with that root and the length of the file
//! (`struct fsverity_descriptor`, Documentation/filesystems/fsverity.rst). Who signs the digest
//! signs what the kernel compares with every page that it reads of a sealed file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, SHA256, digest};

use crate::key::hex;

/// Bytes of a block, of data and of hashes.
const BLOCK_BYTES: usize = 4096;

/// The binary logarithm of [`BLOCK_BYTES`].
const BLOCK_SHIFT: u8 = 12;

/// Bytes of a SHA-256.
const HASH_BYTES: usize = 32;

/// Bytes of the descriptor.
const DESCRIPTOR_BYTES: usize = 256;

/// Where the length of the file stands in the descriptor, and where the root.
const LENGTH_AT: usize = 8;
const ROOT_AT: usize = 16;

/// What the descriptor begins with: its version, and the number of SHA-256.
const VERSION: u8 = 1;
const ALGORITHM_SHA256: u8 = 1;

/// The digest of a file as hexadecimal digits, as `fsverity digest FILE` shows it.
///
/// # Errors
/// The file cannot be read.
pub fn fs_verity_of(file: &Path) -> io::Result<String> {
    Ok(hex(&fs_verity(File::open(file)?)?))
}

/// The digest of all that `contents` gives. Needs memory for one hash in 128 bytes of it.
fn fs_verity(mut contents: impl Read) -> io::Result<[u8; HASH_BYTES]> {
    let (mut hashes, mut bytes) = (Vec::new(), 0);
    let mut block = [0; BLOCK_BYTES];
    loop {
        let length = fill(&mut contents, &mut block)?;
        if length > 0 {
            bytes += length as u64;
            hashes.extend_from_slice(&hash_block(&block[..length]));
        }
        if length < BLOCK_BYTES {
            break;
        }
    }
    while hashes.len() > HASH_BYTES {
        hashes = hashes.chunks(BLOCK_BYTES).flat_map(hash_block).collect();
    }
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    descriptor[..3].copy_from_slice(&[VERSION, ALGORITHM_SHA256, BLOCK_SHIFT]);
    descriptor[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&bytes.to_le_bytes());
    // An empty file has no hash, and zeros in its place.
    descriptor[ROOT_AT..ROOT_AT + hashes.len()].copy_from_slice(&hashes);
    Ok(array(digest(&SHA256, &descriptor)))
}

/// The hash of a block; one that is cut counts as filled with zeros.
fn hash_block(block: &[u8]) -> [u8; HASH_BYTES] {
    let mut context = Context::new(&SHA256);
    context.update(block);
    context.update(&[0; BLOCK_BYTES][block.len()..]);
    array(context.finish())
}

fn array(hash: ring::digest::Digest) -> [u8; HASH_BYTES] {
    let mut bytes = [0; HASH_BYTES];
    bytes.copy_from_slice(hash.as_ref());
    bytes
}

/// Reads until the buffer is full or the end is reached; returns how much that is.
fn fill(contents: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match contents.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Bytes that differ from block to block.
    fn contents(bytes: usize) -> Vec<u8> {
        (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    fn of(bytes: usize) -> String {
        hex(&fs_verity(&contents(bytes)[..]).expect("memory is read"))
    }

    /// What `fsverity digest` of Debian's fsverity 1.5 says: of nothing, a part of a block, a block
    /// and a byte around it, as many blocks as a block has hashes, one more, and three levels.
    const VECTORS: &[(usize, &str)] = &[
        (0, "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95"),
        (1, "b803429503d95915829b29fdbc8bbad142f3abfd11b1cadf5526582e685c0551"),
        (4095, "956ea0b84f7e7eef7459dff1fab1e1b63afa1218cafd912edc74a4920f3a4b1c"),
        (4096, "62ea1e9d76372bc1108c156dcc3c9620ef5f8fcf7e44a5360be670345571c2d6"),
        (4097, "eb4a46a1cf3ab001929d0d7441e891b8bc4d1806dd6f9a1e65f4aecdd096bafc"),
        (524288, "c4ef1dc07cbb706be2351a9450f5b3385aafe6d4f65929e0ff15fc8994925940"),
        (524289, "ec6c483e9da35c36a7c87f0f25d7fbbdb4c319edf2414d8739884ed3fd7b5988"),
        (67108865, "26508f5896bbf688df5e735ab7e33b6f928976359a4ab26041d5362615afb027"),
    ];

    #[test]
    fn digests_are_those_of_the_reference() {
        for (bytes, expected) in VECTORS {
            assert_eq!(of(*bytes), *expected, "{bytes} bytes");
        }
    }

    #[test]
    fn ref_digests_are_those_of_the_installed_program() {
        if Command::new("fsverity").arg("--version").output().is_err() {
            eprintln!("skipped: no fsverity; apt-get install fsverity");
            return;
        }
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("file");
        for (bytes, _) in VECTORS {
            std::fs::write(&file, contents(*bytes)).expect("written");
            let output = Command::new("fsverity").args(["digest", "--compact"]).arg(&file).output().expect("runs");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.trim(), fs_verity_of(&file).expect("read"), "{bytes} bytes");
        }
    }

    #[test]
    fn every_byte_and_the_length_count() {
        let mut bytes = contents(3 * BLOCK_BYTES);
        let before = fs_verity(&bytes[..]).expect("read");
        for at in [0, BLOCK_BYTES - 1, BLOCK_BYTES, bytes.len() - 1] {
            bytes[at] ^= 1;
            assert_ne!(fs_verity(&bytes[..]).expect("read"), before, "byte {at}");
            bytes[at] ^= 1;
        }
        // The same blocks, since a cut one is filled with zeros.
        let mut cut = contents(BLOCK_BYTES - 1);
        let shorter = fs_verity(&cut[..]).expect("read");
        cut.push(0);
        assert_ne!(fs_verity(&cut[..]).expect("read"), shorter);
    }
}
