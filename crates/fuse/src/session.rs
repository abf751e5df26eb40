//! A served mount: the handshake, the serving threads and their end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use zerocopy::IntoBytes;

use crate::abi::{self, InitOut};
use crate::capabilities::KernelConfig;
use crate::connection::Connection;
use crate::device::Device;
use crate::dispatch::{After, dispatch};
use crate::request::{Operation, parse};
use crate::{Errno, Filesystem};

/// Serving threads at most: each has a buffer for the largest request.
const THREADS_MAX: usize = 64;

/// A file system and the device of its mount, after the handshake.
pub struct Session<F: Filesystem> {
    filesystem: F,
    device: Device,
    threads: usize,
    buffer_bytes: usize,
}

impl<F: Filesystem> Session<F> {
    /// Does the handshake on the device of a mount that was made, to be served by `threads`
    /// threads, 1 to 64. Waits until the kernel asks for it, which it does as soon as it has
    /// mounted.
    ///
    /// # Errors
    /// The mount is gone, the kernel is older than Linux 5.4, or the file system does not want to
    /// serve it.
    pub fn new(filesystem: F, device: OwnedFd, threads: usize) -> io::Result<Session<F>> {
        let (mut filesystem, device) = (filesystem, Device::new(device));
        let buffer_bytes = handshake(&mut filesystem, &device)?;
        Ok(Session { filesystem, device, threads: threads.clamp(1, THREADS_MAX), buffer_bytes })
    }

    /// Serves until the mount is gone, with threads of its own.
    ///
    /// # Errors
    /// The device cannot be read, a thread cannot be started or panicked. The others may have
    /// served on until the mount was gone.
    pub fn run(self) -> io::Result<()> {
        let Session { filesystem, device, threads, buffer_bytes } = self;
        // The first one goes last, so that threads without a descriptor of their own share it.
        let mut devices: Vec<Device> = (1..threads).map_while(|_| device.try_clone().ok()).collect();
        devices.push(device);
        let shared = devices.len() - 1;
        let connection = Arc::new(Connection::new(devices));
        let filesystem = Arc::new(filesystem);
        let watching = {
            let connection = connection.clone();
            let watch = move || connection.watch.run(|| connection.look());
            thread::Builder::new().name("fuse-watch".into()).spawn(watch)?
        };
        let mut serving = Vec::with_capacity(threads);
        let mut outcome = Ok(());
        for index in 0..threads {
            let (filesystem, connection) = (filesystem.clone(), connection.clone());
            let serve = move || serve(&*filesystem, &connection, index.min(shared), buffer_bytes);
            match thread::Builder::new().name(format!("fuse-{index}")).spawn(serve) {
                Ok(thread) => serving.push(thread),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        for thread in serving {
            let served = thread.join().unwrap_or_else(|_| Err(io::Error::other("a serving thread panicked")));
            outcome = outcome.and(served);
        }
        connection.watch.end();
        outcome = outcome.and(watching.join().map_err(|_| io::Error::other("the watching thread panicked")));
        filesystem.destroy();
        outcome
    }
}

/// Answers requests of one descriptor until the mount is gone.
fn serve<F: Filesystem>(
    filesystem: &F,
    connection: &Arc<Connection>,
    index: usize,
    buffer_bytes: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    while let Some(length) = connection.device(index).receive(&mut buffer)? {
        if dispatch(filesystem, connection, index, &buffer[..length]) == After::Ends {
            break;
        }
    }
    Ok(())
}

/// Agrees with the kernel on version and capabilities; the bytes of the buffer that its requests
/// need.
fn handshake<F: Filesystem>(filesystem: &mut F, device: &Device) -> io::Result<usize> {
    let mut buffer = vec![0; abi::READ_BUFFER_BYTES_MIN];
    loop {
        let length = device.receive(&mut buffer)?.ok_or(io::ErrorKind::NotConnected)?;
        let Some(parsed) = parse(&buffer[..length]) else { continue };
        let refuse = |error: Errno| device.answer(parsed.request.unique(), error.raw_os_error(), &[&[], &[]]);
        let Ok(Operation::Init(init)) = parsed.operation else {
            if parsed.is_answered() {
                refuse(Errno::IO);
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel did not begin with FUSE_INIT"));
        };
        if init.major > abi::VERSION {
            // It asks again with the version that it is answered.
            let version = InitOut { max_readahead: 0, max_write: 0, ..KernelConfig::new(&init).answer(1) };
            device.answer(parsed.request.unique(), 0, &[version.as_bytes(), &[]]);
            continue;
        }
        if (init.major, init.minor) < (abi::VERSION, abi::MINOR_MIN) {
            refuse(Errno::PROTO);
            let told = format!("the kernel's FUSE version {}.{} is too old", init.major, init.minor);
            return Err(io::Error::new(io::ErrorKind::Unsupported, told));
        }
        let mut config = KernelConfig::new(&init);
        if let Err(error) = filesystem.init(&mut config) {
            refuse(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error));
            return Err(error);
        }
        let answer = config.answer(rustix::param::page_size());
        device.answer(parsed.request.unique(), 0, &[answer.as_bytes(), &[]]);
        return Ok(config.buffer_bytes());
    }
}
