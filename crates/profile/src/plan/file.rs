//! The plan file: encoding and decoding. Described byte by byte in docs/formats/plan.md.
//!
//! A plan lies in the user's cache folder, so it may be cut, damaged or somebody else's. The reader
//! trusts nothing: every count is bounded before memory is taken for it, every position is checked,
//! and an accepted file encodes to the very same bytes again.

use std::collections::HashSet;

use trace::{path_fault, varint};
use units::{Moment, PAGE_BYTES};
use zerocopy::{FromBytes, IntoBytes};

use super::format::{self, FileHeader, HASH_BYTES};
use super::{Breakpoint, Group, GroupExtent, Identity, LaunchPlan, Library, PlanError, PlanFile, Trigger};

/// What a reader accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files in the plan.
    pub files_max: usize,
    /// Bytes of all their paths.
    pub path_bytes_max: usize,
    /// Groups.
    pub groups_max: usize,
    /// Opens in all groups.
    pub opens_max: usize,
    /// Extents in all groups.
    pub extents_max: usize,
}

impl Limits {
    /// What a writer stays below.
    pub const WRITTEN: Limits = Limits {
        files_max: format::WRITTEN_FILES_MAX,
        path_bytes_max: format::WRITTEN_PATH_BYTES_MAX,
        groups_max: format::WRITTEN_GROUPS_MAX,
        opens_max: format::WRITTEN_OPENS_MAX,
        extents_max: format::WRITTEN_EXTENTS_MAX,
    };
}

impl Default for Limits {
    /// What a reader takes.
    fn default() -> Limits {
        Limits {
            files_max: format::ACCEPTED_FILES_MAX,
            path_bytes_max: format::ACCEPTED_PATH_BYTES_MAX,
            groups_max: format::ACCEPTED_GROUPS_MAX,
            opens_max: format::ACCEPTED_OPENS_MAX,
            extents_max: format::ACCEPTED_EXTENTS_MAX,
        }
    }
}

/// The plan as a file. Equal plans give equal bytes.
///
/// # Errors
/// The plan breaks a rule of the format, or is larger than [`Limits::WRITTEN`]. [`super::analyse`]
/// makes no such plan. The bytes are read back before they are handed out, so that the reader's
/// rules are the writer's.
pub fn encode(plan: &LaunchPlan) -> Result<Vec<u8>, PlanError> {
    let mut payload = Vec::new();
    put_bytes(&plan.program, &mut payload);
    let mut before: &[u8] = b"";
    for file in &plan.files {
        encode_file(file, before, &mut payload);
        before = &file.path;
    }
    let version = plan.version();
    for group in &plan.groups {
        encode_group(group, version, &mut payload);
    }
    let header = FileHeader {
        magic: format::MAGIC,
        version: version.into(),
        reserved: 0.into(),
        runs: plan.runs.into(),
        file_count: count("files", plan.files.len())?.into(),
        group_count: count("groups", plan.groups.len())?.into(),
        payload_bytes: (payload.len() as u64).into(),
    };
    let mut file = header.as_bytes().to_vec();
    file.append(&mut payload);
    let hash = blake3::hash(&file);
    file.extend_from_slice(hash.as_bytes());
    decode(&file, &Limits::WRITTEN)?;
    Ok(file)
}

fn count(what: &'static str, found: usize) -> Result<u32, PlanError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(found).map_err(|_| PlanError::Limit { what, found: found as u64, limit })
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn shared(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

fn encode_file(file: &PlanFile, before: &[u8], out: &mut Vec<u8>) {
    let kind = if file.identity.is_some() { format::FILE_KNOWN } else { format::FILE_BARE };
    varint::put(out, kind);
    let shared = shared(before, &file.path);
    varint::put(out, shared as u64);
    put_bytes(&file.path[shared..], out);
    if let Some(identity) = &file.identity {
        varint::put(out, identity.inode);
        varint::put(out, identity.size);
        varint::put(out, varint::zigzag(identity.mtime_ns));
        put_bytes(&identity.build_id, out);
    }
}

fn encode_group(group: &Group, version: u16, out: &mut Vec<u8>) {
    match &group.trigger {
        Trigger::Launch => varint::put(out, format::TRIGGER_LAUNCH),
        Trigger::Breakpoint(breakpoint) => {
            varint::put(out, format::TRIGGER_BREAKPOINT);
            varint::put(out, breakpoint.file.into());
            varint::put(out, breakpoint.offset);
            varint::put(out, breakpoint.process.into());
            varint::put(out, breakpoint.byte.into());
            varint::put(out, breakpoint.at.0);
        }
        Trigger::With(group) => {
            varint::put(out, format::TRIGGER_WITH);
            varint::put(out, (*group).into());
        }
    }
    match &group.library {
        Some(library) => {
            varint::put(out, format::LIBRARY_KNOWN);
            varint::put(out, library.file.into());
            varint::put(out, library.at.0);
        }
        None if version > format::VERSION_BARE => varint::put(out, format::LIBRARY_NONE),
        None => {}
    }
    varint::put(out, group.at.0);
    varint::put(out, group.opens.len() as u64);
    let mut last = 0;
    for open in &group.opens {
        put_moved(last, *open, out);
        last = *open;
    }
    varint::put(out, group.extents.len() as u64);
    let (mut file, mut end) = (0, 0);
    for extent in &group.extents {
        put_moved(file, extent.file, out);
        put_moved(end, extent.page, out);
        varint::put(out, extent.pages.into());
        // An extent whose end has no 32 bits is refused by the reader.
        (file, end) = (extent.file, extent.page.wrapping_add(extent.pages));
    }
}

fn put_moved(from: u32, to: u32, out: &mut Vec<u8>) {
    varint::put(out, varint::zigzag(i64::from(to) - i64::from(from)));
}

/// Reads a plan file.
///
/// # Errors
/// Not a plan file, another version, a length or hash that does not match, a value that breaks a
/// rule, more than `limits` allow. Whether the files are still what they were is for the caller to
/// find out.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<LaunchPlan, PlanError> {
    let (header, payload) = read_header(bytes)?;
    let files = u64::from(header.file_count.get());
    let groups = u64::from(header.group_count.get());
    within("files", files, limits.files_max)?;
    within("groups", groups, limits.groups_max)?;
    let mut cursor = Cursor { bytes: payload, at: 0 };
    let program = decode_program(&mut cursor)?;
    let mut plan = LaunchPlan { program, runs: header.runs.get(), ..LaunchPlan::default() };
    decode_files(&mut cursor, files, limits, &mut plan)?;
    let mut room = Room { opens: 0, extents: 0, limits };
    for _ in 0..groups {
        let group = decode_group(&mut cursor, &plan, header.version.get(), &mut room)?;
        plan.groups.push(group);
    }
    if cursor.at != payload.len() {
        let rule = "no bytes follow the last group";
        let found = (payload.len() - cursor.at) as u64;
        return Err(PlanError::Value { offset: cursor.offset(), field: "trailing bytes", found, rule });
    }
    no_overlap(&plan)?;
    if plan.version() != header.version.get() {
        let rule = "a plan of version 2 has a library; without one it is of version 1";
        return Err(PlanError::Value { offset: 8, field: "version", found: header.version.get().into(), rule });
    }
    Ok(plan)
}

impl LaunchPlan {
    /// The version of its file: the oldest that can hold it.
    pub(super) fn version(&self) -> u16 {
        let has_library = self.groups.iter().any(|group| group.library.is_some());
        if has_library { format::VERSION } else { format::VERSION_BARE }
    }
}

fn within(what: &'static str, found: u64, limit: usize) -> Result<(), PlanError> {
    if found > limit as u64 {
        return Err(PlanError::Limit { what, found, limit: limit as u64 });
    }
    Ok(())
}

fn read_header(bytes: &[u8]) -> Result<(FileHeader, &[u8]), PlanError> {
    let least = (size_of::<FileHeader>() + HASH_BYTES) as u64;
    let short = || PlanError::Length { found: bytes.len() as u64, expected: least };
    let (header, rest) = FileHeader::read_from_prefix(bytes).map_err(|_| short())?;
    if header.magic != format::MAGIC {
        return Err(PlanError::Magic { found: header.magic, expected: format::MAGIC });
    }
    if !(format::VERSION_BARE..=format::VERSION).contains(&header.version.get()) {
        return Err(PlanError::Version { found: header.version.get(), expected: format::VERSION });
    }
    let (payload, hash) = rest.split_last_chunk::<HASH_BYTES>().ok_or_else(short)?;
    if header.payload_bytes.get() != payload.len() as u64 {
        let expected = header.payload_bytes.get().saturating_add(least);
        return Err(PlanError::Length { found: bytes.len() as u64, expected });
    }
    let (found, expected) = (blake3::hash(&bytes[..bytes.len() - HASH_BYTES]), blake3::Hash::from_bytes(*hash));
    if found != expected {
        return Err(PlanError::Hash { found: found.to_string(), expected: expected.to_string() });
    }
    if header.reserved.get() != 0 {
        let found = header.reserved.get().into();
        return Err(PlanError::Value { offset: 10, field: "reserved", found, rule: "it must be zero" });
    }
    Ok((header, payload))
}

fn decode_program(cursor: &mut Cursor) -> Result<Vec<u8>, PlanError> {
    let offset = cursor.offset();
    let length = cursor.number("length of the program's path", trace::PATH_BYTES_MAX as u64 + 1)?;
    let program = cursor.slice("the program's path", length)?.to_vec();
    let fault = match program.strip_prefix(b"/") {
        Some(path) => path_fault(path),
        None => Some("a program without an absolute path"),
    };
    fault.map_or(Ok(program), |fault| Err(PlanError::Path { offset, fault }))
}

fn decode_files(cursor: &mut Cursor, files: u64, limits: &Limits, plan: &mut LaunchPlan) -> Result<(), PlanError> {
    let mut seen = HashSet::new();
    let mut path_bytes = 0;
    let mut path = Vec::new();
    for _ in 0..files {
        let start = cursor.offset();
        let kind = cursor.number("kind of a file", format::FILE_KNOWN)?;
        let offset = cursor.offset();
        let kept = cursor.number("shared bytes of a path", trace::PATH_BYTES_MAX as u64)? as usize;
        let length = cursor.number("length of a path", trace::PATH_BYTES_MAX as u64)?;
        let rest = cursor.slice("a path", length)?;
        // Were the first byte after it the same too, the same path could be written in two ways.
        if kept > path.len() || (kept < path.len() && rest.first() == Some(&path[kept])) {
            let rule = "it is what the path has in common with the one before";
            return Err(PlanError::Value { offset, field: "shared bytes of a path", found: kept as u64, rule });
        }
        path.truncate(kept);
        path.extend_from_slice(rest);
        if let Some(fault) = path_fault(&path) {
            return Err(PlanError::Path { offset: start, fault });
        }
        path_bytes += path.len();
        within("bytes of paths", path_bytes as u64, limits.path_bytes_max)?;
        if !seen.insert(path.clone()) {
            return Err(PlanError::Path { offset: start, fault: "a path that an earlier file has" });
        }
        let identity = match kind {
            format::FILE_KNOWN => Some(decode_identity(cursor)?),
            _ => None,
        };
        plan.files.push(PlanFile { path: path.clone(), identity });
    }
    Ok(())
}

fn decode_identity(cursor: &mut Cursor) -> Result<Identity, PlanError> {
    let inode = cursor.number("inode", u64::MAX)?;
    let size = cursor.number("size of a file", u64::MAX)?;
    let mtime_ns = varint::unzigzag(cursor.number("time of a file", u64::MAX)?);
    let length = cursor.number("length of a build id", format::BUILD_ID_BYTES_MAX as u64)?;
    let build_id = cursor.slice("a build id", length)?.to_vec();
    Ok(Identity { inode, size, mtime_ns, build_id })
}

/// What the groups so far hold.
struct Room<'a> {
    opens: usize,
    extents: usize,
    limits: &'a Limits,
}

fn decode_group(cursor: &mut Cursor, plan: &LaunchPlan, version: u16, room: &mut Room) -> Result<Group, PlanError> {
    let trigger = decode_trigger(cursor, plan)?;
    let library = if version > format::VERSION_BARE { decode_library(cursor, plan)? } else { None };
    let offset = cursor.offset();
    let at = Moment(cursor.number("time of a group", u64::MAX)?);
    if plan.groups.last().is_some_and(|before| at < before.at) {
        let rule = "groups are in the order of their times";
        return Err(PlanError::Value { offset, field: "time of a group", found: at.0, rule });
    }
    let opens = cursor.number("opens", u64::MAX)?;
    room.opens = room.opens.saturating_add(usize::try_from(opens).unwrap_or(usize::MAX));
    within("opens", room.opens as u64, room.limits.opens_max)?;
    let mut group = Group { trigger, library, at, opens: Vec::new(), extents: Vec::new() };
    let mut last = 0;
    for _ in 0..opens {
        last = cursor.file_moved("open", last, plan)?;
        group.opens.push(last);
    }
    let extents = cursor.number("extents", u64::MAX)?;
    room.extents = room.extents.saturating_add(usize::try_from(extents).unwrap_or(usize::MAX));
    within("extents", room.extents as u64, room.limits.extents_max)?;
    let (mut file, mut end) = (0, 0);
    for _ in 0..extents {
        file = cursor.file_moved("file of an extent", file, plan)?;
        let page = cursor.moved("page of an extent", end)?;
        let offset = cursor.offset();
        let pages = cursor.number("pages of an extent", u32::MAX.into())? as u32;
        let size = plan.files[file as usize].identity.as_ref().map_or(0, |identity| identity.size);
        let inside = page.checked_add(pages).filter(|end| u64::from(*end) <= size.div_ceil(PAGE_BYTES as u64));
        end = match inside {
            Some(end) if pages > 0 => end,
            _ => {
                let rule = "an extent has at least one page and lies inside its file";
                return Err(PlanError::Value { offset, field: "pages of an extent", found: pages.into(), rule });
            }
        };
        group.extents.push(GroupExtent { file, page, pages });
    }
    Ok(group)
}

fn decode_trigger(cursor: &mut Cursor, plan: &LaunchPlan) -> Result<Trigger, PlanError> {
    let offset = cursor.offset();
    let kind = cursor.number("trigger", format::TRIGGER_WITH)?;
    if (kind == format::TRIGGER_LAUNCH) != plan.groups.is_empty() {
        let rule = "the first group, and no other, is that of the launch";
        return Err(PlanError::Value { offset, field: "trigger", found: kind, rule });
    }
    match kind {
        format::TRIGGER_BREAKPOINT => Ok(Trigger::Breakpoint(decode_breakpoint(cursor, plan)?)),
        format::TRIGGER_WITH => {
            let offset = cursor.offset();
            let found = cursor.number("earlier group", u64::MAX)?;
            let group = usize::try_from(found).ok().and_then(|position| plan.groups.get(position));
            match group {
                Some(group) if !matches!(group.trigger, Trigger::With(_)) => Ok(Trigger::With(found as u32)),
                _ => {
                    let rule = "it is a group before this one that has a trigger of its own";
                    Err(PlanError::Value { offset, field: "earlier group", found, rule })
                }
            }
        }
        _ => Ok(Trigger::Launch),
    }
}

fn decode_breakpoint(cursor: &mut Cursor, plan: &LaunchPlan) -> Result<Breakpoint, PlanError> {
    let file = cursor.known_file("file of a breakpoint", plan)?;
    let start = cursor.offset();
    let offset = cursor.number("offset of a breakpoint", u64::MAX)?;
    let size = plan.files[file as usize].identity.as_ref().map_or(0, |identity| identity.size);
    if offset >= size {
        let rule = "it lies inside its file";
        return Err(PlanError::Value { offset: start, field: "offset of a breakpoint", found: offset, rule });
    }
    let process = cursor.known_file("process of a breakpoint", plan)?;
    let byte = cursor.number("byte of a breakpoint", u8::MAX.into())? as u8;
    let at = Moment(cursor.number("time of a breakpoint", u64::MAX)?);
    Ok(Breakpoint { file, offset, process, byte, at })
}

fn decode_library(cursor: &mut Cursor, plan: &LaunchPlan) -> Result<Option<Library>, PlanError> {
    let offset = cursor.offset();
    let found = cursor.number("library", format::LIBRARY_KNOWN)?;
    if found == format::LIBRARY_NONE {
        return Ok(None);
    }
    if plan.groups.is_empty() {
        let rule = "the group of the launch has none";
        return Err(PlanError::Value { offset, field: "library", found, rule });
    }
    let file = cursor.known_file("file of a library", plan)?;
    Ok(Some(Library { file, at: Moment(cursor.number("time of a library", u64::MAX)?) }))
}

fn no_overlap(plan: &LaunchPlan) -> Result<(), PlanError> {
    let mut all: Vec<GroupExtent> = plan.groups.iter().flat_map(|group| &group.extents).copied().collect();
    all.sort_unstable();
    let pair = all.windows(2).find(|pair| pair[0].file == pair[1].file && pair[1].page < pair[0].end());
    pair.map_or(Ok(()), |pair| Err(PlanError::Overlap { file: pair[1].file, page: pair[1].page }))
}

/// A place in the payload.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Bytes from the start of the file.
    fn offset(&self) -> usize {
        size_of::<FileHeader>() + self.at
    }

    fn number(&mut self, field: &'static str, max: u64) -> Result<u64, PlanError> {
        let offset = self.offset();
        let found =
            varint::get(self.bytes, &mut self.at).map_err(|cause| PlanError::Number { offset, field, cause })?;
        if found > max {
            return Err(PlanError::Value { offset, field, found, rule: "it is larger than it can be" });
        }
        Ok(found)
    }

    fn slice(&mut self, field: &'static str, length: u64) -> Result<&'a [u8], PlanError> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or({
            let rule = "the file ends inside it";
            PlanError::Value { offset: self.offset(), field, found: length, rule }
        })?;
        self.at += taken.len();
        Ok(taken)
    }

    fn moved(&mut self, field: &'static str, from: u32) -> Result<u32, PlanError> {
        let offset = self.offset();
        let found = self.number(field, u64::MAX)?;
        i64::from(from)
            .checked_add(varint::unzigzag(found))
            .and_then(|value| u32::try_from(value).ok())
            .ok_or(PlanError::Value { offset, field, found, rule: "positions and page indexes have 32 bits" })
    }

    fn file_moved(&mut self, field: &'static str, from: u32, plan: &LaunchPlan) -> Result<u32, PlanError> {
        let offset = self.offset();
        let file = self.moved(field, from)?;
        if file as usize >= plan.files.len() {
            let rule = "it is the position of a file of the plan";
            return Err(PlanError::Value { offset, field, found: file.into(), rule });
        }
        Ok(file)
    }

    fn known_file(&mut self, field: &'static str, plan: &LaunchPlan) -> Result<u32, PlanError> {
        let offset = self.offset();
        let found = self.number(field, u32::MAX.into())?;
        if plan.files.get(found as usize).is_none_or(|file| file.identity.is_none()) {
            let rule = "it is the position of a file whose identity is known";
            return Err(PlanError::Value { offset, field, found, rule });
        }
        Ok(found as u32)
    }
}
