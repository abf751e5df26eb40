//! Where a file lies on its disk: the ioctl FIEMAP (Documentation/filesystems/fiemap.rst of Linux).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Extents asked for at once; a file with more is asked again from where the answer ended.
const EXTENTS: usize = 128;

/// Extents taken of one file: a badly fragmented one is fetched in the order of its first extents.
const EXTENTS_MAX: usize = 4096;

/// `FIEMAP_EXTENT_LAST`: no extent follows.
const LAST: u32 = 1;
/// `FIEMAP_EXTENT_UNKNOWN`: the position on the disk is not known (yet).
const UNKNOWN: u32 = 2;

/// A run of bytes of a file and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskExtent {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the disk.
    pub physical: u64,
    /// Bytes.
    pub length: u64,
}

/// `struct fiemap_extent` of linux/fiemap.h.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` of linux/fiemap.h, with room for extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

const _: () = assert!(size_of::<Extent>() == 56 && std::mem::offset_of!(Request, extents) == 32);

/// Where the file lies, in the order of its bytes.
///
/// # Errors
/// The file system has no such ioctl (FUSE, NFS, tmpfs): the order on the disk is then unknown.
pub(crate) fn extents(file: &File) -> io::Result<Vec<DiskExtent>> {
    let mut found = Vec::new();
    let mut start = 0;
    while found.len() < EXTENTS_MAX {
        let mut request = Box::new(Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        });
        // SAFETY: the kernel writes at most `extent_count` extents behind the header, and `Request`
        // has room for as many.
        unsafe { ioctl(file, Fiemap(&mut request)) }?;
        let mapped = (request.mapped_extents as usize).min(EXTENTS);
        for extent in &request.extents[..mapped] {
            if extent.flags & UNKNOWN == 0 {
                found.push(DiskExtent { logical: extent.logical, physical: extent.physical, length: extent.length });
            }
        }
        let Some(last) = request.extents[..mapped].last() else { break };
        let end = last.logical.saturating_add(last.length);
        if last.flags & LAST != 0 || end <= start {
            break;
        }
        start = end;
    }
    Ok(found)
}

struct Fiemap<'a>(&'a mut Request);

// SAFETY: the opcode is FS_IOC_FIEMAP, which reads and writes one `struct fiemap` at the pointer
// given, and that is what `Request` is, laid out as in linux/fiemap.h.
unsafe impl Ioctl for Fiemap<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        // _IOWR('f', 11, struct fiemap); the size is that of the struct without extents.
        opcode::from_components(rustix::ioctl::Direction::ReadWrite, b'f', 11, std::mem::offset_of!(Request, extents))
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    // SAFETY: nothing is read from the pointer.
    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}
