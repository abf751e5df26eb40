//! A publisher's change of signed names: what the server has is read and checked, changed, signed,
//! and written back. If somebody else was quicker, all of it is done again. A change that other
//! holders must sign, too, is kept as a draft.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use client::ClientError;
use client::admin::{read_signed, write_signed};
use connection::{ConnectionError, Remote, Server};
use signing::{Change, Draft, Lifetimes, Repository, Signed, SigningError, SigningKey, TOP_LEVEL, Target};
use trust::repository::{covers, file_name, is_name, listed_version, version_of};
use trust::{Kind, Known, Refusal, Stapled, UnixTime, Verifier};
use units::ImageId;
use wire::ErrorCode;

use super::TrustArgs;
use super::draft::{Drafts, Outcome};
use super::key_folder::{KeyFolder, PassphraseArgs};
use crate::failure;

/// Others may publish at the same time; so often a change is made anew.
const ATTEMPTS: u32 = 5;

/// Time for an answer of the server.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Who publishes, and where.
pub struct Publisher<'a> {
    pub folder: KeyFolder,
    pub keys: Vec<SigningKey>,
    /// The server that has the names, if it is to be asked and told.
    pub server: Option<(Server, &'a TrustArgs)>,
    pub lifetimes: Lifetimes,
    /// Drafts of others that are signed now; `None` for a change of our own.
    pub drafts: Option<Drafts>,
}

/// Files that were checked, of a server or of the folder.
struct Base {
    /// The newest root.
    root: Vec<u8>,
    files: Stapled,
    /// Version of the server's newest root; 0 if it has none.
    server_root: u64,
}

impl Publisher<'_> {
    /// Makes a change that is about `name`, or with an empty name about none; returns what became
    /// of it. Without a change the files go to the server as they are.
    ///
    /// One change of a folder is made after the other: of two that both went on from the same files
    /// one would be lost.
    ///
    /// # Errors
    /// What the server has is not to be trusted, a key is missing, or the server refuses.
    pub fn change<T>(
        &self,
        name: &str,
        edit: impl Fn(&mut Repository, &[SigningKey]) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Outcome)> {
        let _alone = self.folder.lock()?;
        let mut attempt = 1;
        loop {
            match self.try_change(name, &edit) {
                Err(error) if attempt < ATTEMPTS && is_conflict(&error) => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    /// Whether a name could be signed: all but the writing is done.
    ///
    /// # Errors
    /// Those of [`Publisher::change`].
    fn check(&self, name: &str) -> anyhow::Result<()> {
        let base = self.base(name)?;
        let mut repository = Repository::read(&base.root, &base.files, self.lifetimes)?;
        let target = Target { id: ImageId([0; 32]), bytes: 0, sha256: String::new(), fs_verity: String::new() };
        repository.set_name(name, &target, None, &self.keys)?;
        match repository.sign_or_draft(&self.keys, now())? {
            Signed::Complete(_) => Ok(()),
            Signed::Draft(draft) => self.check_pending(&draft),
        }
    }

    /// What the drafts of others change, in words. No key is needed for that.
    ///
    /// # Errors
    /// They do not follow what is in force, or what is in force is not to be trusted.
    pub fn words(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let base = self.base(name)?;
        Ok(Repository::read(&base.root, &base.files, self.lifetimes)?.take_drafts(self.draft_files())?)
    }

    /// The drafts of others, by role.
    pub fn draft_files(&self) -> &[(String, Vec<u8>)] {
        self.drafts.as_ref().map_or(&[], |drafts| &drafts.files)
    }

    /// A name by which the file of the drafts' delegated role is found.
    ///
    /// # Errors
    /// Those of [`Publisher::words`].
    pub fn name_of(&self) -> anyhow::Result<String> {
        let Some((role, names)) = self.drafts.as_ref().and_then(Drafts::delegated) else { return Ok(String::new()) };
        let base = self.base("")?;
        let targets = base.files.file("targets").map(serde_json::from_slice::<serde_json::Value>);
        let targets = targets.transpose().context("targets")?.unwrap_or_default();
        let roles = targets["signed"]["delegations"]["roles"].as_array().into_iter().flatten();
        let entry = roles.into_iter().find(|entry| entry["name"] == role);
        let patterns = entry.iter().flat_map(|entry| entry["paths"].as_array().into_iter().flatten());
        let patterns: Vec<&str> = patterns.filter_map(serde_json::Value::as_str).collect();
        // The last name of a role may be taken away: any that it could have will do.
        let possible =
            patterns.iter().flat_map(|pattern| ["x", "x:x"].map(|text| pattern.replace('*', text).replace('?', "x")));
        let fits = |name: &String| is_name(name) && patterns.iter().any(|pattern| covers(pattern, name));
        names.into_iter().chain(possible).find(fits).ok_or_else(|| {
            failure::usage(format!("the draft of role {role}: no name leads to it, as far as is known here"))
        })
    }

    /// Refuses a draft beside another one of the same file, which would never come into force.
    fn check_pending(&self, draft: &Draft) -> anyhow::Result<()> {
        for (role, new) in draft.files.iter().filter(|_| self.drafts.is_none()) {
            let Some(old) = self.folder.draft(role)? else { continue };
            if version_of(role, &old) == version_of(role, new) {
                let file = self.folder.draft_path(role);
                let hint = format!("hint: finish it, or delete {} to give it up", file.display());
                return Err(anyhow::Error::new(SigningError::Pending(role.clone()))
                    .context(format!("{}\n{hint}", SigningError::Pending(role.clone()))));
            }
        }
        Ok(())
    }

    /// Keeps a draft: in the place of the one that was signed, or in the folder.
    fn keep_draft(&self, draft: &Draft) -> anyhow::Result<Vec<PathBuf>> {
        let given = |role: &str| self.drafts.as_ref().and_then(|drafts| drafts.path(role));
        let mut files = Vec::with_capacity(draft.files.len());
        for (role, bytes) in &draft.files {
            let file = given(role).map_or_else(|| self.folder.draft_path(role), Path::to_path_buf);
            self.folder.write_draft(&file, bytes)?;
            files.push(file);
        }
        Ok(files)
    }

    /// Takes away drafts that are in force now, or never can be.
    fn drop_drafts(&self, change: &Change) -> anyhow::Result<()> {
        for path in self.drafts.iter().flat_map(|drafts| &drafts.paths) {
            // It may lie on a medium that cannot be written. What it says is in force all the same.
            if let Err(error) = std::fs::remove_file(path) {
                tell!("note: the draft {} is done, and stays: {error}", path.display());
            }
        }
        let roots = change.stapled.roots().iter().map(|root| ("root", root.as_slice()));
        for (role, file) in roots.chain(change.stapled.files()) {
            let Some(draft) = self.folder.draft(role)? else { continue };
            if version_of(role, &draft) <= version_of(role, file) {
                let path = self.folder.draft_path(role);
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
                tell!("note: {} was overtaken, and is deleted", path.display());
            }
        }
        Ok(())
    }

    fn try_change<T>(
        &self,
        name: &str,
        edit: impl Fn(&mut Repository, &[SigningKey]) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Outcome)> {
        let base = self.base(name)?;
        let mut repository = Repository::read(&base.root, &base.files, self.lifetimes)?;
        let outcome = edit(&mut repository, &self.keys)?;
        let change = match repository.sign_or_draft(&self.keys, now())? {
            Signed::Complete(change) => change,
            Signed::Draft(draft) => {
                self.check_pending(&draft)?;
                // The next holder may have no server, and needs what this goes on from.
                self.folder.keep(&[], &base.files)?;
                let files = self.keep_draft(&draft)?;
                return Ok((outcome, Outcome::Waits(draft, files)));
            }
        };
        let new_roots = change.stapled.roots().to_vec();
        if let Some((server, trust)) = &self.server {
            let mut sent = Stapled::default();
            let present = version_of("root", &base.root).unwrap_or(0);
            for version in base.server_root + 1..=present {
                let root = self.folder.read(&file_name("root", version))?;
                sent.push_root(root.with_context(|| format!("root version {version} is not in the folder"))?);
            }
            new_roots.iter().for_each(|root| sent.push_root(root.clone()));
            change.stapled.files().for_each(|(role, file)| sent.push(role, file.to_vec()));
            write_signed(server, &trust.trust()?, name, &sent, PATIENCE)?;
        }
        self.folder.keep(&new_roots, &change.stapled)?;
        self.drop_drafts(&change)?;
        Ok((outcome, Outcome::InForce(change)))
    }

    /// The newest files of the folder and the server. Both are checked, the older ones first: so
    /// nothing that this publisher has seen goes back.
    fn base(&self, name: &str) -> anyhow::Result<Base> {
        let mut root = self.folder.root()?;
        let mut verifier = Verifier::new(&root).context("root.json")?;
        let local = self.folder.files(name, verifier.root_version())?;
        let mut server_root = 0;
        let mut remote = Stapled::default();
        if let Some((server, trust)) = &self.server {
            // All roots: how many the server has tells which it lacks.
            let mut known = Known::of_root(0);
            loop {
                remote = read_signed(server, &trust.trust()?, name, &known, PATIENCE)?;
                server_root = remote.roots().last().and_then(|root| version_of("root", root)).unwrap_or(server_root);
                let mut newer = remote.clone();
                newer.drop_roots_until(verifier.root_version());
                for new in newer.roots() {
                    let mut one = Stapled::default();
                    one.push_root(new.clone());
                    verifier.take_roots(&one).with_context(|| format!("{server}"))?;
                    self.folder.keep(std::slice::from_ref(new), &Stapled::default())?;
                    root.clone_from(new);
                }
                if !remote.has_more_roots() {
                    break;
                }
                known = Known::of_root(server_root);
            }
        }
        let version =
            |files: &Stapled| files.file("timestamp").and_then(|file| version_of("timestamp", file)).unwrap_or(0);
        let mut both = [without_roots(&local), without_roots(&remote)];
        both.sort_by_key(version);
        let [older, files] = both;
        if let Some(drafts) = self.drafts.as_ref().filter(|_| version(&files) == 0) {
            if drafts.are_of_root() {
                return Ok(Base { root, files: Stapled::default(), server_root });
            }
            return Err(failure::not_found(
                "the names that are signed so far are not in this folder\nhint: read them with --server, or copy the folder \
                 `metadata` of who made the draft",
            ));
        }
        let refused = |refusal: Refusal| {
            let hint = match refusal.kind() {
                Kind::Forked | Kind::Rollback => {
                    "\nhint: this folder and the server have gone different ways; to go on from the server's names, without those \
                     signed here alone, move its folder `metadata` away and try again"
                }
                _ => "",
            };
            failure::with_code(
                failure::refusal_code(&refusal),
                format!("the signed names are not as this publisher left them: {refusal}{hint}"),
            )
        };
        // Without a clock: what has expired is to be signed anew. The older files may be from
        // before the newest root; then they say nothing of what follows.
        if version(&older) > 0
            && let Err(refusal) = verifier.verify_files(&older, None)
            && refusal.kind() != Kind::Signature
        {
            return Err(refused(refusal));
        }
        let checked = match name {
            "" => verifier.verify_files(&files, None),
            name => verifier.verify(&files, name, None).map(drop),
        };
        match checked {
            // Every role that could have it was read and checked.
            Err(refusal) if refusal.kind() == Kind::NotFound => {}
            // Nor can a role have it that has signed nothing yet.
            Err(Refusal::Missing { role }) if is_new(&files, &role) => {}
            checked => checked.map_err(refused)?,
        }
        Ok(Base { root, files, server_root })
    }
}

/// Whether a role has signed nothing yet.
fn is_new(files: &Stapled, role: &str) -> bool {
    let is_top_level = TOP_LEVEL.contains(&role);
    !is_top_level && files.file("snapshot").is_some_and(|snapshot| listed_version(snapshot, role).is_none())
}

fn without_roots(files: &Stapled) -> Stapled {
    let mut others = Stapled::default();
    files.files().for_each(|(role, file)| others.push(role, file.to_vec()));
    others
}

fn is_conflict(error: &anyhow::Error) -> bool {
    let refused = |error: &ClientError| {
        matches!(error, ClientError::Connection(ConnectionError::Refused { code: ErrorCode::Conflict, .. }))
    };
    error.downcast_ref::<ClientError>().is_some_and(refused)
}

/// The clock, which a publisher must have.
pub fn now() -> UnixTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixTime(since.as_secs().cast_signed())
}

/// Signs a name for an image file; returns the role that does.
///
/// # Errors
/// Those of [`Publisher::change`]; the file cannot be read.
pub fn sign_image(
    publisher: &Publisher<'_>,
    name: &str,
    (image, id): (&Path, ImageId),
    role: Option<&str>,
) -> anyhow::Result<(String, Outcome)> {
    let bytes = std::fs::metadata(image).with_context(|| image.display().to_string())?.len();
    let sha256 = signing::sha256_of(image).with_context(|| image.display().to_string())?;
    let fs_verity = signing::fs_verity_of(image).with_context(|| image.display().to_string())?;
    let target = Target { id, bytes, sha256, fs_verity };
    publisher.change(name, |repository, keys| Ok(repository.set_name(name, &target, role, keys)?))
}

/// Makes ready to sign the name of a push. What is in the way of that is found before anything
/// is uploaded: an upload moves the name at once. The result signs, and returns the role that does.
///
/// # Errors
/// Those of [`sign_image`]; the folder has no keys.
pub fn sign_push<'a>(
    folder: &Path,
    passphrase: &PassphraseArgs,
    remote: &Remote,
    trust: &'a TrustArgs,
) -> anyhow::Result<impl FnOnce(&Path, ImageId) -> anyhow::Result<(String, Outcome)> + use<'a>> {
    let folder = KeyFolder::open(folder)?;
    let keys: Vec<SigningKey> = folder.keys(passphrase)?.into_iter().map(|(_, key)| key).collect();
    let (server, name) = (remote.server.clone(), remote.image.to_string());
    let ready =
        Publisher { folder, keys, server: Some((server, trust)), lifetimes: Lifetimes::default(), drafts: None };
    ready.check(&name)?;
    Ok(move |image: &Path, id| sign_image(&ready, &name, (image, id), None))
}
