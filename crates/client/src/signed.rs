//! Signed names: a server whose names a device trusts only if their publisher has signed them.
//!
//! Which servers these are stands in [`SignedNames`]. Before a name of one of them is opened, the
//! device asks for the metadata of The Update Framework that speak of it, together with the request
//! to open it, and checks them with the crate `trust`. The image that is opened is the one that was
//! signed, whatever the server says; from its id the chain goes to every page.
//!
//! What a device has seen is kept in three files for each server: the state (what must not go
//! back), the metadata files (so that only new ones travel) and the images that were accepted (so
//! that a pin that nobody has verified is not used). A lock is held from reading them to writing.

mod memory;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use codec::Codec;
use connection::{HttpFile, ImageName, Remote, Server, Target};
use trust::format::STAPLED_BYTES_MAX;
use trust::repository::collect;
use trust::{JudgedBy, Kind, Known, Refusal, SignedName, Stapled, UnixTime};
use units::ImageId;
use wire::Request;
use wire::format::TRUST_FILES_BYTES_MAX;

use crate::error::ClientError;
use crate::http::signed::split;
use memory::{Held, Memory};

/// Longest root file that is read from the disk of the device.
const ANCHOR_BYTES_MAX: u64 = 64 << 10;

/// The folder of metadata beside an image.
const BESIDE: &str = "trust";

/// The file without which a folder has no metadata.
const TIMESTAMP: &str = "timestamp.json";

/// The tag of a file in a folder, as servers of ours have it.
const LATEST: &str = "latest";

/// Which servers sign their names, and whom to trust for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedNames {
    /// A root file for whatever server is asked; wins over those below.
    pub given: Option<PathBuf>,
    /// Root files by server, as `host` or `host:port`.
    pub servers: Vec<(String, PathBuf)>,
    /// Where is kept what this device has seen.
    pub folder: Option<PathBuf>,
}

/// A name of a server that must be signed.
pub(crate) struct Opening {
    server: Server,
    name: String,
    anchor: Anchor,
    memory: Memory,
    /// What the device had when it asked.
    known: Bytes,
}

/// A root file that the owner of the device trusts.
struct Anchor {
    file: PathBuf,
    bytes: Vec<u8>,
}

/// What becomes of an answer.
pub(crate) enum Verdict {
    /// The name stands for this image.
    Signed(SignedName),
    /// New roots were taken, and there are more: ask again.
    AskAgain,
}

impl SignedNames {
    /// The root file for a server, if its names must be signed.
    pub fn anchor(&self, server: &Server) -> Option<&Path> {
        let is_this = |text: &str| match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.starts_with('[') => {
                host.trim_matches(['[', ']']).eq_ignore_ascii_case(&server.host) && port == server.port.to_string()
            }
            _ => text.trim_matches(['[', ']']).eq_ignore_ascii_case(&server.host),
        };
        let configured = || self.servers.iter().find(|(text, _)| is_this(text)).map(|(_, file)| file);
        self.given.as_ref().or_else(configured).map(PathBuf::as_path)
    }
}

impl Opening {
    /// `None` if the names of the server need no signature, or the image is named by its id.
    pub fn begin(signed: &SignedNames, remote: &Remote) -> Result<Option<Opening>, ClientError> {
        let ImageName::Tagged { name, tag } = &remote.image else { return Ok(None) };
        let Some(file) = signed.anchor(&remote.server) else { return Ok(None) };
        Opening::of(signed, &remote.server, "", format!("{name}:{tag}"), file).map(Some)
    }

    /// The same for a file of a web server.
    pub fn of_file(signed: &SignedNames, file: &HttpFile) -> Result<Option<Opening>, ClientError> {
        let Some(anchor) = signed.anchor(&file.server) else { return Ok(None) };
        let (folder, name) = split(&file.path);
        Opening::of(signed, &file.server, folder, format!("{name}:{LATEST}"), anchor).map(Some)
    }

    fn of(
        signed: &SignedNames,
        server: &Server,
        folder_there: &str,
        name: String,
        file: &Path,
    ) -> Result<Opening, ClientError> {
        let failed = |path: &Path, source| ClientError::File { path: path.into(), source };
        let about = fs::metadata(file).map_err(|error| failed(file, error))?;
        if !about.is_file() || about.len() > ANCHOR_BYTES_MAX {
            return Err(failed(file, io::Error::new(io::ErrorKind::InvalidData, "this is no root file")));
        }
        let anchor = Anchor { file: file.into(), bytes: fs::read(file).map_err(|error| failed(file, error))? };
        let folder = signed.folder.as_deref().ok_or_else(|| ClientError::NoMemory { server: server.clone() })?;
        let memory = Memory::of(folder, server, folder_there);
        let mut opening = Opening { server: server.clone(), name, anchor, memory, known: Bytes::new() };
        opening.known = opening.look()?;
        Ok(opening)
    }

    /// What to ask the server with.
    pub fn request(&self) -> Request {
        Request::TrustRead { name: self.name.clone(), known: self.known.clone() }
    }

    fn look(&self) -> Result<Bytes, ClientError> {
        let held = self.hold()?;
        Ok(held.cache.known(held.verifier.root_version()).encode().into())
    }

    fn hold(&self) -> Result<Held, ClientError> {
        self.memory.hold(&self.anchor.bytes).map_err(|error| self.memory_failed(error))
    }

    fn memory_failed(&self, error: memory::Failed) -> ClientError {
        match error {
            memory::Failed::Disk(path, source) => ClientError::File { path, source },
            memory::Failed::Anchor(refusal) => ClientError::BadRoot { path: self.anchor.file.clone(), refusal },
        }
    }

    /// The files that the device has.
    pub fn files(&self) -> Result<Stapled, ClientError> {
        Ok(self.hold()?.cache.complete(Stapled::default()))
    }

    /// Version of the newest root that the device trusts.
    pub fn root_version(&self) -> Result<u64, ClientError> {
        Ok(self.hold()?.verifier.root_version())
    }

    /// The name, with its tag.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Checks the packed answer of a server.
    pub fn verify_packed(&mut self, codec: u8, raw_bytes: u32, bytes: &[u8]) -> Result<Verdict, ClientError> {
        let refused = |refusal| ClientError::Refused { name: self.title(), refusal };
        let damaged = |what| Refusal::Damaged { role: "the answer".into(), what };
        let no_frame = trust::Damage::Field { field: "it", expected: "files of signed names" };
        let answer = unpack(codec, raw_bytes, bytes).ok_or_else(|| refused(damaged(no_frame)))?;
        self.verify(answer)
    }

    /// Checks the answer of a server.
    pub fn verify(&mut self, answer: Stapled) -> Result<Verdict, ClientError> {
        let mut held = self.hold()?;
        let answer = held.cache.complete(answer);
        let outcome = held.verifier.verify(&answer, &self.name, now());
        let kept = match &outcome {
            Ok(found) => held.accept(&answer, found.image),
            // New roots stay taken, whatever follows.
            Err(_) => held.keep_state(),
        };
        kept.map_err(|(path, source)| ClientError::File { path, source })?;
        match outcome {
            Ok(found) => {
                self.tell_floor(&found);
                Ok(Verdict::Signed(found))
            }
            Err(refusal) if refusal.kind() == Kind::MoreRoots => {
                drop(held);
                self.known = self.look()?;
                Ok(Verdict::AskAgain)
            }
            Err(refusal) => Err(ClientError::Refused { name: self.title(), refusal }),
        }
    }

    /// What the name stands for by the files that are here, when the server is away. That they have
    /// expired meanwhile is no reason against it: nobody offers newer ones.
    pub fn without_server(&self) -> Result<SignedName, ClientError> {
        let mut held = self.hold()?;
        let answer = held.cache.complete(Stapled::default());
        let found = held.verifier.verify(&answer, &self.name, None);
        found.map_err(|refusal| ClientError::Refused { name: self.title(), refusal })
    }

    /// What the name stands for, if nobody is asked: by the files of a folder, which are new
    /// perhaps, and by what this device has seen. Files that are old or wrong change nothing.
    fn without_asking(&mut self, folder: &Path) -> Result<SignedName, ClientError> {
        let offered = loop {
            let known = Known::of_root(self.root_version()?);
            let named = |path: PathBuf, source| ClientError::File { path, source };
            let files = collect(&self.name, &known, |file| {
                let path = folder.join(file);
                read_bounded(&path).map_err(|error| named(path, error))
            });
            match files.and_then(|files| self.verify(files)) {
                Ok(Verdict::AskAgain) => {}
                Ok(Verdict::Signed(_)) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // The reason against the files tells more than that nothing was seen.
        self.without_server().map_err(|seen| match offered {
            Err(error) if folder.join(TIMESTAMP).exists() => error,
            _ => seen,
        })
    }

    /// Whether this device has accepted the image, for this name or another one of the server.
    pub fn has_accepted(&self, id: ImageId) -> Result<bool, ClientError> {
        Ok(self.hold()?.accepted.contains(&id))
    }

    fn tell_floor(&self, found: &SignedName) {
        if found.judged_by == JudgedBy::Floor {
            let text = format!(
                "note: the clock of this device is behind; whether {} has expired is judged by the newest time that it has \
                 seen\n",
                self.title()
            );
            let _ = io::Write::write_all(&mut io::stderr(), units::printable_text(&text).as_bytes());
        }
    }

    /// How people write the name.
    pub fn title(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }
}

/// What its publisher has signed of the name of an image that lies on this device, and how people
/// write the name. No server is asked: the newest files count that this device has seen, or that
/// lie in the folder `trust` beside the image. `None` if nobody's signature is asked for, or it is
/// no name.
///
/// # Errors
/// Nobody has signed the name, as far as this device knows; its memory cannot be read.
pub fn signed_without_server(
    signed: &SignedNames,
    target: &Target,
    image: &Path,
) -> Result<Option<(String, SignedName)>, ClientError> {
    let opening = match target {
        Target::Remote(remote) => Opening::begin(signed, remote)?,
        Target::Http(file) => Opening::of_file(signed, file)?,
        _ => None,
    };
    let Some(mut opening) = opening else { return Ok(None) };
    let found = opening.without_asking(&image.with_file_name(BESIDE))?;
    Ok(Some((opening.title(), found)))
}

/// A small file; `None` if there is none.
fn read_bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match host::file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, STAPLED_BYTES_MAX as u64 + 1), &mut bytes)?;
    if bytes.len() > STAPLED_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(bytes))
}

/// The files in an answer; `None` if it holds something else.
pub(crate) fn unpack(codec: u8, raw_bytes: u32, bytes: &[u8]) -> Option<Stapled> {
    let raw_bytes = (raw_bytes as usize).min(TRUST_FILES_BYTES_MAX);
    let mut raw = Vec::new();
    codec::decode(Codec::from_u8(codec)?, bytes, raw_bytes, &mut raw).ok()?;
    Stapled::decode(&raw).ok()
}

/// The clock of the device.
fn now() -> Option<UnixTime> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| UnixTime(since.as_secs().cast_signed()))
}
