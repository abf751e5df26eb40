//! Frozen code in the kernel: a patch and files of ours (`frozen-text/` at the top of this
//! project), laid over a copy of the source.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use specialise::Freeze;

use crate::build::{read, write};
use crate::error::io_at;
use crate::{KernelError, Processor, Source, tool};

/// New files, by their place in the source.
const FILES: [(&str, &str); 12] = [
    ("arch/arm64/include/asm/frozen_text.h", include_str!("../../../frozen-text/arch/arm64/include/asm/frozen_text.h")),
    ("arch/x86/include/asm/frozen_text.h", include_str!("../../../frozen-text/arch/x86/include/asm/frozen_text.h")),
    ("arch/x86/mm/frozen_text.c", include_str!("../../../frozen-text/arch/x86/mm/frozen_text.c")),
    ("include/linux/frozen_text.h", include_str!("../../../frozen-text/include/linux/frozen_text.h")),
    ("mm/frozen_text.h", include_str!("../../../frozen-text/mm/frozen_text.h")),
    ("mm/frozen_text.c", include_str!("../../../frozen-text/mm/frozen_text.c")),
    ("mm/frozen_text_pool.c", include_str!("../../../frozen-text/mm/frozen_text_pool.c")),
    ("mm/frozen_text_start.c", include_str!("../../../frozen-text/mm/frozen_text_start.c")),
    ("mm/frozen_text_codec.c", include_str!("../../../frozen-text/mm/frozen_text_codec.c")),
    ("mm/frozen_text_codec.h", include_str!("../../../frozen-text/mm/frozen_text_codec.h")),
    ("mm/frozen_text_files.c", include_str!("../../../frozen-text/mm/frozen_text_files.c")),
    ("mm/frozen_text_test.c", include_str!("../../../frozen-text/mm/frozen_text_test.c")),
];

/// Changes of files that are there, by release.
const PATCHES: [(&str, &str); 2] = [
    ("6.1", include_str!("../../../frozen-text/linux-6.1.patch")),
    ("6.12", include_str!("../../../frozen-text/linux-6.12.patch")),
];

/// The folder of the patched source, in that of the build.
const FOLDER: &str = "specialise-source";

/// How frozen pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// Faster, without memory for the decoder.
    Lz4,
    /// Smaller.
    #[default]
    Zstd,
}

impl Codec {
    /// Lines of the configuration.
    pub(crate) fn config(self) -> &'static str {
        match self {
            Codec::Lz4 => "\nCONFIG_FROZEN_TEXT=y\nCONFIG_FROZEN_TEXT_LZ4=y\n",
            Codec::Zstd => "\nCONFIG_FROZEN_TEXT=y\nCONFIG_FROZEN_TEXT_ZSTD=y\n",
        }
    }
}

/// Code that is kept compressed.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// What ran.
    pub freeze: Freeze,
    /// The release of the kernel that it ran in.
    pub release: String,
}

impl Frozen {
    /// Reads what ran from the coverage in the file at `path`. `for_image` keeps the object's order
    /// of functions.
    ///
    /// # Errors
    /// The file cannot be read or is no coverage, or nothing of it ran.
    pub fn open(path: &Path, for_image: bool) -> Result<Self, KernelError> {
        let at = |source| KernelError::Coverage { path: path.to_path_buf(), source };
        let coverage = coverage::read(read(path)?.as_bytes()).map_err(at)?;
        let mut freeze = Freeze { for_image, ..Freeze::default() };
        for function in &coverage.functions {
            let ran = if function.service { &mut freeze.service } else { &mut freeze.start };
            ran.insert(function.name.clone(), function.order);
        }
        if freeze.service.is_empty() {
            let reason = "no function of it ran in service, so that all would be frozen".to_string();
            return Err(KernelError::Input { path: path.to_path_buf(), reason });
        }
        Ok(Self { freeze, release: coverage.release })
    }

    /// Whether it tells of kernels of this release and processor, as far as handlers of system
    /// calls show that.
    ///
    /// # Errors
    /// It does not.
    pub(crate) fn check(&self, release: &str, processor: Processor) -> Result<(), KernelError> {
        let mut names = self.freeze.service.keys().chain(self.freeze.start.keys());
        let reason = if self.release != release {
            format!("the coverage is of Linux {}, and the source is {release}; record it anew", self.release)
        } else if names.any(|name| name.starts_with(processor.other().call_prefix())) {
            "the coverage is of a kernel for another processor; record it anew".to_string()
        } else {
            return Ok(());
        };
        Err(KernelError::Config { reason })
    }
}

/// The patch for a release such as `6.12.48`.
///
/// # Errors
/// There is none.
pub(crate) fn patch(release: &str) -> Result<&'static str, KernelError> {
    let version = release.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let found = PATCHES.iter().find(|(known, _)| *known == version);
    let reason = || format!("frozen code is for Linux 6.1 and 6.12, and this is {release}");
    found.map(|(_, patch)| *patch).ok_or_else(|| KernelError::Config { reason: reason() })
}

/// All that changes a source of this release: the text that a build depends on.
///
/// # Errors
/// As [`patch`].
pub(crate) fn text(release: &str) -> Result<String, KernelError> {
    let files = FILES.iter().map(|(path, text)| format!("{path}\n{text}"));
    Ok(files.chain([patch(release)?.to_string()]).collect())
}

/// The source with frozen code, in the folder of a build: what is not changed is linked to.
///
/// # Errors
/// There is no patch for the release, it does not fit, or files cannot be written.
pub(crate) fn patched(source: &Source, build: &Path) -> Result<Source, KernelError> {
    let patch = patch(source.release())?;
    tool::require(&["patch"], "patch")?;
    let folder = build.join(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(io_at(&folder))?;
    }
    let mut changed: Vec<PathBuf> = FILES.iter().map(|(path, _)| PathBuf::from(path)).collect();
    changed.extend(patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(PathBuf::from));
    overlay(source.folder(), &folder, &changed)?;
    for (path, text) in FILES {
        write(&folder.join(path), text)?;
    }
    let file = build.join("specialise.patch");
    write(&file, patch)?;
    let mut command = Command::new("patch");
    command.args(["-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-d"]).arg(&folder).arg("-i").arg(&file);
    tool::run(&mut command, &build.join(crate::build::LOG))?;
    Source::open(&folder)
}

/// Links to all that is in `from`, but copies of `changed` files, whose folders are folders.
fn overlay(from: &Path, to: &Path, changed: &[PathBuf]) -> Result<(), KernelError> {
    fs::create_dir_all(to).map_err(io_at(to))?;
    for entry in fs::read_dir(from).map_err(io_at(from))? {
        let entry = entry.map_err(io_at(from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let name = entry.file_name();
        let inside: Vec<PathBuf> = changed
            .iter()
            .filter(|path| path.components().next() == Some(Component::Normal(&name)))
            .map(|path| path.components().skip(1).collect())
            .collect();
        if inside.is_empty() {
            symlink(&path, &target).map_err(io_at(&target))?;
        } else if path.is_dir() {
            overlay(&path, &target, &inside)?;
        } else {
            fs::copy(&path, &target).map_err(io_at(&target))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_patches_for_two_releases() {
        assert!(patch("6.12.117").is_ok() && patch("6.1.192").is_ok() && patch("6.12").is_ok());
        for unknown in ["6.11.3", "6.120.1", "5.10"] {
            assert!(patch(unknown).unwrap_err().to_string().contains(unknown));
        }
    }

    #[test]
    fn a_coverage_says_what_ran_in_service_and_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.cov");
        let open = |text: &str| {
            fs::write(&path, text).unwrap();
            Frozen::open(&path, false)
        };
        let head = "runnel coverage 1\nrelease 6.12.117\nscenario qemu 2 2 web\n";
        let lines = ["function early 8 2 b 0+8b\n", "function vfs_read 8 1 bs 0+8bs\n"];
        let frozen = open(&[head, lines[0], lines[1], "end 2\n"].concat()).unwrap();
        assert_eq!(frozen.freeze.service.get("vfs_read"), Some(&1));
        assert_eq!(frozen.freeze.start.get("early"), Some(&2));
        assert_eq!((frozen.freeze.service.len(), frozen.freeze.start.len()), (1, 1));
        let check =
            |frozen: &Frozen, release| frozen.check(release, Processor::X86_64).map_err(|error| error.to_string());
        assert_eq!(check(&frozen, "6.12.117"), Ok(()));
        assert!(check(&frozen, "6.12.48").unwrap_err().contains("6.12.117"));
        let of_calls = |name: &str| {
            let line = format!("function {name} 8 1 s 0+8s\n");
            open(&[&head.replace("2 2 web", "1 1 web"), &*line, "end 1\n"].concat()).unwrap()
        };
        assert_eq!(check(&of_calls("__x64_sys_read"), "6.12.117"), Ok(()));
        assert!(check(&of_calls("__arm64_sys_read"), "6.12.117").unwrap_err().contains("another processor"));
        // All would be frozen, and a file that is something else.
        let refused = |text: &str| open(text).unwrap_err().to_string();
        assert!(refused(&[&head.replace("2 2 web", "1 1 web"), lines[0], "end 1\n"].concat()).contains("in service"));
        assert!(refused("something else\n").contains("web.cov"));
    }

    #[test]
    fn what_is_changed_is_copied_and_the_rest_linked() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (folder, file) in [("mm", "Kconfig"), ("mm/damon", "Kconfig"), ("net", "Makefile")] {
            fs::create_dir_all(from.path().join(folder)).unwrap();
            fs::write(from.path().join(folder).join(file), folder).unwrap();
        }
        overlay(from.path(), to.path(), &["mm/Kconfig".into(), "mm/new.c".into()]).unwrap();
        let is_link = |path: &str| fs::symlink_metadata(to.path().join(path)).unwrap().file_type().is_symlink();
        assert!(!is_link("mm") && !is_link("mm/Kconfig") && is_link("mm/damon") && is_link("net"));
        fs::write(to.path().join("mm/Kconfig"), "other").unwrap();
        assert_eq!(fs::read_to_string(from.path().join("mm/Kconfig")).unwrap(), "mm", "the source stays as it is");
    }
}
