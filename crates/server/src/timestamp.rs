//! The key that signs timestamps, and when it is used.
//!
//! A timestamp says what the newest snapshot is, and expires soon, so that nobody can withhold news
//! for long. A server that has the timestamp key signs the same again before it expires. It has no
//! other key: what a snapshot lists only its publisher changes, and a publisher signs a timestamp
//! with each change.
//!
//! There is a look after the start, after each change by a publisher, and every [`LOOK_EVERY`]. A
//! look that failed is made again later and later, since what is wrong then is for people.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signing::{Lifetimes, RoleKeys, SigningKey, renew_timestamp};
use trust::UnixTime;
use units::Moment;

use crate::config::TimestampKey;
use crate::error::ServerError;
use crate::lock::locked;

/// Largest key file; an encrypted one has 400 bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Permission bits of who must not read the key. The group may: it is how a service gets one.
const OTHERS: u32 = 0o007;

/// Time between looks. A life is hundreds of times as long, and the clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// Time until a look that failed is made again; it doubles, up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(60);

/// As often as a warning is still read.
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// A timestamp is signed again when less than this part of its life is left: a week of two, in
/// which people can help if it fails.
const LIFE_PART: i64 = 2;

/// Signs timestamps.
pub(crate) struct TimestampSigner {
    config: TimestampKey,
    state: Mutex<State>,
    /// A publisher has changed something since the last look.
    changed: AtomicBool,
}

struct State {
    /// Alone in it, as signing takes keys.
    keys: [SigningKey; 1],
    next_look: Moment,
    /// Looks that failed since one that did not.
    failures: u32,
}

impl TimestampSigner {
    /// Reads the key.
    pub fn open(config: TimestampKey) -> Result<TimestampSigner, ServerError> {
        let key = read(&config).map_err(|reason| ServerError::TimestampKey { path: config.file.clone(), reason })?;
        let state = State { keys: [key], next_look: Moment::default(), failures: 0 };
        Ok(TimestampSigner { config, state: Mutex::new(state), changed: AtomicBool::new(true) })
    }

    /// Refuses a root by which devices would not take what this key signs.
    pub fn check(&self, root: &[u8]) -> Result<(), ServerError> {
        let checked = fits(&locked(&self.state).keys[0], root);
        checked.map_err(|reason| ServerError::TimestampKey { path: self.config.file.clone(), reason })
    }

    /// Files were published: the next look comes at once.
    pub fn note_change(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    /// Whether it is time for a look. Whoever looks calls [`TimestampSigner::looked`] then.
    pub fn is_time(&self, now: Moment) -> bool {
        self.changed.swap(false, Ordering::Relaxed) || locked(&self.state).next_look <= now
    }

    /// A look is over.
    pub fn looked(&self, now: Moment, worked: bool) {
        let mut state = locked(&self.state);
        let pause = if worked { LOOK_EVERY } else { (RETRY_FIRST * (1 << state.failures.min(10))).min(RETRY_MAX) };
        state.failures = if worked { 0 } else { state.failures.saturating_add(1) };
        state.next_look = Moment(now.0.saturating_add(pause.as_micros() as u64));
    }

    /// Whether a timestamp that expires then should be signed again.
    pub fn is_due(&self, expires: UnixTime, now: UnixTime) -> bool {
        let life = i64::from(Lifetimes::default().timestamp) * 86_400;
        expires.0.saturating_sub(now.0) <= life / LIFE_PART
    }

    /// The timestamp that follows `timestamp`. A root that names another key than ours has the file
    /// read again: the new key may lie there.
    pub fn sign(&self, root: &[u8], timestamp: &[u8], now: UnixTime) -> Result<Vec<u8>, String> {
        let mut state = locked(&self.state);
        if let Err(reason) = fits(&state.keys[0], root) {
            let key = read(&self.config).map_err(|other| format!("{reason}, and {other}"))?;
            fits(&key, root)?;
            state.keys = [key];
        }
        renew_timestamp(root, timestamp, &state.keys, Lifetimes::default(), now).map_err(|error| error.to_string())
    }

    /// Where the key is, for messages.
    pub fn place(&self) -> std::path::Display<'_> {
        self.config.file.display()
    }
}

/// Whether what `key` signs alone is a timestamp by this root.
fn fits(key: &SigningKey, root: &[u8]) -> Result<(), String> {
    let (id, role) = (key.public().id(), RoleKeys::of_root(root, "timestamp").map_err(|error| error.to_string())?);
    if !role.ids.contains(&id) {
        let ids = role.ids.join(", ");
        return Err(format!("key {id} is no timestamp key of the present root, which has {ids}"));
    }
    if role.threshold > 1 {
        let needed = role.threshold;
        return Err(format!("key {id} alone cannot sign: by the present root a timestamp needs {needed} keys"));
    }
    Ok(())
}

fn read(config: &TimestampKey) -> Result<SigningKey, String> {
    let file = host::file::open(&config.file).map_err(|error| format!("the timestamp key cannot be read: {error}"))?;
    let mode = file.metadata().map_err(|error| error.to_string())?.mode();
    if mode & OTHERS != 0 {
        return Err(format!("others can read the timestamp key (mode {:o}): chmod 600", mode & 0o7777));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if SigningKey::is_encrypted(&text) && config.passphrase.is_none() {
        return Err("the timestamp key has a passphrase: name a file with it in RUNNEL_TRUST_PASSPHRASE_FILE".into());
    }
    SigningKey::read(&text, config.passphrase.as_deref()).map_err(|error| error.to_string())
}
