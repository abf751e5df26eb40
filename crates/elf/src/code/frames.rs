//! Unwind tables: where functions begin and end, for files without symbols (`.eh_frame`; Linux
//! Standard Base, "Exception Frames").

use super::Space;

/// Entries of one table that are read; a browser has a million.
const FRAMES_MAX: usize = 4 << 20;

/// The function that one entry of an unwind table describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its first address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Whether it may have landing pads: it has a language-specific area.
    pub has_pads: bool,
}

/// How pointers are encoded (DW_EH_PE): the low four bits say the format, the next three what the
/// value is relative to.
const FORMAT: u8 = 0x0f;
const RELATIVE: u8 = 0x70;
const RELATIVE_TO_HERE: u8 = 0x10;
const OMITTED: u8 = 0xff;

/// Reads the table at `address` of a linked file. Damage ends the list.
pub fn frames(space: &Space<'_>, address: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    let mut at = address;
    while found.len() < FRAMES_MAX
        && let Some((frame, next)) = entry(space, at)
    {
        found.extend(frame);
        // Every entry takes 4 bytes at least, so this ends.
        at = next;
    }
    found
}

/// One entry: the function it describes, if it does, and where the next entry is.
fn entry(space: &Space<'_>, at: u64) -> Option<(Option<Frame>, u64)> {
    let bytes = u32_at(space, at)?;
    // 0 ends the table; the 64-bit form is not used by any linker on 64-bit processors.
    if bytes == 0 || bytes == u32::MAX {
        return None;
    }
    let body = at.checked_add(4)?;
    let next = body.checked_add(bytes.into())?;
    let id = u32_at(space, body)?;
    if id == 0 {
        return Some((None, next));
    }
    Some((function(space, body, id), next))
}

fn function(space: &Space<'_>, body: u64, id: u32) -> Option<Frame> {
    let common = common(space, body.checked_sub(id.into())?)?;
    let mut here = Reader { space, at: body.checked_add(4)? };
    let start = here.pointer(common.encoding)?;
    let bytes = here.pointer(common.encoding & FORMAT)?;
    let has_pads = common.has_area && here.leb().is_some_and(|bytes| bytes > 0) && {
        let place = here.at;
        here.pointer(common.area_encoding).is_some_and(|area| area != 0 && area != place)
    };
    Some(Frame { start, end: start.checked_add(bytes)?, has_pads })
}

/// What entries have in common.
struct Common {
    encoding: u8,
    has_area: bool,
    area_encoding: u8,
}

fn common(space: &Space<'_>, at: u64) -> Option<Common> {
    let mut here = Reader { space, at: at.checked_add(8)? };
    let version = here.byte()?;
    let mut augmentation = [0u8; 8];
    let mut count = 0;
    loop {
        match here.byte()? {
            0 => break,
            byte => *augmentation.get_mut(count)? = byte,
        }
        count += 1;
    }
    here.leb()?;
    here.leb()?;
    if version == 1 { here.byte().map(u64::from) } else { here.leb() }?;
    let mut common = Common { encoding: 0, has_area: false, area_encoding: OMITTED };
    if augmentation[0] != b'z' {
        return Some(common);
    }
    here.leb()?;
    for letter in &augmentation[1..count] {
        match letter {
            b'R' => common.encoding = here.byte()?,
            b'L' => {
                common.has_area = true;
                common.area_encoding = here.byte()?;
            }
            b'P' => {
                let encoding = here.byte()?;
                here.pointer(encoding)?;
            }
            _ => {}
        }
    }
    Some(common)
}

struct Reader<'a> {
    space: &'a Space<'a>,
    at: u64,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.space.bytes_at(self.at).first()?;
        self.at += 1;
        Some(byte)
    }

    /// An unsigned LEB128 number; signed ones are as long.
    fn leb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let place = self.at;
        if encoding == OMITTED {
            return None;
        }
        let (bytes, is_signed) = match encoding & FORMAT {
            0x00 | 0x04 => (8, false),
            0x02 => (2, false),
            0x03 => (4, false),
            0x0a => (2, true),
            0x0b => (4, true),
            0x0c => (8, false),
            _ => return None,
        };
        let raw = self.space.number(place, bytes)?;
        self.at = place.checked_add(bytes as u64)?;
        let value = match (bytes, is_signed) {
            (2, true) => i64::from(raw as u16 as i16) as u64,
            (4, true) => i64::from(raw as u32 as i32) as u64,
            _ => raw,
        };
        match encoding & RELATIVE {
            0 => Some(value),
            RELATIVE_TO_HERE => Some(place.wrapping_add(value)),
            _ => None,
        }
    }
}

fn u32_at(space: &Space<'_>, address: u64) -> Option<u32> {
    space.number(address, 4).map(|number| number as u32)
}
