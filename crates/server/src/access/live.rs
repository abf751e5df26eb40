//! The access rules of a running server. They follow their files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::rules::{Definition, Principal};
use super::served::Served;
use super::stamp::Stamp;
use super::tokens::{self, Known, TokenHash, Tokens};
use super::usage::Usage;
use super::{AccessError, Shown};
use crate::audit::{Audit, Entry};
use crate::clock::Clock;
use crate::lock::locked;
use crate::log::Logger;

/// Time between two looks at the files. A change counts at the second look that finds it: by then
/// an editor that writes the file piece by piece is done. That is within a second.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What the files say now.
#[derive(Debug)]
pub(crate) struct Rules {
    definition: Arc<Definition>,
    tokens: Arc<Tokens>,
}

/// Who the server takes a client for, and why.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    pub principal: Arc<Principal>,
    pub because: String,
}

impl Rules {
    /// Who shows this.
    ///
    /// # Errors
    /// Why it is nobody: a token that is of no use, which is never taken for none.
    pub(super) fn who(&self, shown: &Shown, now: u64) -> Result<Who, String> {
        match &shown.token {
            Some(hash) => self.of_token(hash, now),
            None => Ok(self.of_names(&shown.names)),
        }
    }

    /// Who shows a certificate with these names, or none.
    pub fn of_names(&self, names: &[String]) -> Who {
        let (principal, because) = match self.definition.of_certificate(names) {
            Some((principal, name)) => (principal, format!("certificate {}", short(name))),
            None => {
                let because = match names.first() {
                    Some(name) => format!("certificate {}, which is of no principal", short(name)),
                    None => "no token, no certificate".to_owned(),
                };
                (&self.definition.anonymous, because)
            }
        };
        Who { principal: principal.clone(), because }
    }

    fn of_token(&self, hash: &TokenHash, now: u64) -> Result<Who, String> {
        let id = tokens::id_of(hash);
        let Some(known) = self.tokens.get(hash) else {
            return Err(
                "the server does not know your token: it was revoked, was made less than a second ago, or is for \
                        another server; else ask for a new one (`runnel token create` there)"
                    .to_owned(),
            );
        };
        if known.has_expired(now) {
            return Err(format!("your token {id} has expired; ask for a new one (`runnel token create` there)"));
        }
        let name = &known.principal;
        let principal = self.definition.principals.get(name).ok_or_else(|| {
            format!("your token {id} is of `{}`, who is not in the server's access file any more", short(name))
        })?;
        Ok(Who { principal: principal.clone(), because: format!("token {id}") })
    }

    /// When the next token ends.
    fn next_expiry(&self, now: u64) -> Option<u64> {
        self.tokens.values().filter_map(|known| known.expires).filter(|expires| *expires > now).min()
    }
}

/// The access rules of a server.
pub(crate) struct Access {
    path: PathBuf,
    log: Logger,
    audit: Option<Arc<Audit>>,
    rules: watch::Sender<Arc<Rules>>,
    state: Mutex<State>,
    pub(super) served: Served,
    clock: Clock,
    /// Of each principal that has had a client, by its name.
    usages: Mutex<HashMap<String, Arc<Usage>>>,
}

/// What the rules were made of.
struct State {
    definition: Arc<Definition>,
    tokens: Arc<Tokens>,
    /// Of the access file and the file of tokens, when they were read last.
    stamps: [Stamp; 2],
    /// The same at the last look.
    last_seen: [Stamp; 2],
    /// When a token ends that has not ended yet.
    next_expiry: Option<u64>,
}

impl Access {
    /// Reads the files.
    ///
    /// # Errors
    /// [`AccessError`]: one is wrong.
    pub fn open(path: PathBuf, log: Logger, audit: Option<Arc<Audit>>, clock: Clock) -> Result<Access, AccessError> {
        let stamp = Stamp::of(&path);
        let definition = Arc::new(Definition::read(&path)?);
        let stamps = [stamp, Stamp::of(&definition.tokens)];
        let tokens = Arc::new(tokens::read(&definition.tokens)?);
        let rules = Rules { definition: definition.clone(), tokens: tokens.clone() };
        let next_expiry = rules.next_expiry(seconds_now());
        let (rules, _) = watch::channel(Arc::new(rules));
        let state = Mutex::new(State { definition, tokens, stamps, last_seen: stamps, next_expiry });
        Ok(Access { path, log, audit, rules, state, served: Served::default(), clock, usages: Mutex::default() })
    }

    /// What all clients of a principal have and do.
    pub fn usage(&self, principal: &Principal) -> Arc<Usage> {
        let mut usages = locked(&self.usages);
        if let Some(usage) = usages.get(&principal.name) {
            return usage.clone();
        }
        let usage = Arc::new(Usage::new(&principal.name, principal.limits, self.clock));
        usages.insert(principal.name.clone(), usage.clone());
        usage
    }

    /// The rules of now and of later.
    pub fn rules(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.subscribe()
    }

    /// Reads the files again if they changed, and has connections look again when a token ends.
    /// Called every [`LOOK_EVERY`]. Blocks.
    pub fn look(&self) {
        self.look_at(seconds_now());
    }

    fn look_at(&self, now: u64) {
        let mut state = locked(&self.state);
        let stamps = self.stamps(&state);
        let is_settled = std::mem::replace(&mut state.last_seen, stamps) == stamps;
        if stamps != state.stamps && is_settled {
            // What failed is in the log.
            let _ = self.read_again(&mut state, now);
        } else if state.next_expiry.is_some_and(|expiry| expiry <= now) {
            let ends = state.next_expiry;
            self.note_all("token-expired", &state.tokens, |_, known| known.expires >= ends && known.has_expired(now));
            self.publish(&mut state, now);
        }
    }

    /// Lines of the audit log for some tokens.
    fn note_all(&self, action: &'static str, tokens: &Tokens, about: impl Fn(&TokenHash, &Known) -> bool) {
        let Some(audit) = &self.audit else { return };
        for (hash, known) in tokens.iter().filter(|(hash, known)| about(hash, known)) {
            let name = &tokens::id_of(hash);
            audit.note(&Entry { action, principal: &known.principal, name, outcome: "done", ..Entry::default() });
        }
    }

    /// Reads the files again. What is wrong stays as it was, and the log says why. Blocks.
    ///
    /// # Errors
    /// The first file that is wrong.
    pub fn reload(&self) -> Result<(), AccessError> {
        self.read_again(&mut locked(&self.state), seconds_now())
    }

    fn stamps(&self, state: &State) -> [Stamp; 2] {
        [Stamp::of(&self.path), Stamp::of(&state.definition.tokens)]
    }

    /// Each file counts by itself: a mistake in the access file must not keep a token alive that
    /// was revoked.
    fn read_again(&self, state: &mut State, now: u64) -> Result<(), AccessError> {
        // Before the files are read: what changes meanwhile is seen at the next look.
        let stamp = Stamp::of(&self.path);
        let definition = Definition::read(&self.path).map(|read| state.definition = Arc::new(read));
        state.stamps = [stamp, Stamp::of(&state.definition.tokens)];
        let tokens = tokens::read(&state.definition.tokens).map(|read| {
            let before = std::mem::replace(&mut state.tokens, Arc::new(read));
            self.note_all("token-revoked", &before, |hash, _| !state.tokens.contains_key(hash));
            self.note_all("token-added", &state.tokens, |hash, _| !before.contains_key(hash));
        });
        self.publish(state, now);
        let done = definition.and(tokens);
        match &done {
            Ok(()) => self.log.info(format_args!(
                "the access rules were read again: principals: {}, tokens: {}",
                state.definition.principals.len(),
                state.tokens.len()
            )),
            Err(error) => self.log.warning(format_args!("the old access rules stay in use: {error}")),
        }
        done
    }

    /// All connections look again who their clients are.
    fn publish(&self, state: &mut State, now: u64) {
        let rules = Rules { definition: state.definition.clone(), tokens: state.tokens.clone() };
        state.next_expiry = rules.next_expiry(now);
        // First, so that a connection that looks finds the limits of now.
        for (name, usage) in locked(&self.usages).iter() {
            usage.set_limits(rules.definition.limits_of(name));
        }
        self.rules.send_replace(Arc::new(rules));
    }
}

/// The calendar, in seconds since 1970.
pub(super) fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// So much of a name that a message has room for it.
pub(super) fn short(name: &str) -> String {
    match name.char_indices().nth(SHORT_CHARS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// A message has 256 bytes.
const SHORT_CHARS: usize = 48;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::access::{Right, TokenFile};

    fn opened(text: &str) -> (tempfile::TempDir, PathBuf, Access) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        std::fs::write(&path, text).unwrap();
        let access = Access::open(path.clone(), Logger::silent(), None, Clock::start()).unwrap();
        (folder, path, access)
    }

    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn anonymous_pulls(rules: &watch::Receiver<Arc<Rules>>) -> bool {
        let who = rules.borrow().who(&Shown::default(), 0).unwrap();
        who.principal.may(Right::Pull, "a:b")
    }

    #[test]
    fn rules_follow_their_file_and_a_wrong_one_changes_nothing() {
        let (_folder, path, access) = opened("");
        let mut rules = access.rules();
        access.look();
        assert!(!rules.has_changed().unwrap(), "nothing was written");
        replace(&path, "[principal.anonymous]\npull = [\"*\"]\n");
        access.look();
        assert!(!rules.has_changed().unwrap(), "it may not be complete");
        access.look();
        assert!(rules.has_changed().unwrap() && anonymous_pulls(&rules));
        rules.mark_unchanged();
        replace(&path, "[principal.anonymous\n");
        assert!(access.reload().unwrap_err().to_string().contains("access.toml:1: "));
        access.look();
        access.look();
        assert!(anonymous_pulls(&rules), "the old rules stay");
        std::fs::remove_file(&path).unwrap();
        access.look();
        access.look();
        assert!(anonymous_pulls(&rules));
        replace(&path, "");
        access.look();
        access.look();
        assert!(!anonymous_pulls(&rules));
    }

    #[test]
    fn tokens_begin_and_end() {
        let (_folder, path, access) = opened("[principal.ci]\n");
        let mut rules = access.rules();
        let issued = |expires| TokenFile::open(&path).unwrap().create("ci", 0, expires).unwrap();
        let (good, brief) = (issued(None), issued(Some(1_000)));
        let who = |rules: &watch::Receiver<Arc<Rules>>, token: &wire::Bearer, now| {
            let shown = Shown { names: vec!["x".to_owned()], token: Some(token.hash()) };
            rules.borrow().who(&shown, now).map(|who| who.principal.name.clone())
        };
        assert!(who(&rules, &good.token, 0).is_err(), "nobody has looked yet");
        access.look_at(0);
        access.look_at(0);
        assert_eq!(who(&rules, &good.token, 0), Ok("ci".to_owned()));
        rules.mark_unchanged();
        access.look_at(999);
        assert!(!rules.has_changed().unwrap());
        access.look_at(1_000);
        assert!(rules.has_changed().unwrap(), "connections must look again");
        assert!(who(&rules, &brief.token, 1_000).unwrap_err().contains("expired"));
        // The access file is wrong, and the token ends all the same.
        replace(&path, "[principal.ci");
        TokenFile::open(&path).err().expect("it is wrong");
        let tokens = path.with_file_name("tokens.toml");
        replace(&tokens, "");
        access.look_at(1_001);
        access.look_at(1_001);
        assert!(who(&rules, &good.token, 1_001).unwrap_err().contains("revoked"));
    }
}
