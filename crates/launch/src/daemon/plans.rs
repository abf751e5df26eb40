//! The folders of plans that a daemon uses, and which programs have a plan in them.
//!
//! A folder is used for programs that its owner starts; a folder of root's, for programs that
//! anybody starts. Only its owner may have write access, and nobody else may be able to replace the
//! folder.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use probe::FileId;

use super::process::Process;
use super::rights::Rights;
use crate::{LaunchError, PlanStore, Program, read_plan};

/// Plans used of a folder at most: more than anybody learns, and a limit for a folder that somebody
/// fills.
const PLANS_MAX: usize = 2048;

/// A folder of plans and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) plans: PlanStore,
    pub(crate) owner: Rights,
}

impl Store {
    /// Looks at a folder.
    ///
    /// # Errors
    /// It is no folder, or others than its owner can change it.
    pub(crate) fn open(folder: &Path) -> Result<Store, LaunchError> {
        let folder = folder.canonicalize().map_err(LaunchError::io("use", folder))?;
        let metadata = fs::metadata(&folder).map_err(LaunchError::io("use", &folder))?;
        let untrusted = |why: &'static str| LaunchError::Untrusted { path: folder.clone(), why };
        if !metadata.is_dir() {
            return Err(untrusted("is no folder"));
        }
        if metadata.mode() & 0o022 != 0 {
            return Err(untrusted("may be written to by others than its owner"));
        }
        for above in folder.ancestors().skip(1) {
            let found = fs::metadata(above).map_err(LaunchError::io("use", above))?;
            // In a sticky folder, such as /tmp, nobody replaces what is another's.
            let is_open = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
            if is_open || (found.uid() != 0 && found.uid() != metadata.uid()) {
                return Err(untrusted("lies where others could put another one in its place"));
            }
        }
        let owner = Rights { uid: metadata.uid(), gid: metadata.gid(), groups: Vec::new() };
        Ok(Store { plans: PlanStore::open(Some(&folder))?, owner })
    }

    /// Whether the owner of the folder, or root, alone can change a plan that lies in it: it may
    /// have been copied there.
    ///
    /// # Errors
    /// It is not so, or the file cannot be looked at.
    pub(crate) fn check(&self, plan: &Path) -> Result<(), LaunchError> {
        let found = fs::symlink_metadata(plan).map_err(LaunchError::io("use", plan))?;
        let untrusted = |why: &'static str| Err(LaunchError::Untrusted { path: plan.to_path_buf(), why });
        if found.uid() != self.owner.uid && found.uid() != 0 {
            return untrusted("belongs to somebody else than its folder");
        }
        if found.mode() & 0o022 != 0 {
            return untrusted("may be written to by others than its owner");
        }
        Ok(())
    }
}

/// Makes a folder of plans, for this user alone, if it is not there.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(folder: &Path) -> Result<(), LaunchError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(LaunchError::io("make", folder))
}

/// The programs that have plans.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Their files.
    pub(crate) programs: BTreeMap<FileId, PathBuf>,
    /// The files of their plans, and the position of the folder.
    pub(crate) plans: HashMap<PathBuf, usize>,
    /// Whether a folder or a program was not there.
    pub(crate) lacks: bool,
}

impl Known {
    /// Looks through the folders. Notes say what cannot be used. Leaves the thread with rights
    /// `own`.
    ///
    /// # Errors
    /// The thread could not get its own rights back.
    pub(crate) fn scan(stores: &[Store], own: &Rights, notes: &mut Vec<String>) -> std::io::Result<Known> {
        let mut known = Known::default();
        for (number, store) in stores.iter().enumerate() {
            match Store::open(store.plans.folder()) {
                // It may have been replaced.
                Ok(now) if now.owner == store.owner => {
                    match store.owner.assume() {
                        Ok(()) => known.add(number, store, notes),
                        Err(error) => notes.push(format!("{}: {error}", store.plans.folder().display())),
                    }
                    own.assume()?;
                }
                Ok(_) => notes.push(format!("{}: belongs to somebody else now", store.plans.folder().display())),
                Err(error) => {
                    known.lacks = true;
                    notes.push(error.to_string());
                }
            }
        }
        Ok(known)
    }

    fn add(&mut self, number: usize, store: &Store, notes: &mut Vec<String>) {
        let paths = store.plans.paths().unwrap_or_else(|error| {
            notes.push(error.to_string());
            Vec::new()
        });
        if paths.len() > PLANS_MAX {
            notes.push(format!("{}: over {PLANS_MAX} plans, the rest is not used", store.plans.folder().display()));
        }
        for path in paths.into_iter().take(PLANS_MAX) {
            let program = match store.check(&path).and_then(|()| read_plan(&path)) {
                Ok(plan) => PathBuf::from(OsStr::from_bytes(&plan.program)),
                Err(error) => {
                    notes.push(error.to_string());
                    continue;
                }
            };
            // A link would be a second name of a program that somebody else has a plan of.
            let is_real = program.is_file() && program.canonicalize().is_ok_and(|real| real == program);
            match FileId::of(&program).ok().filter(|_| is_real) {
                Some(file) => {
                    self.programs.entry(file).or_insert(program);
                    self.plans.insert(path, number);
                }
                None => {
                    self.lacks = true;
                    notes.push(format!("{}: there is no program {}", path.display(), program.display()));
                }
            }
        }
    }

    /// The folder that holds the plan of a program for this process, and the plan's file. What its
    /// user learned comes before what root did.
    pub(crate) fn find(&self, stores: &[Store], program: &Program, process: &Process) -> Option<(usize, PathBuf)> {
        let whose = |uid: u32| {
            stores.iter().enumerate().filter(move |(_, store)| store.owner.uid == uid).find_map(|(number, store)| {
                let path = store.plans.plan_path(program);
                (self.plans.get(&path) == Some(&number)).then_some((number, path))
            })
        };
        whose(process.rights.uid).or_else(|| whose(0))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_plan_that_others_own_or_may_write_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let plan = folder.path().join("a.plan");
        fs::write(&plan, b"").unwrap();
        let found = fs::metadata(&plan).unwrap();
        let store = |uid: u32| Store {
            plans: PlanStore::open(Some(folder.path())).unwrap(),
            owner: Rights { uid, gid: found.gid(), groups: Vec::new() },
        };
        let trusts = |uid: u32, mode: u32| {
            fs::set_permissions(&plan, fs::Permissions::from_mode(mode)).unwrap();
            store(uid).check(&plan).is_ok()
        };
        assert!(trusts(found.uid(), 0o644));
        assert!(!trusts(found.uid(), 0o664) && !trusts(found.uid(), 0o646));
        // What root put there is trusted whoever owns the folder.
        assert_eq!(trusts(found.uid() + 1, 0o600), found.uid() == 0);
        if found.uid() == 0 {
            std::os::unix::fs::chown(&plan, Some(65534), None).unwrap();
            assert!(!trusts(0, 0o600) && trusts(65534, 0o600));
        }
    }
}
