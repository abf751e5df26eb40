//! Ed25519 keys in files: PKCS#8 in PEM, as `openssl genpkey -algorithm ed25519` writes them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use pkcs8::der::{Decode, SecretDocument};
use pkcs8::{EncryptedPrivateKeyInfo, LineEnding, ObjectIdentifier, PrivateKeyInfo, pkcs5};
use ring::digest::{Context, SHA256, digest};
use ring::signature::{ED25519 as VERIFICATION, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde_json::{Value, json};

use crate::canonical::canonical;
use crate::error::SigningError;

/// `id-Ed25519` of RFC 8410.
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// The key of RFC 8410 lies in an octet string of its own: its tag and its length.
const SEED_HEAD: [u8; 2] = [4, 32];

/// Cost of a guess of a passphrase, as powers of two of memory and the number of lanes: 16 MiB, the
/// most that OpenSSL takes by itself, four times.
const SCRYPT_LOG_N: u8 = 14;
const SCRYPT_LANES: u32 = 4;

/// A key that signs.
pub struct SigningKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

/// A key that verifies, as metadata have it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public).finish()
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl PublicKey {
    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<PublicKey> {
        units::ImageId::from_hex(text).map(|bytes| PublicKey(bytes.0))
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Its object in metadata.
    pub fn to_json(&self) -> Value {
        json!({"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": self.to_hex()}})
    }

    /// Reads its object in metadata; `None` for keys of other types.
    pub(crate) fn from_json(key: &Value) -> Option<PublicKey> {
        let is_ed25519 = key["keytype"] == "ed25519" && key["scheme"] == "ed25519";
        PublicKey::from_hex(key["keyval"]["public"].as_str()?).filter(|_| is_ed25519)
    }

    /// Whether this is its signature of `message`, as hexadecimal digits.
    pub(crate) fn verifies(&self, message: &[u8], signature: &str) -> bool {
        let digits = |at: usize| signature.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let bytes: Option<Vec<u8>> = (0..signature.len()).step_by(2).map(digits).collect();
        bytes.is_some_and(|bytes| UnparsedPublicKey::new(&VERIFICATION, self.0).verify(message, &bytes).is_ok())
    }

    /// Its id: the SHA-256 of its canonical form (specification, section 4.2).
    pub fn id(&self) -> String {
        sha256_hex(&canonical(&self.to_json()))
    }
}

impl SigningKey {
    /// A new key, as the text of a file.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn generate(passphrase: Option<&[u8]>) -> Result<(SigningKey, String), SigningError> {
        let mut seed = [0; 34];
        seed[..2].copy_from_slice(&SEED_HEAD);
        getrandom::fill(&mut seed[2..]).map_err(SigningError::Random)?;
        let algorithm = pkcs8::AlgorithmIdentifierRef { oid: ED25519, parameters: None };
        let info = PrivateKeyInfo::new(algorithm, &seed);
        let (label, document) = match passphrase {
            None => ("PRIVATE KEY", SecretDocument::try_from(info).map_err(not_key)?),
            Some(passphrase) => {
                let (mut salt, mut iv) = ([0; 16], [0; 16]);
                getrandom::fill(&mut salt).and_then(|()| getrandom::fill(&mut iv)).map_err(SigningError::Random)?;
                let cost = pkcs5::scrypt::Params::new(SCRYPT_LOG_N, 8, SCRYPT_LANES, 32).map_err(not_key)?;
                let scheme = pkcs5::pbes2::Parameters::scrypt_aes256cbc(cost, &salt, &iv).map_err(not_key)?;
                ("ENCRYPTED PRIVATE KEY", info.encrypt_with_params(scheme, passphrase).map_err(not_key)?)
            }
        };
        let text = document.to_pem(label, LineEnding::LF).map_err(not_key)?;
        Ok((SigningKey::of_seed(&seed[2..])?, text.to_string()))
    }

    /// Whether the text of a key file is encrypted.
    pub fn is_encrypted(text: &str) -> bool {
        text.contains("BEGIN ENCRYPTED PRIVATE KEY")
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// It is none, of another kind, or the passphrase is wrong or missing.
    pub fn read(text: &str, passphrase: Option<&[u8]>) -> Result<SigningKey, SigningError> {
        let (label, document) = SecretDocument::from_pem(text).map_err(not_key)?;
        let document = match label {
            "PRIVATE KEY" => document,
            "ENCRYPTED PRIVATE KEY" => {
                let passphrase = passphrase.ok_or(SigningError::Passphrase("missing"))?;
                let sealed = EncryptedPrivateKeyInfo::from_der(document.as_bytes()).map_err(not_key)?;
                sealed.decrypt(passphrase).map_err(|_| SigningError::Passphrase("wrong"))?
            }
            other => return Err(not_key(format!("a PEM file with {other}"))),
        };
        let info = PrivateKeyInfo::from_der(document.as_bytes()).map_err(not_key)?;
        if info.algorithm.oid != ED25519 {
            return Err(not_key("its algorithm is another one"));
        }
        let seed = info.private_key.strip_prefix(&SEED_HEAD);
        SigningKey::of_seed(seed.ok_or_else(|| not_key("its seed has not 32 bytes"))?)
    }

    fn of_seed(seed: &[u8]) -> Result<SigningKey, SigningError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(not_key)?;
        let public = pair.public_key().as_ref().try_into().map_err(not_key)?;
        Ok(SigningKey { pair, public: PublicKey(public) })
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The signature of `message` as 128 hexadecimal digits.
    pub(crate) fn sign(&self, message: &[u8]) -> String {
        hex(self.pair.sign(message).as_ref())
    }
}

fn not_key(what: impl fmt::Display) -> SigningError {
    SigningError::NotKey(what.to_string())
}

/// The SHA-256 as hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// The SHA-256 of a file as hexadecimal digits.
///
/// # Errors
/// It cannot be read.
pub fn sha256_of(file: &Path) -> io::Result<String> {
    let mut file = File::open(file)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(context.finish().as_ref())),
            bytes => context.update(&buffer[..bytes]),
        }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |text, byte| text + &format!("{byte:02x}"))
}
