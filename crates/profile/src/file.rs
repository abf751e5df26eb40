//! The actions file: encoding and decoding. Described byte by byte in docs/formats/actions.md.

use std::collections::BTreeMap;

use trace::varint;
use units::{ActionId, ImageId, InodeId, PageId};
use zerocopy::{FromBytes, IntoBytes};

use crate::format::{self, FileHeader};
use crate::{Action, ActionSet, PageMark, ProfileError, Teacher};

/// What a reader accepts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Actions in the file.
    pub actions_max: usize,
    /// Pages in one action.
    pub action_pages_max: usize,
    /// Pages in all actions.
    pub pages_total_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            actions_max: format::ACCEPTED_ACTIONS_MAX,
            action_pages_max: format::ACCEPTED_ACTION_PAGES_MAX,
            pages_total_max: format::ACCEPTED_PAGES_TOTAL_MAX,
        }
    }
}

impl ActionSet {
    /// The set as an actions file. Equal sets give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_numbered(self.next_id.max(self.number_after()))
    }

    /// The same, whatever numbers new actions get: equal actions give equal bytes.
    pub fn encode_shared(&self) -> Vec<u8> {
        self.encode_numbered(self.number_after())
    }

    /// A number above those of all actions.
    fn number_after(&self) -> u64 {
        self.actions.last_key_value().map_or(1, |(id, _)| id.0 + 1)
    }

    fn encode_numbered(&self, next_id: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        for action in self.actions.values() {
            encode_action(action, &mut payload);
        }
        let mut header = FileHeader {
            magic: format::MAGIC,
            version: format::VERSION.into(),
            reserved: 0.into(),
            action_count: (self.actions.len() as u32).into(),
            image: self.image.0,
            next_id: next_id.into(),
            clock: self.clock.into(),
            payload_bytes: (payload.len() as u64).into(),
            reserved_too: 0.into(),
            hash: [0; 32],
        };
        header.hash = hash(&header, &payload);
        let mut file = header.as_bytes().to_vec();
        file.append(&mut payload);
        file
    }
}

/// Reads an actions file. The caller compares [`ActionSet::image`] with the image it wants to use
/// the set for.
///
/// # Errors
/// Not an actions file, another version, a length or hash that does not match, a value that breaks
/// a rule, more than `limits` allow.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<ActionSet, ProfileError> {
    let (header, payload) = read_header(bytes)?;
    let action_count = u64::from(header.action_count.get());
    if action_count > limits.actions_max as u64 {
        return Err(ProfileError::Limit { what: "actions", found: action_count, limit: limits.actions_max as u64 });
    }
    let mut cursor = Cursor { bytes: payload, at: 0 };
    let mut actions = BTreeMap::new();
    let mut last_id = 0;
    let mut pages_total = 0;
    for _ in 0..action_count {
        let action = decode_action(&mut cursor, last_id, &header, limits)?;
        last_id = action.id.0;
        pages_total += action.pages.len();
        if pages_total > limits.pages_total_max {
            let limit = limits.pages_total_max as u64;
            return Err(ProfileError::Limit { what: "pages in all", found: pages_total as u64, limit });
        }
        actions.insert(action.id, action);
    }
    if cursor.at != payload.len() {
        let rule = "no bytes follow the last action";
        let found = (payload.len() - cursor.at) as u64;
        return Err(ProfileError::Value { offset: cursor.offset(), field: "trailing bytes", found, rule });
    }
    Ok(ActionSet {
        next_id: header.next_id.get(),
        clock: header.clock.get(),
        actions,
        ..ActionSet::new(ImageId(header.image))
    })
}

fn read_header(bytes: &[u8]) -> Result<(FileHeader, &[u8]), ProfileError> {
    let (header, payload) = FileHeader::read_from_prefix(bytes)
        .map_err(|_| ProfileError::Length { found: bytes.len() as u64, expected: size_of::<FileHeader>() as u64 })?;
    if header.magic != format::MAGIC {
        return Err(ProfileError::Magic { found: header.magic, expected: format::MAGIC });
    }
    if header.version.get() != format::VERSION {
        return Err(ProfileError::Version { found: header.version.get(), expected: format::VERSION });
    }
    if header.payload_bytes.get() != payload.len() as u64 {
        let expected = header.payload_bytes.get().saturating_add(size_of::<FileHeader>() as u64);
        return Err(ProfileError::Length { found: bytes.len() as u64, expected });
    }
    let found = hash(&FileHeader { hash: [0; 32], ..header }, payload);
    if found != header.hash {
        let hex = |hash: [u8; 32]| blake3::Hash::from_bytes(hash).to_string();
        return Err(ProfileError::Hash { found: hex(found), expected: hex(header.hash) });
    }
    for (offset, field, counter) in [(48, "next_id", header.next_id), (56, "clock", header.clock)] {
        if counter.get() > format::COUNTER_MAX {
            let rule = "counters stay below 2^63";
            return Err(ProfileError::Value { offset, field, found: counter.get(), rule });
        }
    }
    for (offset, field, found) in
        [(10, "reserved", header.reserved.get().into()), (72, "reserved_too", header.reserved_too.get())]
    {
        if found != 0 {
            return Err(ProfileError::Value { offset, field, found, rule: "it must be zero" });
        }
    }
    Ok((header, payload))
}

fn hash(header: &FileHeader, payload: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new().update(header.as_bytes()).update(payload).finalize().as_bytes()
}

fn encode_action(action: &Action, out: &mut Vec<u8>) {
    let is_taught = action.teacher != Teacher::ANYBODY;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    out.push(flag(action.stable, format::FLAG_STABLE) | flag(is_taught, format::FLAG_TEACHER));
    let numbers = [
        action.id.0,
        action.revision.into(),
        action.uses,
        action.pushes,
        action.score.into(),
        action.last_used,
        action.runs.into(),
    ];
    numbers.into_iter().for_each(|number| varint::put(out, number));
    if is_taught {
        varint::put(out, action.teacher.0);
    }
    varint::put(out, action.pages.len() as u64);
    let mut last = PageId::default();
    for (page, mark) in action.pages.iter().zip(&action.marks) {
        varint::put(out, varint::zigzag(i64::from(page.inode.0) - i64::from(last.inode.0)));
        varint::put(out, varint::zigzag(i64::from(page.index) - i64::from(last.index)));
        encode_mark(*mark, out);
        last = *page;
    }
}

fn encode_mark(mark: PageMark, out: &mut Vec<u8>) {
    let extra = if mark.extra { format::MARK_EXTRA } else { 0 };
    let missed = if mark.misses > 0 { format::MARK_MISSED } else { 0 };
    varint::put(out, u64::from(mark.runs) << format::MARK_RUNS_SHIFT | missed | extra);
    if mark.misses > 0 {
        varint::put(out, u64::from(mark.misses));
    }
}

fn decode_mark(cursor: &mut Cursor) -> Result<PageMark, ProfileError> {
    let mark = cursor.number("page mark", u64::from(u32::MAX) << format::MARK_RUNS_SHIFT | 3)?;
    let offset = cursor.offset();
    let misses = match mark & format::MARK_MISSED {
        0 => 0,
        _ => cursor.number("missed runs", u8::MAX.into())? as u8,
    };
    if mark & format::MARK_MISSED != 0 && misses == 0 {
        let rule = "it is left out when it is zero";
        return Err(ProfileError::Value { offset, field: "missed runs", found: 0, rule });
    }
    let runs = (mark >> format::MARK_RUNS_SHIFT) as u32;
    Ok(PageMark { runs, misses, extra: mark & format::MARK_EXTRA != 0 })
}

fn decode_action(
    cursor: &mut Cursor,
    last_id: u64,
    header: &FileHeader,
    limits: &Limits,
) -> Result<Action, ProfileError> {
    let flags = cursor.number("flags", u64::from(format::FLAG_STABLE | format::FLAG_TEACHER))?;
    let start = cursor.offset();
    let id = cursor.number("id", u64::MAX)?;
    if id <= last_id || id >= header.next_id.get() {
        let rule = "ids grow from action to action and stay below next_id";
        return Err(ProfileError::Value { offset: start, field: "id", found: id, rule });
    }
    let revision = cursor.number("revision", u32::MAX.into())? as u32;
    let uses = cursor.number("uses", u64::MAX)?;
    let pushes = cursor.number("pushes", u64::MAX)?;
    // A use takes a quarter and adds SCORE_USE, so a score never passes four times that.
    let score = cursor.number("score", u64::from(Action::SCORE_USE) * 4)? as u32;
    let last_used = cursor.number("last_used", header.clock.get())?;
    let runs = cursor.number("runs", u32::MAX.into())? as u32;
    let start = cursor.offset();
    let teacher = match flags & u64::from(format::FLAG_TEACHER) {
        0 => Teacher::ANYBODY,
        _ => Teacher(cursor.number("teacher", u64::MAX)?),
    };
    if flags & u64::from(format::FLAG_TEACHER) != 0 && teacher == Teacher::ANYBODY {
        let rule = "it is left out when it is zero";
        return Err(ProfileError::Value { offset: start, field: "teacher", found: 0, rule });
    }
    let start = cursor.offset();
    let page_count = cursor.number("page count", u64::MAX)?;
    if page_count == 0 {
        let rule = "an action has at least one page";
        return Err(ProfileError::Value { offset: start, field: "page count", found: 0, rule });
    }
    if page_count > limits.action_pages_max as u64 {
        let limit = limits.action_pages_max as u64;
        return Err(ProfileError::Limit { what: "pages in an action", found: page_count, limit });
    }
    let id = ActionId(id);
    let (pages, marks) = decode_pages(cursor, id, page_count as usize)?;
    let stable = flags & u64::from(format::FLAG_STABLE) != 0;
    Ok(Action { id, revision, uses, pushes, score, last_used, runs, stable, teacher, pages, marks })
}

fn decode_pages(
    cursor: &mut Cursor,
    id: ActionId,
    page_count: usize,
) -> Result<(Vec<PageId>, Vec<PageMark>), ProfileError> {
    // A page takes three bytes at least, so the payload bounds what is reserved.
    let room = page_count.min(cursor.bytes.len() / 3);
    let mut pages = Vec::with_capacity(room);
    let mut marks = Vec::with_capacity(room);
    let mut last = PageId::default();
    for _ in 0..page_count {
        let inode = cursor.moved("inode difference", last.inode.0)?;
        let index = cursor.moved("index difference", last.index)?;
        last = PageId::new(InodeId(inode), index);
        pages.push(last);
        marks.push(decode_mark(cursor)?);
    }
    let mut sorted = pages.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(ProfileError::Duplicate { action: id, page: pair[0] }),
        None => Ok((pages, marks)),
    }
}

/// A place in the payload.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Bytes from the start of the file.
    fn offset(&self) -> usize {
        size_of::<FileHeader>() + self.at
    }

    fn number(&mut self, field: &'static str, max: u64) -> Result<u64, ProfileError> {
        let offset = self.offset();
        let found =
            varint::get(self.bytes, &mut self.at).map_err(|cause| ProfileError::Number { offset, field, cause })?;
        if found > max {
            return Err(ProfileError::Value { offset, field, found, rule: "it is larger than it can be" });
        }
        Ok(found)
    }

    fn moved(&mut self, field: &'static str, from: u32) -> Result<u32, ProfileError> {
        let offset = self.offset();
        let found = self.number(field, u64::MAX)?;
        i64::from(from)
            .checked_add(varint::unzigzag(found))
            .and_then(|value| u32::try_from(value).ok())
            .ok_or(ProfileError::Value { offset, field, found, rule: "inodes and page indexes have 32 bits" })
    }
}
