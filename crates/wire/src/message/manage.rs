//! Changes of what a server keeps, for its operators.

use crate::coding::{Reader, Writer};
use crate::error::WireError;
use crate::format::NAME_BYTES_MAX;

/// What [`super::Request::Manage`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManageAsk {
    /// Takes a tag away.
    Remove,
    /// Points a tag to the image of another name.
    Tag {
        /// The other name, as in Open. 1 to 255 bytes.
        of: String,
    },
    /// Tells which earlier versions are kept.
    Rules,
    /// Keeps earlier versions of the tags that a pattern matches; with two zeros, no longer.
    Retain {
        /// The newest so many, the present one among them.
        keep: u32,
        /// Each for so many seconds after a newer one has come.
        seconds: u64,
    },
    /// Deletes images that nobody wants.
    Collect {
        /// Seconds that an image stays after the last one wanted it.
        grace: u64,
        /// Only tells what would be done.
        dry_run: bool,
    },
}

impl ManageAsk {
    /// The same without names.
    #[must_use]
    pub(crate) fn without_data(&self) -> ManageAsk {
        match self {
            ManageAsk::Tag { .. } => ManageAsk::Tag { of: String::new() },
            other => other.clone(),
        }
    }

    /// Memory that it takes beside itself.
    pub(crate) fn memory_bytes(&self) -> usize {
        if let ManageAsk::Tag { of } = self { of.len() } else { 0 }
    }

    /// Whether it can be written.
    pub(crate) fn fits(&self) -> bool {
        if let ManageAsk::Tag { of } = self { (1..=NAME_BYTES_MAX).contains(&of.len()) } else { true }
    }

    pub(crate) fn write(&self, writer: Writer) -> Writer {
        match self {
            ManageAsk::Remove => writer.u8(0),
            ManageAsk::Tag { of } => writer.u8(1).u8(of.len() as u8).raw(of.as_bytes()),
            ManageAsk::Rules => writer.u8(2),
            ManageAsk::Retain { keep, seconds } => writer.u8(3).u32(*keep).u64(*seconds),
            ManageAsk::Collect { grace, dry_run } => writer.u8(4).u64(*grace).u8(u8::from(*dry_run)),
        }
    }

    pub(crate) fn read(reader: &mut Reader) -> Result<ManageAsk, WireError> {
        let what = reader.u8("what")?;
        reader.check(what <= 4, "what", what.into(), "0 to 4")?;
        Ok(match what {
            0 => ManageAsk::Remove,
            1 => ManageAsk::Tag { of: reader.name()? },
            2 => ManageAsk::Rules,
            3 => ManageAsk::Retain { keep: reader.u32("keep")?, seconds: reader.u64("seconds")? },
            _ => ManageAsk::Collect { grace: reader.u64("grace")?, dry_run: reader.flag("dry run")? },
        })
    }
}
