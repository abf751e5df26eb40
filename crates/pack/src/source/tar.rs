//! Tar archives as a source, and as the layers of a container image.
//!
//! Formats: v7, ustar, GNU (long names, sparse files, binary numbers), PAX (all of that, extended
//! attributes as `SCHILY.xattr.*`, times to the nanosecond). Every path is followed within the tree
//! being built: leading slashes and `..` stop at its root, and so do symlinks, so nothing can be
//! placed outside.

use std::io;

use super::archive::Archive;
use super::header::{Extension, Header, PATH_BYTES_MAX, RECORD_BYTES, STRETCHES_MAX, decimal, stretches};
use crate::content::{Content, Stretch};
use crate::notes::Notes;
use crate::spool::{CopyError, Spool};
use crate::tree::{Attributes, Body, Device, Node, Tree, components, split_last};
use crate::{PackError, Phase, Progress};

/// Bytes of the extension records before one entry that we accept: names and extended attributes of
/// any real file fit in a few hundred KiB.
const EXTENSION_BYTES_MAX: u64 = 16 << 20;

/// Prefix of the names that hide entries of lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// Name that hides everything lower layers put into its directory.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of names that belong to the layering file system itself and mean nothing here.
const LAYERING: &[u8] = b".wh..wh.";

/// How an archive is to be read into a tree.
pub(crate) struct Reading<'a> {
    /// The archive's name in messages.
    pub(crate) name: &'a str,
    /// Whether names beginning with `.wh.` hide entries of lower layers.
    pub(crate) whiteouts: bool,
    pub(crate) spool: &'a mut Spool,
    pub(crate) notes: &'a mut Notes,
    pub(crate) progress: &'a dyn Progress,
}

/// Reads a whole archive into `tree`, on top of what is there. Returns the number of entries.
pub(crate) fn read(archive: &mut Archive<'_>, tree: &mut Tree, reading: &mut Reading<'_>) -> Result<u64, PackError> {
    reading.progress.phase(Phase::Scan, 0);
    let mut entries = 0;
    let mut global = Extension::default();
    let mut local: Option<Extension> = None;
    loop {
        let offset = archive.position();
        let step = next(archive, tree, reading, &mut global, &mut local);
        match step.map_err(|problem| problem.at(reading.name, offset))? {
            Step::Entry => {
                entries += 1;
                reading.progress.advance(1);
            }
            Step::Extension => {}
            Step::End { marked } => {
                if !marked && entries > 0 {
                    reading.notes.add(format!("{}: the archive has no end marker", reading.name));
                }
                break;
            }
        }
    }
    let end = archive.position();
    archive.drain().map_err(|error| Problem::from(error).at(reading.name, end))?;
    Ok(entries)
}

enum Step {
    Entry,
    Extension,
    End { marked: bool },
}

/// What is wrong, before it is known where.
enum Problem {
    /// The very first record is no header.
    NotTar(String),
    Text(String),
    Pack(PackError),
}

impl Problem {
    fn at(self, archive: &str, offset: u64) -> PackError {
        match self {
            Problem::NotTar(problem) => {
                let problem = format!("not a tar archive, plain or compressed by gzip, zstd or xz ({problem})");
                PackError::Source { path: archive.into(), problem }
            }
            Problem::Text(problem) => PackError::Tar { archive: archive.into(), offset, problem },
            Problem::Pack(error) => error,
        }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Problem {
        Problem::Text(text)
    }
}

impl From<&str> for Problem {
    fn from(text: &str) -> Problem {
        Problem::Text(text.into())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Problem::Text("the archive ends in the middle of an entry".into()),
            _ => Problem::Text(error.to_string()),
        }
    }
}

impl From<CopyError> for Problem {
    fn from(error: CopyError) -> Problem {
        match error {
            CopyError::Reader(error) => error.into(),
            CopyError::Spool(error) => Problem::Pack(error),
        }
    }
}

/// Reads one header and what belongs to it.
fn next(
    archive: &mut Archive<'_>,
    tree: &mut Tree,
    reading: &mut Reading<'_>,
    global: &mut Extension,
    local: &mut Option<Extension>,
) -> Result<Step, Problem> {
    let mut record = [0u8; RECORD_BYTES];
    let found = archive.read(&mut record)?;
    if found == 0 && local.is_none() {
        return Ok(Step::End { marked: false });
    }
    if found < RECORD_BYTES {
        return Err("the archive ends in the middle of a header".into());
    }
    if record.iter().all(|byte| *byte == 0) {
        if local.is_some() {
            return Err("the archive ends after an extension record".into());
        }
        return Ok(Step::End { marked: true });
    }
    let is_first = archive.position() == RECORD_BYTES as u64;
    let mut header = Header::parse(&record)
        .map_err(|problem| if is_first { Problem::NotTar(problem) } else { Problem::Text(problem) })?;
    match header.kind {
        b'x' | b'X' => local.get_or_insert_with(|| global.clone()).parse_pax(&extension(archive, &header)?)?,
        b'g' => global.parse_pax(&extension(archive, &header)?)?,
        b'L' => {
            local.get_or_insert_with(|| global.clone()).path = Some(long_name(archive, &header)?);
        }
        b'K' => {
            local.get_or_insert_with(|| global.clone()).link = Some(long_name(archive, &header)?);
        }
        // The label of the volume.
        b'V' => archive.skip(padded(header.size))?,
        b'M' => return Err("a volume of a multi-volume archive cannot be packed alone".into()),
        _ => {
            let extension = local.take().unwrap_or_else(|| global.clone());
            apply(&mut header, &extension);
            place(archive, tree, reading, header, extension)?;
            return Ok(Step::Entry);
        }
    }
    Ok(Step::Extension)
}

fn extension(archive: &mut Archive<'_>, header: &Header) -> Result<Vec<u8>, Problem> {
    if header.size > EXTENSION_BYTES_MAX {
        return Err(format!("an extension record of {} bytes, at most {EXTENSION_BYTES_MAX}", header.size).into());
    }
    let mut bytes = vec![0u8; padded(header.size) as usize];
    if archive.read(&mut bytes)? < bytes.len() {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    bytes.truncate(header.size as usize);
    Ok(bytes)
}

/// A long name or link target of GNU tar.
fn long_name(archive: &mut Archive<'_>, header: &Header) -> Result<Vec<u8>, Problem> {
    // With the zero byte at the end.
    if header.size > PATH_BYTES_MAX as u64 + 1 {
        return Err(format!("a path of {} bytes, at most {PATH_BYTES_MAX}", header.size).into());
    }
    Ok(trim_nul(extension(archive, header)?))
}

fn trim_nul(mut name: Vec<u8>) -> Vec<u8> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(end);
    name
}

fn apply(header: &mut Header, extension: &Extension) {
    if let Some(path) = extension.sparse.name.as_ref().or(extension.path.as_ref()) {
        header.name.clone_from(path);
    }
    if let Some(link) = &extension.link {
        header.link.clone_from(link);
    }
    header.size = extension.size.unwrap_or(header.size);
    header.uid = extension.uid.unwrap_or(header.uid);
    header.gid = extension.gid.unwrap_or(header.gid);
    header.mtime = extension.mtime.unwrap_or(header.mtime);
    header.major = extension.major.unwrap_or(header.major);
    header.minor = extension.minor.unwrap_or(header.minor);
}

/// Places one entry and takes its data off the archive.
fn place(
    archive: &mut Archive<'_>,
    tree: &mut Tree,
    reading: &mut Reading<'_>,
    header: Header,
    extension: Extension,
) -> Result<(), Problem> {
    // Only these kinds have data; a hard link's size is that of its target in some archives,
    // without data.
    let has_data = !matches!(header.kind, b'1' | b'2' | b'3' | b'4' | b'6');
    let data = if has_data { header.size } else { 0 };
    let shown = || String::from_utf8_lossy(&header.name).into_owned();
    if header.name.contains(&0) || header.link.contains(&0) {
        return Err(format!("{}: a name with a zero byte", shown()).into());
    }
    if reading.whiteouts && whiteout(tree, &header.name) {
        return Ok(archive.skip(padded(data))?);
    }
    let located = |problem: crate::tree::PathError| Problem::Text(format!("{}: {problem}", shown()));
    if components(&header.name).any(|component| component == b"..") {
        reading.notes.add(format!("{}: `..` is followed within the image only", shown()));
    }
    if header.kind == b'1' {
        let target = tree.link_target(&header.link).map_err(located)?;
        return tree.link_at(&header.name, target).map_err(located);
    }
    if extension.has_text_acl {
        reading.notes.add(format!("{}: access control lists in text form are not carried over", shown()));
    }
    let device = || -> Result<Device, Problem> {
        let number = |value: u64| u32::try_from(value).map_err(|_| format!("{}: a device number too large", shown()));
        Ok(Device { major: number(header.major)?, minor: number(header.minor)? })
    };
    let is_old_directory = matches!(header.kind, 0 | b'0') && header.name.last() == Some(&b'/');
    let body = match header.kind {
        b'2' => Body::Symlink(header.link.clone()),
        b'3' => Body::Character(device()?),
        b'4' => Body::Block(device()?),
        b'6' => Body::Fifo,
        b'5' | b'D' => Node::directory(Attributes::implied_directory()).body,
        _ if is_old_directory => Node::directory(Attributes::implied_directory()).body,
        // POSIX: kinds that a reader does not know are regular files.
        _ => {
            let (size, content) = file(archive, reading.spool, &header, &extension)?;
            Body::File { size, content }
        }
    };
    if has_data && !matches!(body, Body::File { .. }) {
        archive.skip(padded(data))?;
    }
    let owner = |value: u64| u32::try_from(value).map_err(|_| format!("{}: owner {value} is too large", shown()));
    let mut xattrs = extension.xattrs;
    xattrs.sort();
    let attributes = Attributes {
        permissions: (header.mode & 0o7777) as u16,
        uid: owner(header.uid)?,
        gid: owner(header.gid)?,
        mtime: header.mtime,
        xattrs,
    };
    tree.place_at(&header.name, Node { attributes, body }).map_err(located)?;
    Ok(())
}

/// Handles the names that hide entries of lower layers; whether `name` was one.
fn whiteout(tree: &mut Tree, name: &[u8]) -> bool {
    let Some((parent, last)) = split_last(name) else { return false };
    if components(parent).any(|component| component.starts_with(LAYERING)) {
        return true;
    }
    if !last.starts_with(WHITEOUT) {
        return false;
    }
    let Some(directory) = tree.find(parent) else { return true };
    if last == OPAQUE {
        tree.whiteout_all(directory);
    } else if !last.starts_with(LAYERING) {
        tree.whiteout(directory, &last[WHITEOUT.len()..]);
    }
    true
}

/// The size and content of a regular file, sparse or not; takes data and padding off the archive.
fn file(
    archive: &mut Archive<'_>,
    spool: &mut Spool,
    header: &Header,
    extension: &Extension,
) -> Result<(u64, Content), Problem> {
    let start = archive.position();
    let (size, stretches) = match (&header.sparse, &extension.sparse) {
        (Some(old), _) => {
            let mut old = old.clone();
            while old.continued {
                let mut record = [0u8; RECORD_BYTES];
                if archive.read(&mut record)? < RECORD_BYTES {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                old.extend(&record[..504], record[504])?;
            }
            // The records of the map are not counted in the size of the entry.
            let stretches = stretches(&old.map, old.real_size, header.size)?;
            let content = archive.content(stretches, spool)?;
            archive.skip(padded(header.size) - header.size)?;
            return Ok((old.real_size, content));
        }
        (None, sparse) if sparse.map_in_data => {
            let size = sparse.real_size.ok_or("a sparse file without its real size")?;
            let map = map_in_data(archive, header.size)?;
            let stored = header.size.checked_sub(archive.position() - start).ok_or("a sparse map beyond its entry")?;
            (size, stretches(&map, size, stored)?)
        }
        (None, sparse) => match &sparse.map {
            Some(map) => {
                let size = sparse.real_size.ok_or("a sparse file without its real size")?;
                (size, stretches(map, size, header.size)?)
            }
            None => {
                let whole = Stretch { start: 0, bytes: header.size, at: 0 };
                (header.size, if header.size > 0 { vec![whole] } else { Vec::new() })
            }
        },
    };
    let content = archive.content(stretches, spool)?;
    archive.skip(padded(header.size) - header.size)?;
    Ok((size, content))
}

/// The map in front of the data (PAX sparse format 1.0): decimal numbers, a line each, padded to a
/// record.
fn map_in_data(archive: &mut Archive<'_>, entry_bytes: u64) -> Result<Vec<(u64, u64)>, Problem> {
    let start = archive.position();
    let mut line = Vec::new();
    let mut numbers: Vec<u64> = Vec::new();
    let mut record = [0u8; RECORD_BYTES];
    loop {
        if archive.position() - start + RECORD_BYTES as u64 > padded(entry_bytes) {
            return Err("a sparse map beyond its entry".into());
        }
        if archive.read(&mut record)? < RECORD_BYTES {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        for byte in record {
            if byte != b'\n' {
                line.push(byte);
                if line.len() > 20 {
                    return Err("a sparse map that holds no numbers".into());
                }
                continue;
            }
            numbers.push(decimal(&line)?);
            line.clear();
            let count = numbers[0];
            if count > STRETCHES_MAX as u64 {
                return Err(format!("more than {STRETCHES_MAX} stretches in a sparse file").into());
            }
            if numbers.len() as u64 == 1 + 2 * count {
                return Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
            }
        }
    }
}

/// Bytes with the padding to a whole record. Sizes come from headers, so they may be anything.
fn padded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(RECORD_BYTES as u64).unwrap_or(u64::MAX)
}
