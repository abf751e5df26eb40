//! The access file: principals, how the server knows them, and what each may do.
//!
//! ```toml
//! tokens = "tokens.toml"            # beside this file; this is the default
//!
//! [principal.builder]
//! certificate = ["builder.example.com", "spiffe://example.com/builder"]
//! pull = ["*"]
//! push = ["app-*", "lib:nightly-*"]
//!
//! [principal.field]                 # has tokens
//! pull = ["app-*:stable", "@*"]
//! "volume:write" = ["reports"]
//!
//! [principal.anonymous]             # clients that show neither
//! pull = ["public-*"]
//!
//! [principal.anonymous.limits]
//! requests_per_second = 100
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use predict::Reader;
use profile::Teacher;
use serde::Deserialize;
use toml::Spanned;

use super::limits::Limits;
use super::{AccessError, stamp, tokens};
use crate::pattern::Pattern;

/// The principal of clients that show neither certificate nor token.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Longest name of a principal: it stands in messages of 256 bytes.
const NAME_BYTES_MAX: usize = 48;

/// What a principal may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Read images.
    Pull,
    /// Publish images.
    Push,
    /// Read a volume.
    VolumeRead,
    /// Read and change a volume.
    VolumeWrite,
    /// Read the status document.
    Stat,
    /// Say which images stay, and delete the others.
    Admin,
}

impl Right {
    /// As it stands in the file.
    pub fn name(self) -> &'static str {
        match self {
            Right::Pull => "pull",
            Right::Push => "push",
            Right::VolumeRead => "volume:read",
            Right::VolumeWrite => "volume:write",
            Right::Stat => "stat",
            Right::Admin => "admin",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    tokens: Option<PathBuf>,
    #[serde(default)]
    principal: BTreeMap<Spanned<String>, RawPrincipal>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPrincipal {
    #[serde(default)]
    certificate: Vec<Spanned<String>>,
    #[serde(default)]
    pull: Vec<Spanned<String>>,
    #[serde(default)]
    push: Vec<Spanned<String>>,
    #[serde(default, rename = "volume:read")]
    volume_read: Vec<Spanned<String>>,
    #[serde(default, rename = "volume:write")]
    volume_write: Vec<Spanned<String>>,
    #[serde(default)]
    stat: bool,
    /// Everything, on everything.
    #[serde(default)]
    admin: bool,
    #[serde(default = "yes")]
    teach: bool,
    limits: Option<Spanned<Limits>>,
}

fn yes() -> bool {
    true
}

/// Somebody who may do something.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub name: String,
    pull: Vec<Pattern>,
    push: Vec<Pattern>,
    volume_read: Vec<Pattern>,
    volume_write: Vec<Pattern>,
    stat: bool,
    admin: bool,
    /// As whom its runs teach, and whether they do.
    pub reader: Reader,
    pub limits: Limits,
}

/// What an access file says.
#[derive(Debug)]
pub(crate) struct Definition {
    /// Where its tokens are.
    pub tokens: PathBuf,
    pub principals: BTreeMap<String, Arc<Principal>>,
    certificates: HashMap<String, Arc<Principal>>,
    pub anonymous: Arc<Principal>,
}

impl Definition {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Definition, AccessError> {
        let text = stamp::read(path)?.ok_or_else(|| AccessError::whole(path, "there is no such file"))?;
        Definition::parse(path, &text)
    }

    /// Checks a text; `path` is where it lies.
    pub fn parse(path: &Path, text: &str) -> Result<Definition, AccessError> {
        let raw: RawFile = toml::from_str(text).map_err(|error| AccessError::syntax(path, text, &error))?;
        let tokens = path.with_file_name(raw.tokens.unwrap_or_else(|| tokens::FILE_NAME.into()));
        let mut principals = BTreeMap::new();
        let mut certificates = HashMap::new();
        for (name, raw) in raw.principal {
            let at = name.span().start;
            let fault = |at: usize, reason: String| AccessError::at(path, text, at, reason);
            let name = name.into_inner();
            check_name(&name).map_err(|reason| fault(at, format!("principal {name:?}: {reason}")))?;
            let patterns = |list: Vec<Spanned<String>>, read: fn(&str) -> Result<Pattern, String>| {
                let read = |it: Spanned<String>| read(it.as_ref()).map_err(|reason| fault(it.span().start, reason));
                list.into_iter().map(read).collect::<Result<Vec<_>, _>>()
            };
            let limits = raw.limits.as_ref().map(|it| (*it.as_ref(), it.span().start));
            let (limits, at) = limits.unwrap_or((Limits::default(), at));
            limits.check().map_err(|reason| fault(at, format!("limits of {name}: {reason}")))?;
            let principal = Arc::new(Principal {
                limits,
                reader: Reader { teacher: teacher_of(&name), teaches: raw.teach },
                pull: patterns(raw.pull, Pattern::of_images)?,
                push: patterns(raw.push, Pattern::of_images)?,
                volume_read: patterns(raw.volume_read, Pattern::of_volumes)?,
                volume_write: patterns(raw.volume_write, Pattern::of_volumes)?,
                stat: raw.stat,
                admin: raw.admin,
                name: name.clone(),
            });
            if let Some(certificate) = raw.certificate.first().filter(|_| name == ANONYMOUS) {
                let reason = "who shows a certificate is not anonymous: make another principal".to_owned();
                return Err(fault(certificate.span().start, reason));
            }
            for certificate in raw.certificate {
                let shown = certificate.as_ref().clone();
                if shown.is_empty() || shown.contains('*') {
                    let reason = format!("{shown:?} is no DNS name or URI of a certificate; each is written out");
                    return Err(fault(certificate.span().start, reason));
                }
                if let Some(other) = certificates.insert(shown.to_ascii_lowercase(), principal.clone()) {
                    let other: &Principal = &other;
                    let reason = format!("{shown:?} is a certificate of principal {:?} already", other.name);
                    return Err(fault(certificate.span().start, reason));
                }
            }
            principals.insert(name, principal);
        }
        let nobody = || Arc::new(Principal::without_rights(ANONYMOUS));
        let anonymous = principals.get(ANONYMOUS).cloned().unwrap_or_else(nobody);
        Ok(Definition { tokens, principals, certificates, anonymous })
    }

    /// The limits of a principal; one that is not there any more has none.
    pub fn limits_of(&self, name: &str) -> Limits {
        self.principals.get(name).map_or_else(Limits::default, |principal| principal.limits)
    }

    /// The principal of a certificate with these names.
    pub fn of_certificate<'a>(&'a self, names: &'a [String]) -> Option<(&'a Arc<Principal>, &'a str)> {
        names.iter().find_map(|name| Some((self.certificates.get(&name.to_ascii_lowercase())?, name.as_str())))
    }
}

impl Principal {
    fn without_rights(name: &str) -> Principal {
        let none = Vec::new;
        let (pull, push, volume_read, volume_write) = (none(), none(), none(), none());
        let (reader, limits) = (Reader { teacher: teacher_of(name), teaches: true }, Limits::default());
        let name = name.into();
        Principal { name, pull, push, volume_read, volume_write, stat: false, admin: false, reader, limits }
    }

    /// Whether it has a right on a name: `NAME:TAG` or `@ID` of an image, the name of a volume, or
    /// anything for a right without names.
    pub fn may(&self, right: Right, name: &str) -> bool {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        self.admin
            || match right {
                Right::Pull => matches(&self.pull),
                Right::Push => matches(&self.push),
                // Whoever changes files reads them: a write of half a block needs the other half.
                Right::VolumeRead => matches(&self.volume_read) || matches(&self.volume_write),
                Right::VolumeWrite => matches(&self.volume_write),
                Right::Stat => self.stat,
                Right::Admin => false,
            }
    }

    /// Whether it may see an image on a list: one that it may read or replace.
    pub fn lists(&self, name: &str) -> bool {
        self.may(Right::Pull, name) || self.may(Right::Push, name)
    }

    /// Whether there may be an image that it may see.
    pub fn lists_any(&self) -> bool {
        self.admin || !self.pull.is_empty() || !self.push.is_empty()
    }
}

/// What a principal is called where actions are learned: its name, as a number other than zero.
fn teacher_of(name: &str) -> Teacher {
    let hash = blake3::hash(name.as_bytes());
    Teacher(u64::from_le_bytes(std::array::from_fn(|index| hash.as_bytes()[index])).max(1))
}

pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name {
        "" => Err("a name cannot be empty"),
        name if name.len() > NAME_BYTES_MAX => Err("a name has 48 bytes at most"),
        name if !name.bytes().all(good) => Err("names have letters, digits, '.', '_' and '-'"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
