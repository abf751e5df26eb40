//! A publisher's folder: keys, and the metadata files that were signed or seen last.
//!
//! ```text
//! keys/ROLE.key       PKCS#8, encrypted unless the owner wanted it otherwise; mode 0600
//! root.json           the newest root, which devices get
//! metadata/           the files as a repository has them: 1.root.json, timestamp.json ...
//! drafts/ROLE.json    the next version of a file, which other holders must sign, too
//! lock                held by a command that changes the folder
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use signing::{PublicKey, SigningKey};
use trust::repository::{collect, file_name, version_of};
use trust::{Known, Stapled};

use crate::failure;

/// Largest key file, and largest passphrase.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Largest metadata file.
pub const FILE_BYTES_MAX: u64 = 512 << 10;

/// Variable that names a file with the passphrase.
const VARIABLE: &str = "RUNNEL_TRUST_PASSPHRASE_FILE";

/// Where the passphrase of the keys comes from.
#[derive(clap::Args, Clone)]
pub struct PassphraseArgs {
    /// Read the passphrase of the keys from this file instead of asking for it (also:
    /// RUNNEL_TRUST_PASSPHRASE_FILE)
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
}

/// A publisher's folder.
pub struct KeyFolder {
    path: PathBuf,
}

impl PassphraseArgs {
    /// The passphrase of keys that are there.
    fn present(&self) -> anyhow::Result<Vec<u8>> {
        match self.in_file()? {
            Some(passphrase) => Ok(passphrase),
            None => ask("passphrase of the keys: "),
        }
    }

    /// A passphrase for new keys; asked for twice.
    ///
    /// # Errors
    /// There is no terminal, the two differ, or it is empty.
    pub fn new_one(&self) -> anyhow::Result<Vec<u8>> {
        let passphrase = match self.in_file()? {
            Some(passphrase) => passphrase,
            None => {
                let first = ask("passphrase for the new keys: ")?;
                if ask("the same again: ")? != first {
                    return Err(failure::usage("the two passphrases differ"));
                }
                first
            }
        };
        if passphrase.is_empty() {
            return Err(failure::usage("the passphrase is empty\nhint: give --no-passphrase if that is what you want"));
        }
        Ok(passphrase)
    }

    fn in_file(&self) -> anyhow::Result<Option<Vec<u8>>> {
        match &self.passphrase_file {
            Some(file) => passphrase_in(file).map(Some),
            None => configured_passphrase(),
        }
    }
}

/// The passphrase in the file that the environment names.
///
/// # Errors
/// The file cannot be read.
pub fn configured_passphrase() -> anyhow::Result<Option<Vec<u8>>> {
    let file = std::env::var_os(VARIABLE).filter(|file| !file.is_empty());
    file.map(|file| passphrase_in(Path::new(&file))).transpose()
}

fn passphrase_in(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = read(file, KEY_BYTES_MAX)?;
    while bytes.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        bytes.pop();
    }
    Ok(bytes)
}

/// Asks at the terminal, which does not show the answer.
fn ask(question: &str) -> anyhow::Result<Vec<u8>> {
    let none = || {
        failure::usage(format!(
            "the keys have a passphrase, and there is no terminal to ask for it\nhint: --passphrase-file FILE, or {VARIABLE}"
        ))
    };
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| none())?;
    let before = tcgetattr(&terminal).map_err(|_| none())?;
    let mut hidden = before.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    (&terminal).write_all(question.as_bytes())?;
    tcsetattr(&terminal, OptionalActions::Flush, &hidden).map_err(io::Error::from)?;
    let mut line = Vec::new();
    let read = io::BufReader::new((&terminal).take(KEY_BYTES_MAX)).read_until(b'\n', &mut line);
    let shown = tcsetattr(&terminal, OptionalActions::Flush, &before).map_err(io::Error::from);
    (&terminal).write_all(b"\n")?;
    read.and(shown.map(|()| 0))?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(line)
}

impl KeyFolder {
    /// A folder that is there.
    ///
    /// # Errors
    /// It has no keys.
    pub fn open(path: &Path) -> anyhow::Result<KeyFolder> {
        if !path.join("keys").is_dir() {
            let shown = path.display();
            return Err(failure::not_found(format!(
                "{shown} has no keys\nhint: `runnel trust init {shown}` makes them, or `runnel trust key {shown} --role ROLE`"
            )));
        }
        Ok(KeyFolder { path: path.into() })
    }

    /// Makes a folder, or takes one that is there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make(path: &Path) -> anyhow::Result<KeyFolder> {
        let named = || path.display().to_string();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join("keys")).with_context(named)?;
        fs::DirBuilder::new().recursive(true).create(path.join("metadata")).with_context(named)?;
        Ok(KeyFolder { path: path.into() })
    }

    /// Waits until no other command changes the folder, and keeps others waiting until the result
    /// is dropped.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn lock(&self) -> anyhow::Result<fs::File> {
        let path = self.path.join("lock");
        let named = || path.display().to_string();
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path).with_context(named)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) => tell!("waiting for another command that signs in {}", self.path.display()),
            Err(error) => return Err(io::Error::from(error)).with_context(named),
        }
        while let Err(error) = flock(&file, FlockOperation::LockExclusive) {
            if error != Errno::INTR {
                return Err(io::Error::from(error)).with_context(named);
            }
        }
        Ok(file)
    }

    /// Makes a key and its file.
    ///
    /// # Errors
    /// There is one, or it cannot be written.
    pub fn add_key(&self, name: &str, passphrase: Option<&[u8]>) -> anyhow::Result<SigningKey> {
        let file = self.path.join("keys").join(format!("{name}.key"));
        let named = || file.display().to_string();
        let (key, text) = SigningKey::generate(passphrase)?;
        let mut new = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&file).with_context(named)?;
        if let Err(error) = new.write_all(text.as_bytes()).and_then(|()| new.sync_all()) {
            // Half a key would be in the way of all others.
            let _ = fs::remove_file(&file);
            return Err(error).with_context(named);
        }
        Ok(key)
    }

    /// Takes a key away that nothing was signed with.
    pub fn remove_key(&self, name: &str) {
        let _ = fs::remove_file(self.path.join("keys").join(format!("{name}.key")));
    }

    /// Whether keys here have a passphrase: a new one then gets one, too.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn is_encrypted(&self) -> anyhow::Result<bool> {
        for file in self.key_files()? {
            if SigningKey::is_encrypted(&String::from_utf8_lossy(&read(&file, KEY_BYTES_MAX)?)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn key_files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let folder = self.path.join("keys");
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .with_context(|| folder.display().to_string())?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|kind| kind == "key"));
        files.sort();
        Ok(files)
    }

    /// A name for a new key of a role that no file has yet.
    pub fn free_name(&self, role: &str) -> String {
        let is_free = |name: &String| !self.path.join("keys").join(format!("{name}.key")).exists();
        let mut names = (2u32..).map(|number| format!("{role}-{number}"));
        Some(role.to_owned()).filter(is_free).or_else(|| names.find(is_free)).unwrap_or_else(|| role.into())
    }

    /// All keys, with the names of their files.
    ///
    /// # Errors
    /// A file is none, or the passphrase is wrong.
    pub fn keys(&self, passphrase: &PassphraseArgs) -> anyhow::Result<Vec<(String, SigningKey)>> {
        let mut given = None;
        let mut keys = Vec::new();
        for file in self.key_files()? {
            let text = String::from_utf8(read(&file, KEY_BYTES_MAX)?).with_context(|| file.display().to_string())?;
            if SigningKey::is_encrypted(&text) && given.is_none() {
                given = Some(passphrase.present()?);
                if io::stderr().is_terminal() {
                    tell!("deriving the keys from the passphrase…");
                }
            }
            let key = SigningKey::read(&text, given.as_deref()).with_context(|| file.display().to_string())?;
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            keys.push((name, key));
        }
        Ok(keys)
    }

    /// The newest root.
    ///
    /// # Errors
    /// There is none.
    pub fn root(&self) -> anyhow::Result<Vec<u8>> {
        let file = self.path.join("root.json");
        if !file.exists() {
            let shown = self.path.display();
            return Err(failure::not_found(format!(
                "{}: there is no root\nhint: copy the publisher's root.json there, or make one: `runnel trust init {shown}`",
                file.display()
            )));
        }
        read(&file, FILE_BYTES_MAX)
    }

    /// The files that were signed or seen last, as far as a name needs them.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn files(&self, name: &str, root_version: u64) -> anyhow::Result<Stapled> {
        collect(name, &Known::of_root(root_version), |file| self.read(file))
    }

    /// A metadata file, if it is there.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, file: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let path = self.path.join("metadata").join(file);
        if path.exists() { read(&path, FILE_BYTES_MAX).map(Some) } else { Ok(None) }
    }

    /// Keeps metadata files; the newest root is also what devices get.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn keep(&self, roots: &[Vec<u8>], files: &Stapled) -> anyhow::Result<()> {
        let folder = self.path.join("metadata");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        for root in roots {
            let version = version_of("root", root).unwrap_or(0);
            self.write(&Path::new("metadata").join(file_name("root", version)), root)?;
            self.write(Path::new("root.json"), root)?;
        }
        let timestamp_last = files.files().filter(|(role, _)| *role != "timestamp");
        for (role, file) in timestamp_last.chain(files.files().filter(|(role, _)| *role == "timestamp")) {
            let version = version_of(role, file).unwrap_or(0);
            self.write(&Path::new("metadata").join(file_name(role, version)), file)?;
        }
        Ok(())
    }

    /// Where the draft of a role lies.
    pub fn draft_path(&self, role: &str) -> PathBuf {
        self.path.join("drafts").join(format!("{role}.json"))
    }

    /// The draft of a role, if there is one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn draft(&self, role: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let path = self.draft_path(role);
        if path.exists() { read(&path, FILE_BYTES_MAX).map(Some) } else { Ok(None) }
    }

    /// Writes a draft, here or where another holder put it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_draft(&self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        let own = self.path.join("drafts");
        if path.starts_with(&own) {
            fs::create_dir_all(&own).with_context(|| own.display().to_string())?;
        }
        replace(path, bytes)
    }

    fn write(&self, file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        replace(&self.path.join(file), bytes)
    }
}

fn replace(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let new = path.with_extension("json.new");
    let replace = || -> io::Result<()> {
        let mut file = fs::File::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    replace().with_context(|| path.display().to_string())
}

/// A public key: its 64 digits, or a file that has them or the private key.
pub fn public_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::from_hex(text.trim())
        .ok_or_else(|| "a public key is 64 hexadecimal digits, as `trust key` prints them".into())
}

/// Reads a file up to a size.
///
/// # Errors
/// It cannot be read, or is longer.
pub fn read(file: &Path, bytes_max: u64) -> anyhow::Result<Vec<u8>> {
    let named = || file.display().to_string();
    let mut bytes = Vec::new();
    let opened = host::file::open(file).with_context(named)?;
    opened.take(bytes_max + 1).read_to_end(&mut bytes).with_context(named)?;
    if bytes.len() as u64 > bytes_max {
        return Err(failure::corrupt(format!("{}: longer than {} KiB", file.display(), bytes_max >> 10)));
    }
    Ok(bytes)
}
