//! Stages of the set-up: each is done once, remembered by a stamp, and redone only when what it is
//! made from changes.
//!
//! A stage has a name and inputs, a text that says what its result depends on. The stamp of a
//! finished stage is a file with that text. A stage removes its stamp before it starts and writes
//! it when it is done, and makes its result under the name that [`unfinished`] gives: a set-up that
//! was interrupted starts the stage again and trusts nothing it left.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;

use crate::interrupt;
use crate::stream::say;

/// Where stamps are kept.
#[derive(Clone, Debug)]
pub struct Stages {
    folder: PathBuf,
    /// Whose set-up it is, for messages.
    title: &'static str,
}

impl Stages {
    /// Stamps of the lab in `folder`, which is made.
    pub fn open(folder: PathBuf) -> anyhow::Result<Stages> {
        Stages::titled("lab", folder)
    }

    /// Stamps of the bench `title` in `folder`, which is made.
    pub fn titled(title: &'static str, folder: PathBuf) -> anyhow::Result<Stages> {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Stages { folder, title })
    }

    fn stamp(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The inputs with which the stage was done last; nothing if it is not done.
    pub fn inputs(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.stamp(name)).ok()
    }

    /// Does the stage `name` unless it was done with the same `inputs` and `result` is still there.
    pub fn run(
        &self,
        name: &str,
        inputs: &str,
        result: &Path,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if self.inputs(name).as_deref() == Some(inputs) && result.exists() {
            return Ok(());
        }
        interrupt::check()?;
        let stamp = self.stamp(name);
        match fs::remove_file(&stamp) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", stamp.display()));
            }
            _ => {}
        }
        say(&format!("{}: {name} ...", self.title));
        let start = Instant::now();
        work().with_context(|| format!("set-up of the {}, stage '{name}'", self.title))?;
        let new = self.stamp(&format!("{name}.new"));
        fs::write(&new, inputs)
            .and_then(|()| fs::rename(&new, &stamp))
            .with_context(|| format!("cannot write {}", stamp.display()))?;
        say(&format!("{}: {name}: {:.1} s", self.title, start.elapsed().as_secs_f64()));
        Ok(())
    }
}

/// The name under which the file or folder `path` is made before it is whole. What an earlier try
/// left there is removed.
pub fn unfinished(path: &Path) -> anyhow::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    remove(&new)?;
    if let Some(parent) = new.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    Ok(new)
}

/// Puts what was made under the name of [`unfinished`] in the place of `path`.
pub fn finish(path: &Path) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    remove(path)?;
    fs::rename(&name, path).with_context(|| format!("cannot rename the finished {}", path.display()))
}

/// Removes a file or a folder with all it holds; fine if there is none.
pub fn remove(path: &Path) -> anyhow::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let removed = if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

/// A number that tells contents apart: FNV-1a, 64 bits. For caches only, which nobody attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of nothing.
    pub const EMPTY: Fingerprint = Fingerprint(0xcbf2_9ce4_8422_2325);

    /// Of what was hashed so far and `bytes`.
    pub fn and(self, bytes: &[u8]) -> Fingerprint {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Fingerprint(bytes.iter().fold(self.0, step))
    }

    /// Of what was hashed so far and the content of a file.
    pub fn and_file(self, path: &Path) -> anyhow::Result<Fingerprint> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(self.and(&bytes))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_done_once_and_again_when_its_inputs_change_or_its_result_is_gone() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let stages = Stages::open(folder.path().join("stamps"))?;
        let result = folder.path().join("result");
        let mut count = 0;
        let mut run = |inputs: &str| {
            stages.run("part", inputs, &result, || {
                count += 1;
                fs::write(&result, inputs).context("result")
            })?;
            anyhow::Ok(count)
        };
        assert_eq!((run("a")?, run("a")?, run("b")?, run("b")?), (1, 1, 2, 2));
        fs::remove_file(folder.path().join("result"))?;
        assert_eq!(run("b")?, 3);
        assert_eq!(stages.inputs("part").as_deref(), Some("b"));
        Ok(())
    }

    #[test]
    fn a_stage_that_fails_is_not_remembered() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let stages = Stages::open(folder.path().to_path_buf())?;
        let there = folder.path();
        stages.run("part", "a", there, || Ok(()))?;
        let error = stages.run("part", "b", there, || anyhow::bail!("broken")).expect_err("it fails");
        assert!(format!("{error:#}").contains("stage 'part': broken"), "{error:#}");
        assert_eq!(stages.inputs("part"), None, "the old stamp must not vouch for a half-made result");
        Ok(())
    }

    #[test]
    fn unfinished_work_is_removed_and_replaces_the_old_when_finished() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("deep/tree");
        for content in ["old", "new"] {
            let new = unfinished(&path)?;
            assert!(!new.exists());
            fs::create_dir(&new)?;
            fs::write(new.join("file"), content)?;
            if content == "old" {
                assert!(!unfinished(&path)?.exists(), "left by a try that was interrupted");
                fs::create_dir(&new)?;
                fs::write(new.join("file"), content)?;
            }
            finish(&path)?;
            assert_eq!(fs::read_to_string(path.join("file"))?, content);
        }
        Ok(())
    }

    #[test]
    fn fingerprints_follow_the_published_vectors() {
        assert_eq!(Fingerprint::EMPTY.and(b"foobar").to_string(), "85944171f73967e8");
        assert_eq!(Fingerprint::EMPTY.and(b"foo").and(b"bar"), Fingerprint::EMPTY.and(b"foobar"));
    }
}
