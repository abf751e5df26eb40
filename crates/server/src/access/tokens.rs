//! The file of tokens: their hashes, whose they are, and until when. The server reads it; `runnel
//! token` writes it.
//!
//! ```toml
//! [[token]]
//! hash = "0f5b..."        # BLAKE3 of the token, 64 hexadecimal digits
//! principal = "field"
//! created = 1764374400    # seconds since 1970
//! expires = 1795910400    # a token without it is good until it is revoked
//! ```
//!
//! A token has 192 random bits, so nobody finds it by its hash, however fast hashes are made.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use wire::Bearer;

use super::rules::{self, ANONYMOUS, Definition};
use super::{AccessError, stamp};

/// Name of the file if the access file says nothing.
pub(super) const FILE_NAME: &str = "tokens.toml";

/// Hexadecimal digits of the hash by which people name a token.
const ID_DIGITS: usize = 12;

/// Tokens in one file.
const TOKENS_MAX: usize = 10_000;

/// BLAKE3 of a token.
pub(super) type TokenHash = [u8; 32];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    token: Vec<Spanned<RawToken>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawToken {
    hash: String,
    principal: String,
    created: u64,
    expires: Option<u64>,
}

/// What is kept of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub principal: String,
    created: u64,
    /// Seconds since 1970.
    pub expires: Option<u64>,
}

impl Known {
    pub fn has_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The tokens of a file.
pub(super) type Tokens = BTreeMap<TokenHash, Known>;

/// Reads the tokens; without a file there are none.
pub(super) fn read(path: &Path) -> Result<Tokens, AccessError> {
    let Some(text) = stamp::read(path)? else { return Ok(Tokens::new()) };
    let raw: RawFile = toml::from_str(&text).map_err(|error| AccessError::syntax(path, &text, &error))?;
    if raw.token.len() > TOKENS_MAX {
        return Err(AccessError::whole(path, format!("more than {TOKENS_MAX} tokens")));
    }
    let mut tokens = Tokens::new();
    for token in raw.token {
        let at = token.span().start;
        let RawToken { hash, principal, created, expires } = token.into_inner();
        let fault = |reason| AccessError::at(path, &text, at, reason);
        let hash = blake3::Hash::from_hex(&hash).map_err(|_| fault("the hash of a token has 64 hexadecimal digits"))?;
        rules::check_name(&principal).map_err(fault)?;
        tokens.insert(*hash.as_bytes(), Known { principal, created, expires });
    }
    Ok(tokens)
}

/// By what people name a token.
pub(super) fn id_of(hash: &TokenHash) -> String {
    let mut text = hex(hash);
    text.truncate(ID_DIGITS);
    text
}

fn hex(hash: &TokenHash) -> String {
    blake3::Hash::from_bytes(*hash).to_hex().to_string()
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenInfo {
    /// Names the token in lists, logs and messages. It is the start of its hash.
    pub id: String,
    /// Whose it is.
    pub principal: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it ends, in seconds since 1970.
    pub expires: Option<u64>,
}

/// A token that was made. This is the only time that it can be seen.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The token.
    pub token: Bearer,
    /// What is kept of it.
    pub info: TokenInfo,
}

/// The file of tokens of an access file, locked against others who change it.
pub struct TokenFile {
    path: PathBuf,
    definition: Definition,
    tokens: Tokens,
    /// The access file, which carries the lock: the file of tokens is replaced by each change.
    lock: File,
}

impl TokenFile {
    /// Reads the access file and its tokens; waits for others who change them.
    ///
    /// # Errors
    /// [`AccessError`]: a file cannot be read, or is wrong.
    pub fn open(access: &Path) -> Result<TokenFile, AccessError> {
        let failed = |error: io::Error| AccessError::whole(access, format!("cannot be read: {error}"));
        let lock = host::file::open(access).map_err(failed)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let definition = Definition::read(access)?;
        let path = definition.tokens.clone();
        let tokens = read(&path)?;
        Ok(TokenFile { path, definition, tokens, lock })
    }

    /// Where the tokens of an access file are.
    ///
    /// # Errors
    /// [`AccessError`]: the access file cannot be read, or is wrong.
    pub fn place(access: &Path) -> Result<PathBuf, AccessError> {
        Ok(Definition::read(access)?.tokens)
    }

    /// Where the tokens are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a token for a principal and writes its hash. Times are in seconds since 1970.
    ///
    /// # Errors
    /// [`AccessError`]: there is no such principal, or the file cannot be written.
    pub fn create(&mut self, principal: &str, now: u64, expires: Option<u64>) -> Result<IssuedToken, AccessError> {
        if principal == ANONYMOUS {
            return Err(self.fault("who shows a token is not anonymous: name another principal"));
        }
        if !self.definition.principals.contains_key(principal) {
            let known: Vec<&str> =
                self.definition.principals.keys().map(String::as_str).filter(|name| *name != ANONYMOUS).collect();
            let reason = format!(
                "the access file has no principal {principal:?}; it has {}",
                if known.is_empty() { "none: add [principal.NAME]".to_owned() } else { known.join(", ") }
            );
            return Err(self.fault(reason));
        }
        if self.tokens.len() >= TOKENS_MAX {
            return Err(self.fault(format!("it has {TOKENS_MAX} tokens already: revoke some")));
        }
        let mut random = [0; wire::bearer::RANDOM_BYTES];
        getrandom::fill(&mut random).map_err(|error| self.fault(format!("no randomness: {error}")))?;
        let token = Bearer::new(random);
        let hash = token.hash();
        self.tokens.insert(hash, Known { principal: principal.to_owned(), created: now, expires });
        self.write()?;
        let info = TokenInfo { id: id_of(&hash), principal: principal.to_owned(), created: now, expires };
        Ok(IssuedToken { token, info })
    }

    /// All tokens, the oldest first.
    pub fn list(&self) -> Vec<TokenInfo> {
        let info = |(hash, known): (&TokenHash, &Known)| TokenInfo {
            id: id_of(hash),
            principal: known.principal.clone(),
            created: known.created,
            expires: known.expires,
        };
        let mut all: Vec<TokenInfo> = self.tokens.iter().map(info).collect();
        all.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        all
    }

    /// Takes out the tokens for which `revoked` holds, and returns them.
    ///
    /// # Errors
    /// [`AccessError`]: the file cannot be written. Then all stay.
    pub fn revoke(&mut self, revoked: impl Fn(&TokenInfo) -> bool) -> Result<Vec<TokenInfo>, AccessError> {
        let gone: Vec<TokenInfo> = self.list().into_iter().filter(revoked).collect();
        if !gone.is_empty() {
            self.tokens.retain(|hash, _| gone.iter().all(|info| info.id != id_of(hash)));
            self.write()?;
        }
        Ok(gone)
    }

    fn fault(&self, reason: impl Into<String>) -> AccessError {
        AccessError::whole(&self.path, reason)
    }

    /// Replaces the file as a whole: a server that reads it sees the old one or the new one.
    fn write(&self) -> Result<(), AccessError> {
        let mut text = "# Hashes of tokens. `runnel token` writes this file.\n".to_owned();
        for (hash, known) in &self.tokens {
            let Known { principal, created, .. } = known;
            text += &format!("\n[[token]]\nhash = \"{}\"\n", hex(hash));
            text += &format!("principal = \"{principal}\"\ncreated = {created}\n");
            if let Some(expires) = known.expires {
                text += &format!("expires = {expires}\n");
            }
        }
        self.replace(&text).map_err(|error| self.fault(format!("cannot be written: {error}")))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
        // Nobody else uses the name: the lock is ours. It is left from one who was killed.
        let new = self.path.with_file_name(format!(".{name}.new"));
        let _ = std::fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        let written = (|| {
            file.set_permissions(Permissions::from_mode(0o600))?;
            self.give_to_owner(&file)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }

    /// Root makes tokens for a server that runs as another user: the file belongs to whom it did
    /// before, else to the owner of the access file.
    fn give_to_owner(&self, file: &File) -> io::Result<()> {
        let owner = std::fs::metadata(&self.path).or_else(|_| self.lock.metadata())?;
        let own = file.metadata()?;
        if (owner.uid(), owner.gid()) == (own.uid(), own.gid()) || own.uid() != 0 {
            return Ok(());
        }
        std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn tokens_are_made_listed_and_revoked() {
        let (folder, path) = access("[principal.ci]\n[principal.field]\n[principal.anonymous]\n");
        let mut file = TokenFile::open(&path).unwrap();
        let first = file.create("ci", 100, None).unwrap();
        let second = file.create("field", 101, Some(200)).unwrap();
        assert_eq!(file.list(), [first.info.clone(), second.info.clone()]);
        drop(file);
        let tokens = folder.path().join("tokens.toml");
        let text = std::fs::read_to_string(&tokens).unwrap();
        assert!(!text.contains(first.token.reveal()), "only its hash is kept");
        assert_eq!(tokens.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let known = read(&tokens).unwrap();
        assert_eq!(known[&first.token.hash()].principal, "ci");
        let field = &known[&second.token.hash()];
        assert!(!field.has_expired(199) && field.has_expired(200));
        let mut file = TokenFile::open(&path).unwrap();
        assert_eq!(file.revoke(|info| info.id == first.info.id).unwrap(), [first.info]);
        assert_eq!(file.list(), [second.info]);
        assert_eq!(read(&tokens).unwrap().len(), 1);
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn tokens_are_for_principals_that_there_are() {
        let (_folder, path) = access("[principal.ci]\n[principal.anonymous]\n");
        let mut file = TokenFile::open(&path).unwrap();
        let said = file.create("cj", 1, None).unwrap_err().to_string();
        assert!(said.ends_with("has no principal \"cj\"; it has ci"), "{said}");
        assert!(file.create("anonymous", 1, None).is_err());
        assert!(file.list().is_empty());
    }

    #[test]
    fn a_wrong_file_of_tokens_is_told_with_its_line() {
        let (folder, path) = access("");
        let tokens = folder.path().join("tokens.toml");
        std::fs::write(&tokens, "[[token]]\nhash = \"12\"\nprincipal = \"a\"\ncreated = 1\n").unwrap();
        let said = TokenFile::open(&path).err().unwrap().to_string();
        assert!(said.contains("tokens.toml:1: the hash of a token"), "{said}");
    }
}
