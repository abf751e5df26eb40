//! Mounted volumes on the command line: their options, how they are opened, and the report at the
//! end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::mount::{MountError, UnmountReport, VolumeOptions};
use client::{Config, Session};
use connection::{Target, VolumeAt};
use stream::{Lost, Options, RemoteVolume, Room, Status, StorageKey};

use crate::command::caching::{CacheArgs, CachePlace};
use crate::{failure, progress};

/// Bytes of a volume's cache whose size is not given.
const CACHE_BYTES: u64 = 256 << 20;

/// Bytes of a folder for unsent changes whose size is not given.
const UNSENT_BYTES: u64 = 64 << 20;

/// Changes that are named one by one when a mount ends.
const NAMED_MAX: usize = 20;

/// How a volume is used.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Volumes")]
pub struct VolumeArgs {
    /// Memory for blocks of files
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Keep changes in this folder while the server is away (default size: 64m); without it they
    /// are lost when the mount ends
    #[arg(long, value_name = "DIR[,SIZE]")]
    unsent: Option<OsString>,

    /// See what other devices do to names and attributes after SECONDS at most; opening a file
    /// always asks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    names_ttl: f64,

    /// Let the server send BYTES a second at most (64k, 1m)
    #[arg(long, value_name = "BYTES/S", value_parser = size)]
    rate: Option<u64>,

    /// Read and write past the kernel's page cache, exactly what programs ask for
    #[arg(long)]
    direct: bool,

    /// Write to a volume of another machine over runnel://, though others on the way can read and
    /// change what is sent
    #[arg(long)]
    insecure: bool,

    /// The device cache.
    #[command(flatten)]
    pub caching: CacheArgs,
}

impl VolumeArgs {
    /// As the volume takes them. `read_only`: nothing will be changed. `key`: of what is kept.
    ///
    /// # Errors
    /// A value makes no sense.
    pub fn options(
        &self,
        at: &VolumeAt,
        config: &Config,
        read_only: bool,
        key: Option<&StorageKey>,
    ) -> anyhow::Result<Options> {
        let defaults = Options::default();
        Ok(Options {
            memory_bytes: self
                .memory
                .map_or(defaults.memory_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
            cache: self.cache(at)?,
            outbox: self.unsent.as_ref().map(|given| room(given, UNSENT_BYTES)).transpose()?,
            key: key.cloned(),
            names_ttl: self.half_ttl()?,
            waiting: config.waiting,
            open_deadline: config.connection.open_deadline,
            rate_limit: self.rate.unwrap_or(0),
            hints: config.connection.push,
            // Unsent changes in the folder are sent even by a read-only mount.
            insecure: self.insecure || (read_only && self.unsent.is_none()),
            ..defaults
        })
    }

    /// As the mount takes them.
    ///
    /// # Errors
    /// A value makes no sense.
    pub fn mount_options(&self, at: &VolumeAt, target: &str) -> anyhow::Result<VolumeOptions> {
        Ok(VolumeOptions {
            name: at.name.clone(),
            target: target.to_string(),
            names_ttl: self.half_ttl()?,
            direct: self.direct,
            ..VolumeOptions::default()
        })
    }

    /// The kernel believes the mount, and the mount the server: each for half of the time, so that
    /// the sum is what was asked for.
    fn half_ttl(&self) -> anyhow::Result<Duration> {
        let half =
            Duration::try_from_secs_f64(self.names_ttl / 2.0).ok().filter(|half| *half <= Duration::from_secs(86400));
        half.ok_or_else(|| failure::usage("--names-ttl is a number of seconds, 0 to 172800"))
    }

    /// The folders that a mount writes to. `images`: the device cache, if an image is mounted.
    ///
    /// # Errors
    /// A value makes no sense.
    pub fn folders(&self, images: &CachePlace) -> anyhow::Result<Vec<PathBuf>> {
        let unsent = self.unsent.as_ref().map(|given| room(given, UNSENT_BYTES)).transpose()?;
        let volumes = self.caching.given().0.map(std::path::absolute).transpose()?;
        Ok(images.folder.clone().into_iter().chain(volumes).chain(unsent.map(|room| room.folder)).collect())
    }

    /// Whether a folder is given that belongs to one volume.
    pub fn has_folder(&self) -> bool {
        self.unsent.is_some()
    }

    /// The folder for blocks of a volume, if one is given on the command line: below that of the
    /// device cache.
    fn cache(&self, at: &VolumeAt) -> std::io::Result<Option<Room>> {
        let (Some(folder), bytes) = self.caching.given() else { return Ok(None) };
        // A name has no colon, and neither has a path a slash then.
        let name = format!("{}:{}", at.server.to_string().replace('/', ""), at.name);
        let folder = std::path::absolute(folder)?.join("volumes").join(name);
        Ok(Some(Room { folder, bytes: bytes.unwrap_or(CACHE_BYTES) }))
    }
}

/// Opens a volume: over the session of an image if that is of the same server, else over a
/// connection of its own.
///
/// # Errors
/// No server, no such volume, a folder that cannot be used.
pub fn open(
    at: &VolumeAt,
    config: Config,
    options: Options,
    session: Option<&Session>,
) -> Result<Arc<RemoteVolume>, MountError> {
    match session {
        Some(session) => Ok(RemoteVolume::attached(session, &at.name, options)?),
        None => Ok(RemoteVolume::open(&at.server, config.connection, &at.name, options)?),
    }
}

/// Says on standard error what is unsent or lost. True if something is lost, or is neither on the
/// server nor kept: then the command fails.
pub fn tell_unsent(place: &Path, report: &UnmountReport) -> bool {
    let place = place.display();
    let pending = report.in_use && (report.unsent_transactions > 0 || report.unsent_bytes > 0);
    if report.in_use {
        tell!("note: programs still use {place}; what they write until they end is sent");
    }
    let (count, bytes) = (report.unsent_transactions, progress::human(report.unsent_bytes));
    if pending {
        tell!("error: {place}: {bytes} of changes are not on the server yet");
        tell!(
            "hint: end the programs that use {place}; what the server has not taken by then is lost without --unsent"
        );
    } else if report.unsent_transactions > 0 {
        let count = progress::counted(count, "change");
        tell!("note: {count} ({bytes}) stay in the folder of --unsent; mount with it again to send them");
    }
    if report.lost.is_empty() {
        return pending;
    }
    let changes = progress::counted(report.lost.len() as u64, "change");
    tell!("error: {place}: {changes} did not get to the server");
    let files = by_file(&report.lost);
    for lost in files.iter().take(NAMED_MAX) {
        tell!("  {}", described(lost));
    }
    if files.len() > NAMED_MAX {
        tell!("  and {} more", files.len() - NAMED_MAX);
    }
    true
}

/// One line about what was lost. The reason often begins with the path, which is not said twice.
fn described(lost: &Lost) -> String {
    let Lost { path, bytes, reason, kept_as } = lost;
    let reason = reason.strip_prefix(path.as_str()).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason);
    let bytes = match bytes {
        0 => "times or permission bits".to_owned(),
        bytes => progress::counted(*bytes, "byte"),
    };
    let kept = kept_as.as_ref();
    match kept {
        Some(file) => format!("{path}: {bytes} kept as {file}, but not sent: {reason}"),
        None => format!("{path}: {bytes} lost: {reason}"),
    }
}

/// Lost changes of one file for one reason, as one entry.
fn by_file(lost: &[Lost]) -> Vec<Lost> {
    let mut files: Vec<Lost> = Vec::new();
    for lost in lost {
        let same = |file: &&mut Lost| {
            (&file.path, &file.reason) == (&lost.path, &lost.reason) && file.kept_as.is_none() && lost.kept_as.is_none()
        };
        match files.iter_mut().find(same) {
            Some(file) => file.bytes += lost.bytes,
            None => files.push(lost.clone()),
        }
    }
    files
}

/// The counters of a volume, for `runnel status`.
pub fn rows(status: &Status) -> Vec<(&'static str, String)> {
    let bytes = |now: u64, most: u64| format!("{} of {}", progress::human(now), progress::human(most));
    let server = match status.connected {
        true => format!("connected ({} connections so far)", status.connections),
        false => format!("away: {}", status.reason),
    };
    let mut rows = vec![
        ("server", server),
        ("open files", status.handles.to_string()),
        ("blocks in memory", bytes(status.blocks.memory_bytes, status.blocks.memory_bytes_max)),
        ("blocks in the cache", bytes(status.blocks.disk_bytes, status.blocks.disk_bytes_max)),
        ("block reads", format!("{} from memory, {} from the cache", status.blocks.hits, status.blocks.disk_hits)),
        ("blocks asked for", status.blocks.blocks_asked.to_string()),
        ("blocks pushed", status.blocks.blocks_pushed.to_string()),
        ("  of these used", status.blocks.blocks_used.to_string()),
        ("  of these wasted", status.blocks.blocks_wasted.to_string()),
        ("received", progress::human(status.bytes_received)),
        ("committed", format!("{} transactions", status.committed)),
        ("unsent", bytes(status.unsent.unsent_bytes, status.unsent.unsent_bytes_max)),
        ("  of these stored", format!("{} transactions", status.unsent.stored_transactions)),
        ("lost", progress::counted(status.lost.len() as u64, "change")),
    ];
    rows.extend(by_file(&status.lost).iter().map(|lost| ("  of these", described(lost))));
    rows
}

/// A volume for a program: `runnel://host/volume/NAME=/path/inside`, with `:ro` at the end for
/// reading only.
#[derive(Clone, Debug)]
pub struct DataArg {
    /// Where it is.
    pub at: VolumeAt,
    /// As it was typed.
    pub target: String,
    /// Where the program sees it.
    pub inside: PathBuf,
    /// For reading only.
    pub read_only: bool,
}

impl DataArg {
    /// Parses what the user typed.
    ///
    /// # Errors
    /// The fault.
    pub fn parse(text: &OsStr) -> anyhow::Result<DataArg> {
        let wrong = || failure::usage("--data needs runnel://host/volume/NAME=/path/inside");
        let bytes = text.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let target = std::str::from_utf8(&bytes[..at]).map_err(|_| wrong())?.to_string();
        let inside = &bytes[at + 1..];
        let (inside, read_only) = inside.strip_suffix(b":ro").map_or((inside, false), |inside| (inside, true));
        let inside = PathBuf::from(OsStr::from_bytes(inside));
        if !inside.is_absolute() {
            return Err(wrong());
        }
        match Target::parse(&target)? {
            Target::Volume(at) => Ok(DataArg { at, target, inside, read_only }),
            _ => Err(wrong()),
        }
    }
}

/// `DIR` or `DIR,SIZE`. A name with commas needs a size behind it.
fn room(given: &OsStr, bytes: u64) -> anyhow::Result<Room> {
    let whole = given.as_bytes();
    let split = whole.iter().rposition(|byte| *byte == b',');
    let (folder, bytes) = match split.map(|at| (&whole[..at], std::str::from_utf8(&whole[at + 1..]))) {
        None => (whole, bytes),
        Some((folder, Ok(text))) => (folder, size(text).map_err(failure::usage)?),
        Some((_, Err(_))) => return Err(failure::usage("what follows the comma is a size such as 64m")),
    };
    if folder.is_empty() {
        return Err(failure::usage("the folder before the comma is missing"));
    }
    Ok(Room { folder: std::path::absolute(OsStr::from_bytes(folder))?, bytes })
}

/// A number of bytes: 65536, 64k, 16m or 1g.
///
/// # Errors
/// The text is none.
pub fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim_end_matches(['b', 'B', 'i']).to_ascii_lowercase();
    let units = [('k', 1 << 10), ('m', 1 << 20), ('g', 1u64 << 30)];
    let found = units.into_iter().find_map(|(letter, unit)| Some((lower.strip_suffix(letter)?, unit)));
    let (number, unit) = found.unwrap_or((&lower, 1));
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is no size such as 65536, 64k, 16m or 1g"))?;
    number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_with_sizes() {
        let parse = |text: &str| room(OsStr::new(text), 7).map(|room| (room.folder.display().to_string(), room.bytes));
        assert_eq!(parse("/a").expect("fits"), ("/a".into(), 7));
        assert_eq!(parse("/a,64k").expect("fits"), ("/a".into(), 65536));
        assert_eq!(parse("/a,b,2g").expect("fits"), ("/a,b".into(), 2 << 30));
        for wrong in ["/a,", "/a,b", "", ",5"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_lost_of_a_file_is_told_once_and_names_it_once() {
        let lost = |bytes, kept_as: Option<&str>| Lost {
            path: "a/b".into(),
            bytes,
            reason: "a/b: it was changed by somebody else".into(),
            kept_as: kept_as.map(str::to_owned),
        };
        let files = by_file(&[lost(1, None), lost(4, None), lost(9, Some("7"))]);
        let told: Vec<String> = files.iter().map(described).collect();
        let expected = [
            "a/b: 5 bytes lost: it was changed by somebody else",
            "a/b: 9 bytes kept as 7, but not sent: it was changed by somebody else",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("0", 0), ("1536", 1536), ("64k", 65536), ("16M", 16 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "k", "1.5m", "-1", "99999999999g"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn data_for_programs() {
        let parse = |text: &str| DataArg::parse(OsStr::new(text));
        let data = parse("runnel://h/volume/d=/srv/data").expect("fits");
        assert_eq!((data.at.name.as_str(), data.inside.to_str(), data.read_only), ("d", Some("/srv/data"), false));
        let data = parse("runnel://h/volume/d=/srv/a=b:ro").expect("fits");
        assert_eq!((data.inside.to_str(), data.read_only), (Some("/srv/a=b"), true));
        for wrong in ["runnel://h/volume/d", "runnel://h/app=/x", "runnel://h/volume/d=x", "/x=/y", "=/y"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
