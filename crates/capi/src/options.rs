//! Options of a connection. The struct may grow: its first field is its size, as the program knows
//! it.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;

use connection::{Config, Identity, Trust};
use stream::{Options, Room, Waiting};

use crate::error::{Failure, call};
use crate::raw;

/// Bytes of a cache folder or a folder of unsent changes when nobody says.
const FOLDER_BYTES_DEFAULT: u64 = 64 << 20;

/// Time for a call when nobody says: as long as a person waits before trying something else.
const DEADLINE_MS_DEFAULT: u32 = 30_000;

/// How a volume is used. Fill it with runnel_options_init(&options, sizeof options) and change what
/// you like; zeros and NULLs are never nonsense. Strings are copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct runnel_options {
    /// Size of this struct as the program was compiled; set by runnel_options_init.
    pub size: usize,
    /// Bytes of data blocks that are kept in memory. Default 16 MiB.
    pub memory_bytes: u64,
    /// Bytes of changes in memory that the server has not got yet. Beyond half of it they are sent
    /// without a sync; beyond all of it writes wait for the server. Default 8 MiB.
    pub dirty_bytes: u64,
    /// A folder of this device for blocks that leave memory; they are there again after a restart.
    /// One volume and one process for each folder. Default NULL: none.
    pub cache_folder: *const c_char,
    /// Bytes in the cache folder. Default 64 MiB.
    pub cache_bytes: u64,
    /// A folder of this device for changes that the server has not got yet, while it is away. They
    /// are sent when the volume is connected again, after a restart too. One volume and one process
    /// for each folder. Default NULL: they stay in memory, and are lost with the process.
    pub unsent_folder: *const c_char,
    /// Bytes in that folder. Default 64 MiB.
    pub unsent_bytes: u64,
    /// Bytes per second that the server may send to this process. Default 0: as much as the link
    /// takes.
    pub rate_bytes_per_second: u64,
    /// Milliseconds that any call waits at most; runnel_set_deadline changes it later. Default
    /// 30000.
    pub deadline_ms: u32,
    /// Milliseconds after which calls fail while the server is away, though their deadline is
    /// later. Default 0: they wait until their deadline.
    pub away_ms: u32,
    /// Milliseconds that attributes and listings are believed without asking again; runnel_open
    /// asks always. Default 1000.
    pub names_ms: u32,
    /// 1: open a volume for writing over runnel:// to another machine, though others on the way can
    /// read and change what is sent. Default 0: that is EACCES.
    pub insecure: u32,
    /// For runnels://: a PEM file of authorities to trust. Default NULL: those of the system.
    pub authorities_file: *const c_char,
    /// For servers that ask who we are: a PEM file with our certificate, and one with its key.
    /// Default NULL: none.
    pub certificate_file: *const c_char,
    /// See certificate_file.
    pub key_file: *const c_char,
}

impl runnel_options {
    fn defaults() -> runnel_options {
        let ours = Options::default();
        runnel_options {
            size: size_of::<runnel_options>(),
            memory_bytes: ours.memory_bytes as u64,
            dirty_bytes: ours.dirty_bytes as u64,
            cache_folder: ptr::null(),
            cache_bytes: FOLDER_BYTES_DEFAULT,
            unsent_folder: ptr::null(),
            unsent_bytes: FOLDER_BYTES_DEFAULT,
            rate_bytes_per_second: 0,
            deadline_ms: DEADLINE_MS_DEFAULT,
            away_ms: 0,
            names_ms: ours.names_ttl.as_millis() as u32,
            insecure: 0,
            authorities_file: ptr::null(),
            certificate_file: ptr::null(),
            key_file: ptr::null(),
        }
    }
}

/// Sets every option to its default. size is sizeof(runnel_options) of the program, so that a later
/// library keeps off memory that it does not have.
///
/// Returns 0, or -1 with errno EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn runnel_options_init(options: *mut runnel_options, size: usize) -> c_int {
    call(-1, || {
        raw::check_place(options, "a runnel_options")?;
        let mut defaults = runnel_options::defaults();
        defaults.size = size;
        raw::put_sized(options, defaults, size).map(|()| 0)
    })
}

/// The same in Rust's terms.
pub(crate) struct Wanted {
    pub config: Config,
    pub options: Options,
    pub deadline_ms: u32,
}

/// Reads and checks options; NULL stands for the defaults.
///
/// # Errors
/// EINVAL, ENAMETOOLONG.
pub(crate) fn wanted(options: *const runnel_options) -> Result<Wanted, Failure> {
    let given = raw::get_sized(options, runnel_options::defaults(), "runnel_options")?;
    if given.insecure > 1 {
        return Err(Failure::new(libc::EINVAL, "options.insecure has to be 0 or 1; call runnel_options_init first"));
    }
    let ours = Options::default();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    let deadline = Duration::from_millis(given.deadline_ms.into());
    let options = Options {
        memory_bytes: saturated(or(given.memory_bytes, ours.memory_bytes as u64)),
        dirty_bytes: saturated(or(given.dirty_bytes, ours.dirty_bytes as u64)),
        cache: room(given.cache_folder, or(given.cache_bytes, FOLDER_BYTES_DEFAULT), "options.cache_folder")?,
        outbox: room(given.unsent_folder, or(given.unsent_bytes, FOLDER_BYTES_DEFAULT), "options.unsent_folder")?,
        names_ttl: Duration::from_millis(given.names_ms.into()),
        waiting: match given.away_ms {
            0 => Waiting::Hard,
            ms => Waiting::Soft(Duration::from_millis(ms.into())),
        },
        open_deadline: deadline,
        rate_limit: given.rate_bytes_per_second,
        insecure: given.insecure == 1,
        ..ours
    };
    let file = |text: *const c_char, what| if text.is_null() { Ok(None) } else { raw::path_of(text, what).map(Some) };
    let certificate = file(given.certificate_file, "options.certificate_file")?;
    let identity = match (certificate, file(given.key_file, "options.key_file")?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(Identity { certificate, key }),
        _ => return Err(Failure::new(libc::EINVAL, "a certificate needs its key, and a key its certificate")),
    };
    let authorities = file(given.authorities_file, "options.authorities_file")?;
    let trust = Trust { authorities, identity, ..Trust::default() };
    let config = Config { open_deadline: deadline, trust, ..Config::default() };
    Ok(Wanted { config, options, deadline_ms: given.deadline_ms })
}

fn room(folder: *const c_char, bytes: u64, what: &str) -> Result<Option<Room>, Failure> {
    if folder.is_null() {
        return Ok(None);
    }
    let folder: PathBuf = raw::path_of(folder, what)?;
    if folder.as_os_str().is_empty() {
        return Err(Failure::new(libc::EINVAL, format!("{what} is empty; NULL means none")));
    }
    Ok(Some(Room { folder, bytes }))
}

fn saturated(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
