//! fs-verity: a file that the kernel lets nobody change, and of which it checks every page that it
//! reads from the disk (Documentation/filesystems/fsverity.rst).

#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, opcode};

/// `FS_IOC_ENABLE_VERITY`.
const ENABLE: Opcode = opcode::write::<EnableArgument>(b'f', 133);

/// `FS_IOC_MEASURE_VERITY`. Its number has the size of the header alone.
const MEASURE: Opcode = opcode::read_write::<DigestHeader>(b'f', 134);

/// The number of SHA-256 in both.
const ALGORITHM_SHA256: u16 = 1;

/// Bytes of a block of the tree of hashes.
const BLOCK_BYTES: u32 = 4096;

/// Longest digest of fs-verity: that of SHA-512.
const DIGEST_BYTES_MAX: usize = 64;

/// `struct fsverity_enable_arg`.
#[derive(Clone, Copy)]
#[repr(C)]
struct EnableArgument {
    version: u32,
    hash_algorithm: u32,
    block_bytes: u32,
    salt_bytes: u32,
    salt: u64,
    signature_bytes: u32,
    reserved: u32,
    signature: u64,
    more_reserved: [u64; 11],
}

/// `struct fsverity_digest` without the digest.
#[repr(C)]
struct DigestHeader {
    algorithm: u16,
    bytes: u16,
}

/// `struct fsverity_digest` with room for any digest.
#[repr(C)]
struct DigestArgument {
    header: DigestHeader,
    digest: [u8; DIGEST_BYTES_MAX],
}

/// What the kernel has measured of a sealed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// The digest by SHA-256. Blocks and salt are part of what it is made of.
    Sha256([u8; 32]),
    /// A digest by another algorithm, by its number.
    Other(u16),
}

/// Seals a file: from now on nobody can write to it, and each page that the kernel reads of it is
/// checked. Reads all of it. That it is sealed already is no error.
///
/// # Errors
/// The file system or the kernel has no fs-verity (`EOPNOTSUPP`, `ENOTTY`), the file system is
/// read-only (`EROFS`), or somebody has the file open for writing (`ETXTBSY`).
pub fn seal(file: &File) -> io::Result<()> {
    let argument = EnableArgument {
        version: 1,
        hash_algorithm: u32::from(ALGORITHM_SHA256),
        block_bytes: BLOCK_BYTES,
        salt_bytes: 0,
        salt: 0,
        signature_bytes: 0,
        reserved: 0,
        signature: 0,
        more_reserved: [0; 11],
    };
    // A signal interrupts the building of the tree, which then begins anew.
    let sealed = rustix::io::retry_on_intr(|| {
        // SAFETY: FS_IOC_ENABLE_VERITY reads a fsverity_enable_arg behind the pointer, whose own
        // pointers are null with lengths of zero, and keeps nothing of it.
        unsafe { rustix::ioctl::ioctl(file, Setter::<ENABLE, EnableArgument>::new(argument)) }
    });
    match sealed {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What the kernel compares the pages of a file with; `None` if it is not sealed, or cannot be.
///
/// # Errors
/// The kernel fails otherwise.
pub fn measure(file: &File) -> io::Result<Option<Measured>> {
    let header = DigestHeader { algorithm: 0, bytes: DIGEST_BYTES_MAX as u16 };
    let mut argument = DigestArgument { header, digest: [0; DIGEST_BYTES_MAX] };
    // SAFETY: FS_IOC_MEASURE_VERITY reads the header behind the pointer, and writes it and at most
    // as many bytes behind it as the header says, for which there is room.
    let measured = unsafe { rustix::ioctl::ioctl(file, Updater::<MEASURE, DigestArgument>::new(&mut argument)) };
    match measured {
        Ok(()) => {}
        Err(Errno::NODATA | Errno::NOTTY | Errno::OPNOTSUPP) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let digest = &argument.digest[..usize::from(argument.header.bytes).min(DIGEST_BYTES_MAX)];
    Ok(Some(match (argument.header.algorithm, <[u8; 32]>::try_from(digest)) {
        (ALGORITHM_SHA256, Ok(digest)) => Measured::Sha256(digest),
        (other, _) => Measured::Other(other),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_kernel() {
        assert_eq!((size_of::<EnableArgument>(), size_of::<DigestHeader>()), (128, 4));
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "arm"))]
        assert_eq!((ENABLE, MEASURE), (0x4080_6685, 0xc004_6686));
    }

    #[test]
    fn a_file_that_cannot_be_sealed_is_not() -> io::Result<()> {
        // Memory has no fs-verity.
        let path = std::path::Path::new("/dev/shm").join(format!("runnel-verity-{}", std::process::id()));
        let file = File::create_new(&path)?;
        std::fs::remove_file(&path)?;
        assert!(seal(&file).is_err());
        assert_eq!(measure(&file)?, None);
        Ok(())
    }
}
