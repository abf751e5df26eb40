//! The device: one descriptor of /dev/fuse.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Setter, opcode};
use zerocopy::IntoBytes;

use crate::Errno;
use crate::abi::OutHeader;

/// `FUSE_DEV_IOC_CLONE`: a descriptor of /dev/fuse becomes another one of the connection whose
/// descriptor is given.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// One descriptor of a connection. The kernel takes an answer only from the one that its request
/// was read from.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    pub fn new(descriptor: OwnedFd) -> Device {
        Device(descriptor)
    }

    /// Another one of the same connection, from which a second thread reads without waiting for the
    /// first.
    ///
    /// # Errors
    /// /dev/fuse cannot be opened here, such as in a sandbox, or belongs to another user name
    /// space.
    pub fn try_clone(&self) -> io::Result<Device> {
        let clone = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let source = self.0.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads a u32 behind the pointer and keeps nothing of it.
        unsafe { rustix::ioctl::ioctl(clone.as_fd(), Setter::<CLONE, u32>::new(source))? };
        Ok(Device(clone))
    }

    pub fn into_inner(self) -> OwnedFd {
        self.0
    }

    /// Waits for a request and reads it; its length in bytes, or `None` once the mount is gone.
    ///
    /// # Errors
    /// The device cannot be read.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                // A request that was interrupted before it was read, a signal, and a device that
                // does not wait.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                // The second one if the mount goes while a request is read.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers request `unique`: an error number, or 0 and the parts of the answer. Whether the
    /// kernel took it.
    pub fn answer(&self, unique: u64, error: i32, parts: &[&[u8]; 2]) -> bool {
        match self.send(unique, error, parts) {
            Ok(()) => true,
            // Nobody waits for it any more: it was read from another descriptor, or the connection
            // has been aborted.
            Err(Errno::NOENT) => false,
            Err(_) => {
                // Such as no memory for the pages. Without any answer the program would wait for
                // ever.
                if error == 0 {
                    let _ = self.send(unique, Errno::IO.raw_os_error(), &[&[], &[]]);
                }
                false
            }
        }
    }

    fn send(&self, unique: u64, error: i32, parts: &[&[u8]; 2]) -> Result<(), Errno> {
        let bytes = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let len = u32::try_from(bytes).map_err(|_| Errno::OVERFLOW)?;
        let header = OutHeader { len, error: -error, unique };
        let slices = [IoSlice::new(header.as_bytes()), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        // One write is one answer.
        rustix::io::writev(&self.0, &slices).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A pipe in place of the device: what the kernel would get is the header and the parts.
    #[test]
    fn an_answer_is_one_message_with_its_length() {
        let (mut reader, writer) = io::pipe().expect("pipe");
        let device = Device::new(writer.into());
        assert!(device.answer(7, 0, &[b"ab", b"cde"]));
        assert!(device.answer(9, 5, &[&[], &[]]));
        drop(device);
        let mut sent = Vec::new();
        reader.read_to_end(&mut sent).expect("read");
        assert_eq!(sent.len(), 21 + 16);
        assert_eq!(sent[..4], 21u32.as_bytes()[..]);
        assert_eq!(sent[4..16], *[0u32.as_bytes(), 7u64.as_bytes()].concat());
        assert_eq!(sent[16..21], *b"abcde");
        assert_eq!(sent[25..37], *[(-5i32).as_bytes(), 9u64.as_bytes()].concat());
    }

    #[test]
    fn what_is_no_device_cannot_be_cloned() {
        let file = std::fs::File::open("/dev/null").expect("open");
        let device = Device::new(file.into());
        assert!(device.try_clone().is_err());
        assert!(!device.answer(1, 0, &[b"x", b""]));
    }
}
