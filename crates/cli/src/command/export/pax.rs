//! An image as a tar archive: POSIX.1-2008 (pax), with extended attributes as `SCHILY.xattr.NAME`
//! as star, GNU tar and libarchive write them.
//!
//! The archive depends on the image alone: entries are in the order of their paths, extension
//! records stand only where the plain header cannot say it, and have no names or times of their
//! own. The root comes first as `./`, so that its attributes are kept. A file with several names is
//! written under the first of them, the others are links to it.
//!
//! Memory: the decoded blocks of the reader, and a path for each file that has several names.

use std::collections::HashMap;
use std::io::Write;

use ::pack::{BlockReader, PackError, Part};
use image::{Inode, Kind, Metadata, ReadAt, device_parts};
use units::InodeId;

/// Bytes of a record: headers and data are padded to it.
const RECORD_BYTES: usize = 512;
/// Records that an archive is padded to a multiple of, as tape drives once wanted and some readers
/// still expect.
const BLOCKING_RECORDS: u64 = 20;
/// Bytes of a name or link target in a header.
const NAME_BYTES: usize = 100;
/// Zeros written at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The reader that the archive is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Any: as exact as pax can be.
    Any,
    /// The tools of SquashFS: they take the root from elsewhere and fail on times that SquashFS
    /// cannot hold, which has 32 bits of seconds from 1970 on and no fractions, and three name
    /// spaces of attributes.
    Squashfs,
}

/// The parts of the image that the archive lacks.
#[derive(Default)]
pub struct Lost {
    /// Sockets: tar has no form for them.
    pub sockets: u64,
    /// Extended attributes whose name holds a `=`, which ends a name in a pax record, or that the
    /// reader does not know.
    pub attributes: u64,
    /// Modification times that the reader cannot hold; the nearest stands for them.
    pub times: u64,
}

/// Writes all of the image to `out`.
///
/// # Errors
/// A block is damaged, or `out` fails.
pub fn write(image: &Metadata, source: &dyn ReadAt, reader: Reader, out: &mut dyn Write) -> Result<Lost, PackError> {
    let mut writer = Writer {
        image,
        form: reader,
        reader: BlockReader::new(image, source),
        out: Counted { out, bytes: 0 },
        first_names: HashMap::new(),
        lost: Lost::default(),
    };
    if let Some(root) = image.inode(InodeId::ROOT).filter(|_| reader == Reader::Any) {
        writer.entry(b"./", &root)?;
    }
    ::pack::list(image, b"/", true, |listing| {
        let mut path = listing.path.strip_prefix(b"/").unwrap_or(&listing.path).to_vec();
        if listing.inode.kind() == Kind::Dir {
            path.push(b'/');
        }
        writer.entry(&path, &listing.inode)
    })?;
    writer.finish()
}

struct Writer<'a> {
    image: &'a Metadata,
    form: Reader,
    reader: BlockReader<'a>,
    out: Counted<'a>,
    /// The first path of each file with several.
    first_names: HashMap<InodeId, Vec<u8>>,
    lost: Lost,
}

impl Writer<'_> {
    fn entry(&mut self, path: &[u8], inode: &Inode) -> Result<(), PackError> {
        let time = self.time(inode);
        let mut header = Header { path, link: &[], kind: b'0', bytes: 0, time, major: 0, minor: 0 };
        let known = self.first_names.get(&inode.id()).cloned();
        let image = self.image;
        match (&known, inode.kind()) {
            (_, Kind::Socket) => {
                self.lost.sockets += 1;
                return Ok(());
            }
            (Some(first), _) => (header.kind, header.link) = (b'1', first),
            (None, Kind::File) => header.bytes = inode.size(),
            (None, Kind::Symlink) => (header.kind, header.link) = (b'2', image.symlink(inode.id()).unwrap_or_default()),
            (None, Kind::Char) => header.kind = b'3',
            (None, Kind::Block) => header.kind = b'4',
            (None, Kind::Dir) => header.kind = b'5',
            (None, Kind::Fifo) => header.kind = b'6',
        }
        if matches!(header.kind, b'3' | b'4') {
            (header.major, header.minor) = device_parts(inode.rdev());
        }
        if known.is_none() && inode.kind() != Kind::Dir && inode.nlink() > 1 {
            self.first_names.insert(inode.id(), path.to_vec());
        }
        let attributes = if known.is_none() { self.attributes(inode) } else { Vec::new() };
        let extension = header.extension(inode, &attributes, self.form);
        if !extension.is_empty() {
            self.out.write(&header.extension_record(extension.len()))?;
            self.out.write(&extension)?;
            self.out.pad(RECORD_BYTES as u64)?;
        }
        self.out.write(&header.record(inode))?;
        if header.kind == b'0' {
            self.contents(inode)?;
        }
        Ok(())
    }

    fn time(&mut self, inode: &Inode) -> (i64, u32) {
        if self.form == Reader::Any {
            return inode.mtime();
        }
        let nearest = inode.mtime_sec().clamp(0, u32::MAX.into());
        self.lost.times += u64::from(nearest != inode.mtime_sec());
        (nearest, 0)
    }

    fn attributes(&mut self, inode: &Inode) -> Vec<u8> {
        let mut records = Vec::new();
        for (name, value) in self.image.xattrs(inode.id()) {
            let known = [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| name.starts_with(prefix));
            if name.contains(&b'=') || (self.form == Reader::Squashfs && !known) {
                self.lost.attributes += 1;
                continue;
            }
            push_record(&mut records, &[b"SCHILY.xattr.", name].concat(), value);
        }
        records
    }

    fn contents(&mut self, inode: &Inode) -> Result<(), PackError> {
        let (reader, out) = (&mut self.reader, &mut self.out);
        reader.read(inode.id(), |part| match part {
            Part::Data(bytes) => out.write(bytes),
            Part::Hole(bytes) => out.zeros(bytes),
        })?;
        self.out.pad(RECORD_BYTES as u64)
    }

    fn finish(mut self) -> Result<Lost, PackError> {
        self.out.zeros(2 * RECORD_BYTES as u64)?;
        self.out.pad(BLOCKING_RECORDS * RECORD_BYTES as u64)?;
        Ok(self.lost)
    }
}

/// The parts of an entry that are not in its inode.
struct Header<'a> {
    path: &'a [u8],
    link: &'a [u8],
    kind: u8,
    /// Bytes of data behind it.
    bytes: u64,
    time: (i64, u32),
    major: u32,
    minor: u32,
}

impl Header<'_> {
    /// The pax records for all that the plain header cannot say, in a fixed order.
    fn extension(&self, inode: &Inode, attributes: &[u8], reader: Reader) -> Vec<u8> {
        let mut records = Vec::new();
        let names: [(&[u8], &[u8]); 2] = [(b"path", self.path), (b"linkpath", self.link)];
        let long = names.iter().filter(|pair| pair.1.len() > NAME_BYTES);
        if reader == Reader::Any && long.clone().any(|(_, name)| std::str::from_utf8(name).is_err()) {
            // Names are UTF-8 in pax unless this says that they are bytes.
            push_record(&mut records, b"hdrcharset", b"BINARY");
        }
        long.for_each(|(key, name)| push_record(&mut records, key, name));
        let numbers = [
            (&b"size"[..], self.bytes, 11),
            (b"uid", inode.uid().into(), 7),
            (b"gid", inode.gid().into(), 7),
            (b"SCHILY.devmajor", self.major.into(), 7),
            (b"SCHILY.devminor", self.minor.into(), 7),
        ];
        for (key, number, digits) in numbers {
            if octal(number, digits).is_none() {
                push_record(&mut records, key, number.to_string().as_bytes());
            }
        }
        let (seconds, nanoseconds) = self.time;
        if nanoseconds != 0 || u64::try_from(seconds).ok().and_then(|seconds| octal(seconds, 11)).is_none() {
            push_record(&mut records, b"mtime", time(seconds, nanoseconds).as_bytes());
        }
        records.extend_from_slice(attributes);
        records
    }

    /// The header of the records above. Named after nothing, so that it is the same for the same
    /// records.
    fn extension_record(&self, bytes: usize) -> [u8; RECORD_BYTES] {
        let (path, bytes) = (b"PaxHeaders/entry", bytes as u64);
        Header { path, link: &[], kind: b'x', bytes, time: (0, 0), major: 0, minor: 0 }.fill(0o644, 0, 0)
    }

    fn record(&self, inode: &Inode) -> [u8; RECORD_BYTES] {
        self.fill(inode.permissions().into(), inode.uid().into(), inode.gid().into())
    }

    /// Numbers that do not fit are 0 here and stand in the extension.
    fn fill(&self, mode: u64, uid: u64, gid: u64) -> [u8; RECORD_BYTES] {
        let seconds = u64::try_from(self.time.0).unwrap_or(0);
        let mut record = [0u8; RECORD_BYTES];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.path[..self.path.len().min(NAME_BYTES)]);
        put(157, &self.link[..self.link.len().min(NAME_BYTES)]);
        for (at, number, digits) in [
            (100, mode, 7),
            (108, uid, 7),
            (116, gid, 7),
            (124, self.bytes, 11),
            (136, seconds, 11),
            (329, self.major.into(), 7),
            (337, self.minor.into(), 7),
        ] {
            let text = octal(number, digits).unwrap_or_else(|| "0".repeat(digits));
            put(at, text.as_bytes());
        }
        put(156, &[self.kind]);
        put(257, b"ustar\x0000");
        // The sum is taken with its own field as blanks.
        put(148, b"        ");
        let sum: u64 = record.iter().map(|byte| u64::from(*byte)).sum();
        let text = octal(sum, 6).unwrap_or_default();
        record[148..154].copy_from_slice(text.as_bytes());
        record[154] = 0;
        record
    }
}

/// `number` in so many octal digits, if it fits.
fn octal(number: u64, digits: usize) -> Option<String> {
    let text = format!("{number:0digits$o}");
    (text.len() == digits).then_some(text)
}

/// `[-]SECONDS.FRACTION`: the time as one decimal number, nanoseconds counting upwards from the
/// whole seconds.
fn time(seconds: i64, nanoseconds: u32) -> String {
    match (seconds < 0, nanoseconds) {
        (_, 0) => seconds.to_string(),
        (false, _) => format!("{seconds}.{nanoseconds:09}"),
        (true, _) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds),
    }
}

/// Appends `LENGTH KEY=VALUE\n`; the length counts its own digits.
fn push_record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(length.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// The output, and how much went there.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|source| PackError::Write { path: "the archive".into(), source })
    }

    fn zeros(&mut self, mut bytes: u64) -> Result<(), PackError> {
        while bytes > 0 {
            let count = bytes.min(ZEROS.len() as u64);
            self.write(&ZEROS[..count as usize])?;
            bytes -= count;
        }
        Ok(())
    }

    /// Zeros up to a multiple of `unit`.
    fn pad(&mut self, unit: u64) -> Result<(), PackError> {
        self.zeros(self.bytes.next_multiple_of(unit) - self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_one_decimal_number() {
        for (parts, text) in [
            ((0, 0), "0"),
            ((5, 1), "5.000000001"),
            ((-5, 0), "-5"),
            ((-5, 250_000_000), "-4.750000000"),
            ((-1, 999_999_999), "-0.000000001"),
        ] {
            assert_eq!(time(parts.0, parts.1), text);
        }
    }

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for bytes in 0..2000 {
            let mut records = Vec::new();
            push_record(&mut records, b"key", &vec![b'v'; bytes]);
            let digits = records.iter().position(|byte| *byte == b' ').expect("a blank");
            assert_eq!(std::str::from_utf8(&records[..digits]).expect("digits"), records.len().to_string());
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_told() {
        assert_eq!(octal(0o7_777_777, 7).as_deref(), Some("7777777"));
        assert_eq!(octal(0o10_000_000, 7), None);
        assert_eq!(octal(0, 7).as_deref(), Some("0000000"));
    }
}
