//! Compares two directory trees, attributes and all: the oracle of the round-trip tests, of the
//! mount and of anyone who wants to know whether an image holds what it was made from.
//!
//! Both trees are walked by name in byte order without following symlinks. Files are compared byte
//! by byte, but stretches that are holes on both sides are not read, so sparse files are cheap.
//! Hard links are compared as groups: which paths share an inode, not which number it has. Not
//! compared: access and change times, inode numbers, sizes of directories, and disk space.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::content::next_data;
use crate::error::printable;
use crate::xattrs;

/// Bytes compared at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Something two trees can differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// A path is there in one tree only.
    Presence,
    /// File, directory, symlink and so on.
    Kind,
    /// The twelve permission bits.
    Permissions,
    /// User and group.
    Owner,
    /// Modification time, to the nanosecond.
    Mtime,
    /// Size of a file.
    Size,
    /// Target of a symlink.
    Target,
    /// Number of a device.
    Device,
    /// Extended attributes, names and values.
    Xattrs,
    /// Which paths are the same file.
    Links,
    /// Bytes of a file.
    Contents,
}

/// What to leave out, and when to stop.
#[derive(Clone, Debug)]
pub struct CompareOptions {
    /// Attributes that may differ.
    pub ignored: Vec<Attribute>,
    /// Extended attributes whose name starts with one of these may differ.
    pub ignored_xattrs: Vec<String>,
    /// Paths (relative to the trees) that are left out with all below them.
    pub ignored_paths: Vec<PathBuf>,
    /// Differences after which the comparison ends.
    pub differences_max: usize,
}

impl Default for CompareOptions {
    /// Compares everything; ends after 100 differences.
    fn default() -> CompareOptions {
        CompareOptions {
            ignored: Vec::new(),
            ignored_xattrs: Vec::new(),
            ignored_paths: Vec::new(),
            differences_max: 100,
        }
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, relative to the trees; empty for the trees themselves.
    pub path: PathBuf,
    /// In what.
    pub attribute: Attribute,
    /// How it is in the first tree.
    pub first: String,
    /// How it is in the second tree.
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = printable(self.path.as_os_str().as_bytes());
        write!(f, "{path}: {:?}: {} and {}", self.attribute, self.first, self.second)
    }
}

/// What a comparison saw.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// In order of paths.
    pub differences: Vec<Difference>,
    /// Paths that are in both trees and were compared.
    pub paths: u64,
    /// Bytes of files that were compared, holes included.
    pub bytes: u64,
}

/// Compares the trees at `first` and `second`.
///
/// # Errors
/// Something cannot be read; the error names it.
pub fn compare(first: &Path, second: &Path, options: &CompareOptions) -> io::Result<Comparison> {
    let mut comparing = Comparing {
        roots: [first, second],
        options,
        found: Comparison::default(),
        groups: [BTreeMap::new(), BTreeMap::new()],
    };
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        if comparing.found.differences.len() >= options.differences_max {
            break;
        }
        let inner = comparing.path(&path)?;
        pending.extend(inner.into_iter().rev());
    }
    Ok(comparing.found)
}

/// Panics with a readable list if the trees differ: for tests.
///
/// # Panics
/// They differ, or cannot be read.
#[track_caller]
pub fn assert_equal(first: &Path, second: &Path, options: &CompareOptions) {
    let found = match compare(first, second, options) {
        Ok(found) => found,
        Err(error) => panic!("cannot compare {} with {}: {error}", first.display(), second.display()),
    };
    let lines: Vec<String> = found.differences.iter().map(Difference::to_string).collect();
    assert!(lines.is_empty(), "{} and {} differ:\n{}", first.display(), second.display(), lines.join("\n"));
}

struct Comparing<'a> {
    roots: [&'a Path; 2],
    options: &'a CompareOptions,
    found: Comparison,
    /// In each tree, the first path of every file with several names.
    groups: [BTreeMap<(u64, u64), PathBuf>; 2],
}

impl Comparing<'_> {
    /// Compares one path of both trees; returns the paths below it that both have.
    fn path(&mut self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let places = self.roots.map(|root| if path.as_os_str().is_empty() { root.into() } else { root.join(path) });
        let [first, second] = &places;
        let about = [named(first, fs::symlink_metadata(first))?, named(second, fs::symlink_metadata(second))?];
        self.found.paths += 1;
        let kinds = about.each_ref().map(|about| about.mode() & 0o170_000);
        if kinds[0] != kinds[1] {
            self.differ(path, Attribute::Kind, kinds.map(|kind| format!("{kind:o}")));
            return Ok(Vec::new());
        }
        self.attributes(path, &places, &about)?;
        if about[0].is_file() {
            self.contents(path, &places, &about)?;
        } else if about[0].is_symlink() {
            let targets = [named(first, fs::read_link(first))?, named(second, fs::read_link(second))?];
            self.check(path, Attribute::Target, targets.map(|target| printable(target.as_os_str().as_bytes())));
        } else if about[0].is_dir() {
            return self.names(path, &places);
        } else {
            self.check(path, Attribute::Device, about.each_ref().map(|about| format!("{:x}", about.rdev())));
        }
        Ok(Vec::new())
    }

    fn attributes(&mut self, path: &Path, places: &[PathBuf; 2], about: &[Metadata; 2]) -> io::Result<()> {
        self.check(path, Attribute::Permissions, about.each_ref().map(|about| format!("{:o}", about.mode() & 0o7777)));
        self.check(path, Attribute::Owner, about.each_ref().map(|about| format!("{}:{}", about.uid(), about.gid())));
        let times = about.each_ref().map(|about| format!("{}.{:09}", about.mtime(), about.mtime_nsec()));
        self.check(path, Attribute::Mtime, times);
        if self.wants(Attribute::Xattrs) {
            let lists = [self.xattrs(&places[0])?, self.xattrs(&places[1])?];
            self.check(path, Attribute::Xattrs, lists);
        }
        if !about[0].is_dir() && self.wants(Attribute::Links) {
            let mut firsts = [String::new(), String::new()];
            for (index, about) in about.iter().enumerate() {
                let known = self.groups[index].entry((about.dev(), about.ino()));
                if about.nlink() > 1 {
                    let known = known.or_insert_with(|| path.to_owned());
                    firsts[index] = format!("{} names, {}", about.nlink(), printable(known.as_os_str().as_bytes()));
                }
            }
            self.check(path, Attribute::Links, firsts);
        }
        Ok(())
    }

    /// All extended attributes as text; long values as their hash.
    fn xattrs(&self, place: &Path) -> io::Result<String> {
        let mut text = String::new();
        for (name, value) in named(place, xattrs::read(place))? {
            let name = printable(&name);
            if self.options.ignored_xattrs.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                continue;
            }
            let value = match value.len() {
                0..=64 => value.iter().map(|byte| format!("{byte:02x}")).collect(),
                _ => format!("{} bytes, BLAKE3 {}", value.len(), blake3::hash(&value)),
            };
            text += &format!("[{name}={value}]");
        }
        Ok(text)
    }

    /// Compares the names in a directory; returns the paths of those that both sides have.
    fn names(&mut self, path: &Path, places: &[PathBuf; 2]) -> io::Result<Vec<PathBuf>> {
        let mut names: BTreeMap<Vec<u8>, [bool; 2]> = BTreeMap::new();
        for (index, place) in places.iter().enumerate() {
            for entry in named(place, fs::read_dir(place))? {
                names.entry(named(place, entry)?.file_name().into_vec()).or_default()[index] = true;
            }
        }
        let mut both = Vec::new();
        for (name, present) in names {
            let path = path.join(std::ffi::OsStr::from_bytes(&name));
            if self.options.ignored_paths.contains(&path) {
                continue;
            }
            match present {
                [true, true] => both.push(path),
                _ => self.differ(&path, Attribute::Presence, present.map(|there| there.to_string())),
            }
        }
        Ok(both)
    }

    fn contents(&mut self, path: &Path, places: &[PathBuf; 2], about: &[Metadata; 2]) -> io::Result<()> {
        let sizes = about.each_ref().map(Metadata::size);
        self.check(path, Attribute::Size, sizes.map(|size| size.to_string()));
        if sizes[0] != sizes[1] || !self.wants(Attribute::Contents) {
            return Ok(());
        }
        let size = sizes[0];
        let [first, second] = places;
        let files = [named(first, File::open(first))?, named(second, File::open(second))?];
        self.found.bytes += size;
        let mut buffers = [vec![0u8; WINDOW_BYTES], vec![0u8; WINDOW_BYTES]];
        let mut position = 0;
        while position < size {
            let data = [
                named(first, next_data(&files[0], position, size))?,
                named(second, next_data(&files[1], position, size))?,
            ];
            let Some(range) = union(&data) else { break };
            let bytes = (range.end - range.start).min(WINDOW_BYTES as u64) as usize;
            for (index, file) in files.iter().enumerate() {
                named(&places[index], file.read_exact_at(&mut buffers[index][..bytes], range.start))?;
            }
            let [one, other] = buffers.each_ref().map(|buffer| &buffer[..bytes]);
            // Comparing slices is fast; looking for the place of a difference is not.
            if one != other {
                let at = one.iter().zip(other).position(|(one, other)| one != other).unwrap_or_default();
                let shown =
                    buffers.each_ref().map(|buffer| format!("{:#04x} at {}", buffer[at], range.start + at as u64));
                self.differ(path, Attribute::Contents, shown);
                break;
            }
            position = range.start + bytes as u64;
        }
        Ok(())
    }

    fn wants(&self, attribute: Attribute) -> bool {
        !self.options.ignored.contains(&attribute)
    }

    fn check(&mut self, path: &Path, attribute: Attribute, values: [String; 2]) {
        if values[0] != values[1] {
            self.differ(path, attribute, values);
        }
    }

    fn differ(&mut self, path: &Path, attribute: Attribute, [first, second]: [String; 2]) {
        if self.wants(attribute) {
            self.found.differences.push(Difference { path: path.to_owned(), attribute, first, second });
        }
    }
}

/// A range at the front of what either side has as data: the earlier start, and an end that is safe
/// for both.
fn union(data: &[Option<Range<u64>>; 2]) -> Option<Range<u64>> {
    match data {
        [Some(one), Some(other)] => {
            let start = one.start.min(other.start);
            Some(start..if one.start <= other.start { one.end } else { other.end })
        }
        [Some(only), None] | [None, Some(only)] => Some(only.clone()),
        [None, None] => None,
    }
}

fn named<T>(place: &Path, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", place.display())))
}
