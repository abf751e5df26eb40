//! Tar headers: the 512-byte records of v7, ustar and GNU tar, and the key-value records of PAX.
//!
//! Our own reader and not the `tar` crate's, for three reasons: an entry's data must stay where it
//! is (that crate expands sparse files into zeros), extension records must be bounded, and values
//! of extended attributes may hold any byte, line feeds too. Layout after POSIX.1-2008 (pax, ustar)
//! and the GNU tar manual.

use image::limits::{XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use crate::content::Stretch;
use crate::tree::{Time, Xattrs};

/// Bytes of a record: all headers and data are padded to it.
pub(crate) const RECORD_BYTES: usize = 512;

/// Stretches of a sparse file that we accept: 1 million, for each at least 512 bytes of archive or
/// of map.
pub(crate) const STRETCHES_MAX: usize = 1 << 20;

/// Bytes of a path or of a link's target: an image holds 2048 directories in one path, and Linux
/// takes 4096 bytes at once.
pub(crate) const PATH_BYTES_MAX: usize = 64 << 10;

/// Extended attributes of one file; Linux lists 64 KiB of their names, and files in use have a
/// handful.
const XATTRS_MAX: usize = 1024;

/// The fields of one header record that we use.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) mode: u64,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) major: u64,
    pub(crate) minor: u64,
    /// For kind `S`: the stretches so far, the real size, and whether a further record continues
    /// the list.
    pub(crate) sparse: Option<OldSparse>,
}

/// The sparse map of the old GNU format.
#[derive(Clone, Debug, Default)]
pub(crate) struct OldSparse {
    pub(crate) map: Vec<(u64, u64)>,
    pub(crate) real_size: u64,
    pub(crate) continued: bool,
}

impl Header {
    /// Parses a record that is not all zeros.
    pub(crate) fn parse(record: &[u8; RECORD_BYTES]) -> Result<Header, String> {
        check_sum(record)?;
        let magic = &record[257..265];
        let gnu = magic == b"ustar  \0";
        let mut name = text(&record[..100]).to_vec();
        if magic.starts_with(b"ustar\0") && record[345] != 0 {
            name = [text(&record[345..500]), b"/", &name].concat();
        }
        let kind = record[156];
        let known = magic.starts_with(b"ustar");
        let device = |range: std::ops::Range<usize>| if known { unsigned(&record[range]) } else { Ok(0) };
        let is_device = matches!(kind, b'3' | b'4');
        let sparse = match (kind, gnu) {
            (b'S', true) => {
                let mut sparse = OldSparse { real_size: unsigned(&record[483..495])?, ..OldSparse::default() };
                sparse.extend(&record[386..482], record[482])?;
                Some(sparse)
            }
            (b'S', false) => return Err("a sparse entry without GNU's magic".into()),
            _ => None,
        };
        Ok(Header {
            name,
            link: text(&record[157..257]).to_vec(),
            kind,
            mode: unsigned(&record[100..108])?,
            uid: unsigned(&record[108..116])?,
            gid: unsigned(&record[116..124])?,
            size: unsigned(&record[124..136])?,
            mtime: Time { seconds: number(&record[136..148])?, nanoseconds: 0 },
            major: if is_device { device(329..337)? } else { 0 },
            minor: if is_device { device(337..345)? } else { 0 },
            sparse,
        })
    }
}

impl OldSparse {
    /// Adds the stretches of one record; `more` is the byte that announces a further one.
    pub(crate) fn extend(&mut self, raw: &[u8], more: u8) -> Result<(), String> {
        for pair in raw.chunks_exact(24).take_while(|pair| pair[0] != 0) {
            self.map.push((unsigned(&pair[..12])?, unsigned(&pair[12..])?));
        }
        if self.map.len() > STRETCHES_MAX {
            return Err(format!("more than {STRETCHES_MAX} stretches in a sparse file"));
        }
        self.continued = more != 0;
        Ok(())
    }
}

/// The sum of all bytes with the field itself as blanks; old writers summed signed bytes.
fn check_sum(record: &[u8; RECORD_BYTES]) -> Result<(), String> {
    let expected = unsigned(&record[148..156])?;
    let (mut plain, mut signed) = (0u64, 0i64);
    for (at, byte) in record.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { *byte };
        plain += u64::from(byte);
        signed += i64::from(byte as i8);
    }
    if plain == expected || u64::try_from(signed) == Ok(expected) {
        return Ok(());
    }
    Err(format!("no tar header: checksum {expected}, should be {plain}"))
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn unsigned(field: &[u8]) -> Result<u64, String> {
    u64::try_from(number(field)?).map_err(|_| "a negative number in a header".into())
}

/// Octal digits, or with the top bit of the first byte set a big-endian two's complement number
/// (GNU, star).
fn number(field: &[u8]) -> Result<i64, String> {
    if field[0] & 0x80 != 0 {
        // Bit 6 is the sign; drop the marking bit by sign-extending from there.
        let mut value = i128::from(((field[0] << 1) as i8) >> 1);
        for byte in &field[1..] {
            value = value << 8 | i128::from(*byte);
        }
        return i64::try_from(value).map_err(|_| "a number in a header is too large".into());
    }
    let digits = field.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii();
    digits.iter().try_fold(0i64, |value, digit| match digit {
        b'0'..=b'7' => Ok(value << 3 | i64::from(digit - b'0')),
        _ => Err(format!("{:?} is no octal number", String::from_utf8_lossy(digits))),
    })
}

/// What PAX records and GNU long names say about the next entry, or (global records) about all that
/// follow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extension {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) mtime: Option<Time>,
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    pub(crate) xattrs: Xattrs,
    pub(crate) sparse: PaxSparse,
    /// Access control lists as text, which we do not carry.
    pub(crate) has_text_acl: bool,
}

/// The three ways in which PAX archives of GNU tar describe a sparse file.
#[derive(Clone, Debug, Default)]
pub(crate) struct PaxSparse {
    /// Format 1.0: the map precedes the data.
    pub(crate) map_in_data: bool,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) real_size: Option<u64>,
    /// Formats 0.0 and 0.1: the map is in the records.
    pub(crate) map: Option<Vec<(u64, u64)>>,
}

impl Extension {
    /// Adds the records of a PAX header: `LENGTH KEY=VALUE\n` each, LENGTH counting itself.
    pub(crate) fn parse_pax(&mut self, mut records: &[u8]) -> Result<(), String> {
        while !records.is_empty() {
            let bad = || "a PAX record is damaged".to_string();
            let blank = records.iter().take(20).position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length = decimal(&records[..blank])? as usize;
            if length <= blank + 1 || length > records.len() || records[length - 1] != b'\n' {
                return Err(bad());
            }
            let record = &records[blank + 1..length - 1];
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            self.set(&record[..equals], &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"path" => self.path = Some(path(value)?),
            b"linkpath" => self.link = Some(path(value)?),
            b"size" => self.size = Some(decimal(value)?),
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(time(value)?),
            b"SCHILY.devmajor" => self.major = Some(decimal(value)?),
            b"SCHILY.devminor" => self.minor = Some(decimal(value)?),
            b"SCHILY.acl.access" | b"SCHILY.acl.default" => self.has_text_acl = true,
            b"GNU.sparse.major" => self.sparse.map_in_data = decimal(value)? == 1,
            b"GNU.sparse.name" => self.sparse.name = Some(path(value)?),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.real_size = Some(decimal(value)?),
            b"GNU.sparse.offset" => self.push_stretch(decimal(value)?, 0)?,
            b"GNU.sparse.numbytes" => {
                let last = self.sparse.map.as_mut().and_then(|map| map.last_mut());
                last.ok_or("a sparse length without an offset")?.1 = decimal(value)?;
            }
            b"GNU.sparse.map" => {
                self.sparse.map = Some(Vec::new());
                let mut numbers = value.split(|byte| *byte == b',').filter(|number| !number.is_empty());
                while let Some(offset) = numbers.next() {
                    let bytes = numbers.next().ok_or("a sparse map of odd length")?;
                    self.push_stretch(decimal(offset)?, decimal(bytes)?)?;
                }
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX || value.len() > XATTR_VALUE_BYTES_MAX {
                        return Err(format!(
                            "an extended attribute with a name of {} and a value of {} bytes; Linux takes 1 to \
                             {XATTR_NAME_BYTES_MAX}, and {XATTR_VALUE_BYTES_MAX}",
                            name.len(),
                            value.len()
                        ));
                    }
                    self.xattrs.retain(|(known, _)| known != name);
                    if self.xattrs.len() >= XATTRS_MAX {
                        return Err(format!("more than {XATTRS_MAX} extended attributes of one file"));
                    }
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    fn push_stretch(&mut self, offset: u64, bytes: u64) -> Result<(), String> {
        let map = self.sparse.map.get_or_insert_default();
        if map.len() >= STRETCHES_MAX {
            return Err(format!("more than {STRETCHES_MAX} stretches in a sparse file"));
        }
        map.push((offset, bytes));
        Ok(())
    }
}

/// A path or link target of an extension record.
fn path(value: &[u8]) -> Result<Vec<u8>, String> {
    if value.len() > PATH_BYTES_MAX {
        return Err(format!("a path of {} bytes, at most {PATH_BYTES_MAX}", value.len()));
    }
    Ok(value.to_vec())
}

/// Turns a sparse map into stretches of the content; `at` counts from the start of the entry's
/// data.
///
/// Checks that stretches ascend, lie within `real_size` and together have the `stored` bytes that
/// are in the archive.
pub(crate) fn stretches(map: &[(u64, u64)], real_size: u64, stored: u64) -> Result<Vec<Stretch>, String> {
    let (mut found, mut end, mut at) = (Vec::new(), 0u64, 0u64);
    for (start, bytes) in map.iter().copied() {
        let stop = start.checked_add(bytes).filter(|stop| start >= end && *stop <= real_size);
        end = stop.ok_or("the map of a sparse file is out of order or beyond its end")?;
        if bytes > 0 {
            found.push(Stretch { start, bytes, at });
        }
        at += bytes;
    }
    if at != stored {
        return Err(format!("the map of a sparse file has {at} bytes of data, the archive {stored}"));
    }
    Ok(found)
}

pub(crate) fn decimal(text: &[u8]) -> Result<u64, String> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("{:?} is no number", String::from_utf8_lossy(text)))
}

/// `[-]SECONDS[.FRACTION]`; digits beyond nanoseconds are dropped (towards the past, as for file
/// systems).
fn time(text: &[u8]) -> Result<Time, String> {
    let bad = || format!("{:?} is no time", String::from_utf8_lossy(text));
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    let mut parts = digits.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next().unwrap_or_default())?).map_err(|_| bad())?;
    let mut nanoseconds = 0u32;
    let fraction = parts.next().unwrap_or_default();
    for place in 0..9 {
        let digit = fraction.get(place).copied().unwrap_or(b'0');
        nanoseconds =
            nanoseconds * 10 + u32::from(digit.checked_sub(b'0').filter(|digit| *digit < 10).ok_or_else(bad)?);
    }
    match (negative, nanoseconds) {
        (false, _) => Ok(Time { seconds, nanoseconds }),
        (true, 0) => Ok(Time { seconds: -seconds, nanoseconds }),
        (true, _) => Ok(Time { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds }),
    }
}
