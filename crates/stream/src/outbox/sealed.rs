//! Files of an outbox whose owner gave a key. Each is the bytes that would lie there without one,
//! sealed as what they are.
//!
//! An outbox is of one kind for all of its life, as the file `device` says. What was begun with a
//! key is opened with that key, or not at all: nothing in it is moved or removed by who cannot read
//! it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use encryption::{PurposeKey, StorageKey};

use super::{about, failed, numbers_of};
use crate::StreamError;
use crate::format::{SEALED_DEVICE, SEALED_HEADER_BYTES, SEALED_MAGIC, SEALED_REASON, SEALED_TRANSACTION};

/// What a sealed file is, and its number if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Device,
    /// By the number by which those that follow it know it: it is renamed when it gets another one.
    Transaction(u64),
    /// Why a transaction was lost.
    Reason(u64),
}

/// How the files of an outbox are written.
#[derive(Clone, Debug)]
pub(crate) struct Sealing(Option<PurposeKey>);

type Header = [u8; SEALED_HEADER_BYTES];

impl Sealing {
    pub fn new(key: Option<&StorageKey>) -> Sealing {
        Sealing(key.map(|key| key.purpose("outbox")))
    }

    /// The bytes to write.
    pub fn seal<'a>(&self, what: What, plain: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(key) = &self.0 else { return Cow::Borrowed(plain) };
        let mut out = header(what, key).to_vec();
        let sealed = key.seal(&out, plain);
        out.extend(sealed);
        Cow::Owned(out)
    }

    /// The bytes that were sealed.
    pub fn open<'a>(&self, what: What, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, &'static str> {
        let Some(key) = &self.0 else { return Ok(Cow::Borrowed(bytes)) };
        let (found, sealed) = split(bytes).ok_or("it is not encrypted, as all here is")?;
        let is_this = *found == header(what, key);
        let plain = is_this.then(|| key.open(found, sealed)).flatten();
        plain.map(Cow::Owned).ok_or("it is encrypted, and does not open with the key")
    }

    /// Refuses a folder that is of the other kind or of another key, as its file `device` says.
    pub fn check_device(&self, folder: &Path, device: Option<&[u8]>) -> Result<(), StreamError> {
        match (&self.0, device.and_then(split)) {
            (None, Some(_)) => Err(about(folder, NO_KEY)),
            (Some(key), Some((found, _))) if !is_of(found, key) => Err(about(folder, OTHER_KEY)),
            (Some(_), Some(_)) => Ok(()),
            // Of the transactions alone it is seen which kind they are.
            (_, None) => self.check_transactions(folder),
        }
    }

    fn check_transactions(&self, folder: &Path) -> Result<(), StreamError> {
        for entry in folder.read_dir().map_err(failed(folder))? {
            let entry = entry.map_err(failed(folder))?;
            if entry.file_name().to_str().and_then(numbers_of).is_none() {
                continue;
            }
            let mut bytes = Vec::new();
            let most = SEALED_HEADER_BYTES as u64;
            File::open(entry.path())
                .and_then(|file| file.take(most).read_to_end(&mut bytes))
                .map_err(failed(&entry.path()))?;
            match (&self.0, split(&bytes)) {
                (None, None) => {}
                (None, Some(_)) => return Err(about(folder, NO_KEY)),
                (Some(key), Some((found, _))) if is_of(found, key) => {}
                (Some(_), Some(_)) => return Err(about(folder, OTHER_KEY)),
                (Some(_), None) => return Err(about(folder, PLAIN)),
            }
        }
        Ok(())
    }
}

const NO_KEY: &str = "it is encrypted; give the key that it was begun with. Nothing in it was changed";
const OTHER_KEY: &str = "it is encrypted with another key than the one given; give the key that it was begun with. Nothing in it was changed";
const PLAIN: &str = "it holds changes that were kept without a key; mount once without one until they are sent, or give another folder. \
     Nothing in it was changed";

/// The bytes of a sealed file of an outbox, for who looks into it.
///
/// # Errors
/// The file is not sealed, is sealed with another key, or is damaged.
pub fn unseal(key: &StorageKey, file: &[u8]) -> io::Result<Vec<u8>> {
    let key = key.purpose("outbox");
    let wrong = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
    let (found, sealed) = split(file).ok_or_else(|| wrong("this is no encrypted file of an outbox"))?;
    if !is_of(found, &key) {
        return Err(wrong("it is encrypted with another key than the one given"));
    }
    key.open(found, sealed).ok_or_else(|| wrong("it is damaged"))
}

fn header(what: What, key: &PurposeKey) -> Header {
    let (kind, number) = match what {
        What::Device => (SEALED_DEVICE, 0),
        What::Transaction(known_as) => (SEALED_TRANSACTION, known_as),
        What::Reason(number) => (SEALED_REASON, number),
    };
    let mut out = [0; SEALED_HEADER_BYTES];
    out[..8].copy_from_slice(&SEALED_MAGIC);
    out[8..16].copy_from_slice(&kind.to_le_bytes());
    out[16..24].copy_from_slice(&number.to_le_bytes());
    out[24..].copy_from_slice(&key.id().0);
    out
}

/// The header of a sealed file and what follows it.
fn split(file: &[u8]) -> Option<(&Header, &[u8])> {
    file.split_first_chunk().filter(|(header, _)| header[..8] == SEALED_MAGIC)
}

fn is_of(header: &Header, key: &PurposeKey) -> bool {
    header[24..] == key.id().0
}
