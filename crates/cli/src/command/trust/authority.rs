//! A private authority: a folder with its key, the certificates that it issued, and the list of
//! those that it revoked.
//!
//! The authority's name holds a part of its public key. So lists of two authorities are never
//! mistaken for each other, and the name needs no place but the key.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use connection::random_number;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::failure;
use crate::recording::output;

/// The name under which the server's certificates are listed; no device has it.
pub const SERVER: &str = "server";

/// Names of our own files, without their endings.
const OWN_NAMES: [&str; 4] = ["ca", SERVER, "revoked", "certificates"];

/// Longest common name in a certificate (RFC 5280, ub-common-name).
const NAME_BYTES_MAX: usize = 64;

/// How long an authority lives: longer than the devices.
const AUTHORITY: Duration = Duration::from_secs(20 * 365 * 86_400);

/// New certificates are good from this long ago, for clocks that are behind.
const CLOCKS_APART: Duration = Duration::from_secs(86_400);

/// The last second that a certificate can name: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A time since 1970 as certificates have it: a type that rcgen has from elsewhere, and does not
/// name.
macro_rules! date {
    ($since_1970:expr) => {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(Duration::as_secs(&$since_1970).min(LAST_SECOND))
    };
}

/// A private authority, which nobody else changes at the time.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    book: Book,
    now: Duration,
    _lock: File,
}

/// What was issued.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Book {
    /// Names and addresses of the server.
    server: Vec<String>,
    /// When the authority ends, in seconds since 1970, as all times.
    until: u64,
    certificates: Vec<Entry>,
}

/// A certificate.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// 32 hex digits.
    serial: String,
    until: u64,
    revoked: Option<u64>,
}

/// What a certificate is for.
enum Purpose<'a> {
    Server(&'a [String]),
    Device(&'a str),
}

impl Authority {
    /// Opens the authority in `folder`, or makes one there.
    ///
    /// # Errors
    /// The folder cannot be used, or holds files of others.
    pub fn open(folder: &Path) -> anyhow::Result<Authority> {
        let shown = || folder.display().to_string();
        std::fs::create_dir_all(folder).with_context(shown)?;
        let lock = File::open(folder).with_context(shown)?;
        flock(&lock, FlockOperation::LockExclusive).with_context(shown)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        let (key_file, book_file) = (folder.join("ca.key"), folder.join("certificates.json"));
        if !book_file.exists() {
            return Authority::make(folder, lock, now);
        }
        let book = std::fs::read(&book_file).with_context(|| book_file.display().to_string())?;
        let book: Book = serde_json::from_slice(&book)
            .map_err(|error| failure::corrupt(format!("{}: {error}", book_file.display())))?;
        let pem = std::fs::read_to_string(&key_file).with_context(|| key_file.display().to_string())?;
        let key =
            KeyPair::from_pem(&pem).map_err(|error| failure::corrupt(format!("{}: {error}", key_file.display())))?;
        let issuer = Issuer::new(authority_params(&key), key);
        Ok(Authority { folder: folder.to_path_buf(), issuer, book, now, _lock: lock })
    }

    fn make(folder: &Path, lock: File, now: Duration) -> anyhow::Result<Authority> {
        for name in ["ca.key", "ca.pem"] {
            let file = folder.join(name);
            if file.exists() {
                let file = file.display();
                return Err(failure::usage(format!("{file} is not of this command; name a folder that has none")));
            }
        }
        let key = KeyPair::generate()?;
        let mut params = authority_params(&key);
        let until = (now + AUTHORITY).as_secs();
        (params.not_before, params.not_after) = (date!(now.saturating_sub(CLOCKS_APART)), date!(now + AUTHORITY));
        output::replace_secret(&folder.join("ca.key"), key.serialize_pem().as_bytes())?;
        output::replace(&folder.join("ca.pem"), params.self_signed(&key)?.pem().as_bytes())?;
        let book = Book { server: Vec::new(), until, certificates: Vec::new() };
        let issuer = Issuer::new(params, key);
        let authority = Authority { folder: folder.to_path_buf(), issuer, book, now, _lock: lock };
        authority.save()?;
        Ok(authority)
    }

    /// Names and addresses of the server; none as long as it has no certificate.
    pub fn server(&self) -> &[String] {
        &self.book.server
    }

    /// Makes a new certificate and key of the server.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn issue_server(&mut self, names: &[String], time: Duration) -> anyhow::Result<()> {
        self.book.server = names.to_vec();
        self.issue(&Purpose::Server(names), time)
    }

    /// Makes a new certificate and key of a device. Those that it had are still good.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn issue_device(&mut self, name: &str, time: Duration) -> anyhow::Result<()> {
        self.issue(&Purpose::Device(name), time)
    }

    fn issue(&mut self, purpose: &Purpose<'_>, time: Duration) -> anyhow::Result<()> {
        let (name, names, usage) = match purpose {
            Purpose::Server(names) => (SERVER, names.to_vec(), ExtendedKeyUsagePurpose::ServerAuth),
            Purpose::Device(name) => (*name, vec![(*name).to_owned()], ExtendedKeyUsagePurpose::ClientAuth),
        };
        let key = KeyPair::generate()?;
        let until = (self.now + time).as_secs().min(self.book.until);
        // The first byte says that the number is positive, and is not zero.
        let serial = ((random_number()? >> 1) | (1 << 126)).to_be_bytes();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named(name);
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        params.not_before = date!(self.now.saturating_sub(CLOCKS_APART));
        params.not_after = date!(Duration::from_secs(until));
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        // What is not in the book could never be revoked.
        let serial = serial.iter().map(|byte| format!("{byte:02x}")).collect();
        self.book.certificates.push(Entry { name: name.to_owned(), serial, until, revoked: None });
        self.save()?;
        output::replace_secret(&self.folder.join(format!("{name}.key")), key.serialize_pem().as_bytes())?;
        output::replace(&self.folder.join(format!("{name}.pem")), certificate.as_bytes())
    }

    /// Revokes all certificates of a name.
    ///
    /// # Errors
    /// It has none, or that cannot be written.
    pub fn revoke(&mut self, name: &str) -> anyhow::Result<()> {
        let mut found = false;
        for entry in self.book.certificates.iter_mut().filter(|entry| entry.name == name) {
            found = true;
            entry.revoked.get_or_insert(self.now.as_secs());
        }
        if !found {
            return Err(failure::not_found(format!("{name} has no certificate in {}", self.folder.display())));
        }
        self.save()
    }

    /// Writes the book, and the list of what is revoked.
    fn save(&self) -> anyhow::Result<()> {
        let mut book = serde_json::to_vec_pretty(&self.book)?;
        book.push(b'\n');
        let book_file = self.folder.join("certificates.json");
        output::replace(&book_file, &book)?;
        let revoked = self.book.certificates.iter().filter_map(|entry| Some((entry, entry.revoked?)));
        let revoked = revoked.map(|(entry, at)| {
            let serial = u128::from_str_radix(&entry.serial, 16).ok().filter(|_| entry.serial.len() == 32);
            let serial = serial.with_context(|| format!("{}: {} is no serial", book_file.display(), entry.serial))?;
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&serial.to_be_bytes()),
                revocation_time: date!(Duration::from_secs(at)),
                reason_code: None,
                invalidity_date: None,
            })
        });
        let list = CertificateRevocationListParams {
            this_update: date!(self.now),
            next_update: date!(Duration::from_secs(self.book.until)),
            // Grows as lists do.
            crl_number: SerialNumber::from(self.now.as_millis() as u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect::<anyhow::Result<_>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        output::replace(&self.folder.join("revoked.pem"), list.signed_by(&self.issuer)?.pem()?.as_bytes())
    }
}

fn authority_params(key: &KeyPair) -> CertificateParams {
    let part: String = key.public_key_raw().iter().rev().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&format!("Runnel authority {part}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// The name of a device, of which files are named.
///
/// # Errors
/// It cannot stand in a certificate or name a file, or is that of another file.
pub fn device_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !text.starts_with(|first: char| first.is_ascii_alphanumeric()) || !text.bytes().all(is_plain) {
        return Err("a name has letters, digits, `.`, `_` and `-`, and begins with one of the first two".to_owned());
    }
    match text {
        _ if text.len() > NAME_BYTES_MAX => Err(format!("a name has {NAME_BYTES_MAX} characters at most")),
        _ if OWN_NAMES.contains(&text) => Err(format!("{text} names another file")),
        _ => Ok(text.to_owned()),
    }
}

/// A name or an IP address under which devices reach a server.
///
/// # Errors
/// It is neither.
pub fn server_name(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !label.starts_with('-')
    };
    if text.parse::<std::net::IpAddr>().is_ok() || text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err("neither a host name nor an IP address".to_owned())
}
