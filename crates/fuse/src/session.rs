//! A served mount: the handshake, the serving threads and their end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use zerocopy::IntoBytes;

use crate::abi::{self, InitIn, InitOut};
use crate::capabilities::KernelConfig;
use crate::connection::Connection;
use crate::device::Device;
use crate::dispatch::{After, dispatch, dispatch_left};
use crate::handover::{self, Area, Handover};
use crate::request::{Operation, parse};
use crate::{Errno, Filesystem};

/// What names of serving threads begin with; their number follows.
pub const THREAD_NAME: &str = "fuse-serve-";

/// Serving threads at most: each has a buffer for the largest request.
const THREADS_MAX: usize = 64;

/// The descriptors of a mount.
#[derive(Debug)]
pub struct Mount {
    /// The device that it was made with.
    pub device: OwnedFd,
    /// More of the same connection that live as long as the mount: made by [`clone_of`]. Without
    /// any a session makes its own.
    pub clones: Vec<OwnedFd>,
    /// What outlives a daemon, made by [`crate::handover::create`], if the mount is to go on when
    /// this process dies. The descriptors must live on elsewhere: the kernel ends the requests that
    /// were read from one that is closed everywhere.
    pub memory: Option<OwnedFd>,
    /// Answer with EIO what an earlier daemon has left: several have died of it.
    pub gives_up: bool,
}

impl From<OwnedFd> for Mount {
    fn from(device: OwnedFd) -> Mount {
        Mount { device, clones: Vec::new(), memory: None, gives_up: false }
    }
}

/// One more descriptor of the connection of a device, to read from at the same time.
///
/// # Errors
/// /dev/fuse cannot be opened here, such as in a sandbox, or belongs to another user name space.
pub fn clone_of(device: &OwnedFd) -> io::Result<OwnedFd> {
    Device::new(device.try_clone()?).try_clone().map(Device::into_inner)
}

/// A file system and the device of its mount, after the handshake.
pub struct Session<F: Filesystem> {
    filesystem: F,
    device: Device,
    clones: Vec<Device>,
    threads: usize,
    buffer_bytes: usize,
    handover: Option<Handover>,
    gives_up: bool,
}

impl<F: Filesystem> Session<F> {
    /// Does the handshake on a mount that was made, to be served by `threads` threads, 1 to 64, or
    /// 8 if it has a memory. Waits until the kernel asks for it, which it does as soon as it has
    /// mounted. With the memory of an earlier daemon it takes over what that has agreed on.
    ///
    /// # Errors
    /// The mount is gone, the kernel is older than Linux 5.4, the file system does not want to
    /// serve it, or the memory is that of another version.
    pub fn new(filesystem: F, mount: Mount, threads: usize) -> io::Result<Session<F>> {
        let (mut filesystem, device) = (filesystem, Device::new(mount.device));
        let mut handover = mount.memory.as_ref().map(Handover::map).transpose()?;
        let buffer_bytes = handshake(&mut filesystem, &device, handover.as_mut())?;
        let handover = handover.map(|(memory, _)| memory);
        let most = if handover.is_some() { handover::THREADS_MAX } else { THREADS_MAX };
        let clones = mount.clones.into_iter().map(Device::new).collect();
        Ok(Session {
            filesystem,
            device,
            clones,
            threads: threads.clamp(1, most),
            buffer_bytes,
            handover,
            gives_up: mount.gives_up,
        })
    }

    /// Serves until the mount is gone, with threads of its own. First answers what an earlier
    /// daemon has left.
    ///
    /// # Errors
    /// The device cannot be read, a thread cannot be started or panicked. The others may have
    /// served on until the mount was gone.
    pub fn run(self) -> io::Result<()> {
        let Session { filesystem, device, clones, threads, buffer_bytes, handover, gives_up } = self;
        // The first one goes last, so that threads without a descriptor of their own share it.
        let mut devices = clones;
        if handover.is_none() {
            devices.extend((1..threads).map_while(|_| device.try_clone().ok()));
        }
        devices.push(device);
        let shared = devices.len() - 1;
        // Those with what the last daemon has left are not among the areas.
        let left = handover.as_ref().map_or_else(Vec::new, Handover::left);
        let area = || handover.as_ref().and_then(Handover::take_area).unwrap_or_else(|| Area::own(buffer_bytes));
        let areas: Vec<Area> = (0..threads).map(|_| area()).collect();
        let connection = Arc::new(Connection::new(devices, handover));
        let filesystem = Arc::new(filesystem);
        let watching = {
            let connection = connection.clone();
            let watch = move || connection.watch.run(|| connection.look());
            thread::Builder::new().name("fuse-watch".into()).spawn(watch)?
        };
        let is_over = left.iter().any(|left| dispatch_left(&*filesystem, &connection, left, gives_up) == After::Ends);
        let mut serving = Vec::with_capacity(threads);
        let mut outcome = Ok(());
        for (index, area) in areas.into_iter().take(if is_over { 0 } else { threads }).enumerate() {
            let (filesystem, connection) = (filesystem.clone(), connection.clone());
            let serve = move || serve(&*filesystem, &connection, index.min(shared), area);
            match thread::Builder::new().name(format!("{THREAD_NAME}{index}")).spawn(serve) {
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
fn serve<F: Filesystem>(filesystem: &F, connection: &Arc<Connection>, device: usize, mut area: Area) -> io::Result<()> {
    loop {
        connection.begins(&mut area, device);
        let Some(length) = connection.device(device).receive(area.bytes())? else { return Ok(()) };
        let read = (device, area.index());
        if dispatch(filesystem, connection, read, &area.bytes()[..length]) == After::Ends {
            return Ok(());
        }
        area = connection.next_area(area, length, device);
    }
}

/// Agrees with the kernel on version and capabilities, unless an earlier daemon has; the bytes of
/// the buffer that its requests need.
fn handshake<F: Filesystem>(
    filesystem: &mut F,
    device: &Device,
    handover: Option<&mut (Handover, Area)>,
) -> io::Result<usize> {
    let Some((memory, area)) = handover else {
        let mut area = Area::own(abi::READ_BUFFER_BYTES_MIN);
        let (unique, init) = receive_init(device, &mut area)?;
        return Ok(agree(filesystem, device, unique, &init)?.1);
    };
    let bytes = match memory.agreed() {
        Some(answer) => {
            let mut config = KernelConfig::agreed(&answer);
            filesystem.init(&mut config)?;
            KernelConfig::agreed(&answer).buffer_bytes()
        }
        None => {
            let (unique, init) = match memory.init(area) {
                Some(init) => init,
                None => receive_init(device, area)?,
            };
            memory.keep_init(unique, &init);
            let (answer, bytes) = agree(filesystem, device, unique, &init)?;
            memory.agree(&answer);
            bytes
        }
    };
    if area.bytes().len() < bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "requests of this file system are too large"));
    }
    Ok(bytes)
}

/// The number of INIT, and what the kernel offers.
fn receive_init(device: &Device, area: &mut Area) -> io::Result<(u64, InitIn)> {
    loop {
        area.clear();
        let length = device.receive(area.bytes())?.ok_or(io::ErrorKind::NotConnected)?;
        let Some(parsed) = parse(&area.bytes()[..length]) else { continue };
        let unique = parsed.request.unique();
        let refuse = |error: Errno| device.answer(unique, error.raw_os_error(), &[&[], &[]]);
        let Ok(Operation::Init(init)) = parsed.operation else {
            if parsed.is_answered() {
                refuse(Errno::IO);
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel did not begin with FUSE_INIT"));
        };
        if init.major > abi::VERSION {
            // It asks again with the version that it is answered.
            let version = InitOut { max_readahead: 0, max_write: 0, ..KernelConfig::new(&init).answer(1) };
            device.answer(unique, 0, &[version.as_bytes(), &[]]);
            continue;
        }
        if (init.major, init.minor) < (abi::VERSION, abi::MINOR_MIN) {
            refuse(Errno::PROTO);
            let told = format!("the kernel's FUSE version {}.{} is too old", init.major, init.minor);
            return Err(io::Error::new(io::ErrorKind::Unsupported, told));
        }
        return Ok((unique, init));
    }
}

/// Answers INIT; also returns the bytes of a buffer that every request fits into.
fn agree<F: Filesystem>(
    filesystem: &mut F,
    device: &Device,
    unique: u64,
    init: &InitIn,
) -> io::Result<(InitOut, usize)> {
    let mut config = KernelConfig::new(init);
    if let Err(error) = filesystem.init(&mut config) {
        let refusal = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        device.answer(unique, refusal.raw_os_error(), &[&[], &[]]);
        return Err(error);
    }
    let answer = config.answer(rustix::param::page_size());
    device.answer(unique, 0, &[answer.as_bytes(), &[]]);
    Ok((answer, config.buffer_bytes()))
}
