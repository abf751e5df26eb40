//! Changes that wait for other holders: what a command says of one, and `runnel trust sign
//! --draft`.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use signing::{Change, Draft, Missing};

use crate::failure;

/// Most drafts of one change: root, targets and a delegated role.
const DRAFTS_MAX: usize = 3;

/// What became of a change.
pub enum Outcome {
    /// It is in force where it was published.
    InForce(Change),
    /// It waits in these files for other holders.
    Waits(Draft, Vec<PathBuf>),
}

impl Outcome {
    /// The change, if it is in force.
    pub fn change(&self) -> Option<&Change> {
        match self {
            Outcome::InForce(change) => Some(change),
            Outcome::Waits(..) => None,
        }
    }

    /// Prints it: as JSON, or what is still to be done. Of a change in force commands speak
    /// themselves.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            outln!("{:#}", self.json());
        } else if let Outcome::Waits(draft, files) = self {
            outln!("{}", waiting(draft, files));
        }
        Ok(())
    }

    /// For programs.
    pub fn json(&self) -> Value {
        match self {
            Outcome::InForce(change) => {
                let files: Vec<&str> = change.files.iter().map(|(file, _)| file.as_str()).collect();
                json!({"in_force": true, "files": files})
            }
            Outcome::Waits(draft, files) => {
                let missing: Vec<Value> = draft.missing.iter().map(missing_json).collect();
                json!({"in_force": false, "drafts": files, "missing": missing})
            }
        }
    }
}

fn missing_json(missing: &Missing) -> Value {
    let key = |(id, public): &(String, Option<signing::PublicKey>)| json!({"id": id, "public": public.map(|public| public.to_hex())});
    json!({
        "role": missing.role, "is_root_before": missing.is_before, "threshold": missing.threshold,
        "needed": missing.needed, "keys": missing.keys.iter().map(key).collect::<Vec<_>>(),
    })
}

/// Who still has to sign, and how.
fn waiting(draft: &Draft, files: &[PathBuf]) -> String {
    let mut text = String::from("not yet in force: others have to sign");
    for missing in &draft.missing {
        let Missing { role, is_before, needed, keys, .. } = missing;
        let whose = if *is_before { "the present root" } else { role.as_str() };
        let count =
            if keys.len() == *needed { format!("with {needed}") } else { format!("with {needed} of {}", keys.len()) };
        let _ = write!(text, "\n  as {whose}, {count}:");
        for (id, public) in keys {
            let public = public.map_or_else(String::new, |public| format!(" (public {})", public.to_hex()));
            let _ = write!(text, "\n    key {id}{public}");
        }
    }
    let files: String = files.iter().map(|file| format!(" --draft {}", file.display())).collect();
    let _ = write!(text, "\nnext, a holder of such a key, with a folder of their own: runnel trust sign{files} FOLDER");
    text
}

/// Drafts of other holders, as they were given.
pub struct Drafts {
    /// By role.
    pub files: Vec<(String, Vec<u8>)>,
    /// Where each of them lies.
    pub paths: Vec<PathBuf>,
}

impl Drafts {
    /// Reads files, and those in folders. A file is named after its role.
    ///
    /// # Errors
    /// One cannot be read or has the name of no role, or there are none or too many.
    pub fn read(given: &[PathBuf]) -> anyhow::Result<Drafts> {
        let mut paths = Vec::new();
        for path in given {
            if !path.is_dir() {
                paths.push(path.clone());
                continue;
            }
            for entry in std::fs::read_dir(path).with_context(|| path.display().to_string())? {
                let file = entry.with_context(|| path.display().to_string())?.path();
                if file.extension().is_some_and(|kind| kind == "json") {
                    paths.push(file);
                }
            }
        }
        paths.sort();
        if paths.is_empty() || paths.len() > DRAFTS_MAX {
            let found = paths.len();
            return Err(failure::usage(format!("{found} drafts, and a change has 1 to {DRAFTS_MAX}")));
        }
        let files = paths.iter().map(|path| {
            let role = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| !stem.is_empty());
            let role =
                role.with_context(|| format!("{}: name the file after its role, as in root.json", path.display()))?;
            Ok((role.to_owned(), super::key_folder::read(path, super::key_folder::FILE_BYTES_MAX)?))
        });
        let files = files.collect::<anyhow::Result<_>>()?;
        Ok(Drafts { files, paths })
    }

    /// Where the draft of a role lies.
    pub fn path(&self, role: &str) -> Option<&Path> {
        let mut both = self.files.iter().zip(&self.paths);
        both.find(|((other, _), _)| other == role).map(|(_, path)| path.as_path())
    }

    /// Whether the root alone is needed to judge them.
    pub fn are_of_root(&self) -> bool {
        self.files.iter().all(|(role, _)| role == "root")
    }

    /// The delegated role among them, and the names that its draft has.
    pub fn delegated(&self) -> Option<(&str, Vec<String>)> {
        let (role, bytes) = self.files.iter().find(|(role, _)| !signing::TOP_LEVEL.contains(&role.as_str()))?;
        let file: Value = serde_json::from_slice(bytes).unwrap_or_default();
        let names = file["signed"]["targets"].as_object().into_iter().flatten();
        Some((role, names.map(|(name, _)| name.clone()).collect()))
    }
}
