//! One build of a kernel with a section for each function.
//!
//! x86 does not offer the option that divides functions into sections, though nothing but the final link is in its way, and
//! that link is ours. So a copy of the top `Kconfig` with the option added is handed to `make`; the source stays as it is.
//!
//! The handler of removed system calls (`removed_call.c`) is compiled with the file that answers calls which are not there: make
//! takes flags for one file on its command line, and one of them names a text to read before it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use crate::error::io_at;
use crate::{KernelError, Source, config, tool};

/// What is added to the top `Kconfig`.
const KCONFIG: &str = "\nconfig HAVE_LD_DEAD_CODE_DATA_ELIMINATION\n\tdef_bool y\n";

/// The handler of removed system calls.
const REMOVED_CALL: &str = include_str!("removed_call.c");

/// What is in the names of all its symbols.
pub(crate) const REMOVED_CALL_SYMBOLS: &str = "specialise_removed";

/// Files of a build that are ours.
const STAMP: &str = "specialise.stamp";
const KCONFIG_FILE: &str = "specialise.Kconfig";
const LOG: &str = "specialise.log";
const REMOVED_CALL_FILE: &str = "specialise-removed-call.c";

/// A finished build.
#[derive(Clone, Debug)]
pub struct Build {
    source: Source,
    folder: PathBuf,
    config: String,
    /// Lines of the wanted configuration that the kernel did not take.
    pub unmet: Vec<String>,
    /// Whether the build was there already.
    pub reused: bool,
}

impl Build {
    /// Builds `source` with `config` (the text of a whole configuration or of a fragment) in `folder`, unless it holds that
    /// build already. Takes minutes; `say` is told what begins.
    ///
    /// # Errors
    /// The configuration cannot be had, or make failed.
    pub fn prepare(
        source: &Source,
        config: &str,
        folder: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, KernelError> {
        fs::create_dir_all(folder).map_err(io_at(folder))?;
        let folder = fs::canonicalize(folder).map_err(io_at(folder))?;
        let stamp = format!("{}\n{}\n{config}\n{REMOVED_CALL}", source.folder().display(), source.release());
        let finished =
            ["vmlinux.o", ".vmlinux.cmd", "arch/x86/boot/bzImage"].iter().all(|name| folder.join(name).is_file());
        let known = fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == stamp);
        let mut build = Self {
            source: source.clone(),
            folder: folder.clone(),
            config: String::new(),
            unmet: Vec::new(),
            reused: known && finished,
        };
        if !build.reused {
            build.configure(config, say)?;
        }
        build.config = read(&folder.join(".config"))?;
        build.unmet = config::unmet(config, &build.config);
        if !build.is_set("LD_DEAD_CODE_DATA_ELIMINATION") {
            let reason = "CONFIG_LD_DEAD_CODE_DATA_ELIMINATION cannot be set: it needs CONFIG_EXPERT and a compiler that \
                          divides functions into sections";
            return Err(KernelError::Config { reason: reason.to_string() });
        }
        if !build.is_set("X86_64") {
            return Err(KernelError::Config { reason: "only kernels for x86-64 are supported".to_string() });
        }
        if !build.reused {
            say("building the kernel; this takes minutes");
            let jobs = available_parallelism().map_or(1, usize::from);
            tool::run(build.make().arg(format!("-j{jobs}")).arg("bzImage"), &folder.join(LOG))?;
            fs::write(folder.join(STAMP), stamp).map_err(io_at(folder.join(STAMP)))?;
        }
        Ok(build)
    }

    fn configure(&self, config: &str, say: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        say("configuring the kernel");
        let top = read(&self.source.folder().join("Kconfig"))?;
        write(&self.folder.join(KCONFIG_FILE), &format!("{top}{KCONFIG}"))?;
        write(&self.folder.join(REMOVED_CALL_FILE), REMOVED_CALL)?;
        let path = self.folder.join(".config");
        let base = if config::is_whole(config) {
            String::new()
        } else {
            tool::run(self.make().arg("tinyconfig"), &self.folder.join(LOG))?;
            read(&path)?
        };
        write(&path, &config::merge(&base, config))?;
        tool::run(self.make().arg("olddefconfig"), &self.folder.join(LOG))
    }

    /// `make` for this build.
    fn make(&self) -> Command {
        let mut make = Command::new("make");
        make.arg("-C").arg(self.source.folder()).arg(format!("O={}", self.folder.display()));
        // Relative to where the compiler runs, so that the folder may be moved.
        make.arg(format!("CFLAGS_sys_ni.o=-include {REMOVED_CALL_FILE}"));
        make.env("KBUILD_KCONFIG", self.folder.join(KCONFIG_FILE)).env("LC_ALL", "C");
        // Settings of a make that we were started from are not for this one.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
        make
    }

    /// The source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The folder of the build.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The finished configuration sets an option (without `CONFIG_`) to `y`.
    pub fn is_set(&self, option: &str) -> bool {
        config::is_set(&self.config, option)
    }

    /// The relocatable object of the whole kernel.
    pub fn object(&self) -> PathBuf {
        self.folder.join("vmlinux.o")
    }

    /// The linker script, preprocessed.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn script(&self) -> Result<String, KernelError> {
        read(&self.folder.join("arch/x86/kernel/vmlinux.lds"))
    }

    /// Options that the build gives the final link, with or without the linker's own collection of garbage.
    pub(crate) fn link_options(&self, collects: bool) -> Result<String, KernelError> {
        let path = self.folder.join(".vmlinux.cmd");
        let text = read(&path)?;
        // savedcmd_vmlinux := …/link-vmlinux.sh "ld" "options of ld" "options of this link"; …
        let options =
            text.lines().find(|line| line.starts_with("savedcmd_vmlinux")).and_then(|line| line.split('"').nth(5));
        let unknown = || KernelError::Input { path, reason: "it does not say how the kernel was linked".to_string() };
        let options = options.ok_or_else(unknown)?;
        let is_kept = |word: &&str| collects || *word != "--gc-sections";
        Ok(options.split_whitespace().filter(is_kept).collect::<Vec<_>>().join(" "))
    }

    /// The environment in which the kernel's makefiles run programs.
    pub(crate) fn environment(&self) -> Result<BTreeMap<String, String>, KernelError> {
        let path = self.folder.join("specialise.env");
        // A goal of our own, known to make by an option: its recipe sees all that the makefiles export.
        let goal = format!("--eval=specialise-environment: ; @env -0 > '{}'", path.display());
        tool::run(self.make().arg(goal).arg("specialise-environment"), &self.folder.join(LOG))?;
        let text = read(&path)?;
        let of_make = |name: &str| name.starts_with("MAKE") && name != "MAKE" || matches!(name, "MFLAGS" | "PWD" | "_");
        let pairs = text.split('\0').filter_map(|line| line.split_once('='));
        Ok(pairs
            .filter(|(name, _)| !of_make(name))
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect())
    }

    /// When the build was made, in the kernel's words, so that every link of it says the same.
    pub(crate) fn timestamp(&self) -> Option<String> {
        let text = fs::read_to_string(self.folder.join("include/generated/utsversion.h")).ok()?;
        let version = text.split('"').nth(1)?;
        let words: Vec<&str> = version.split_whitespace().collect();
        (words.len() >= 6).then(|| words[words.len() - 6..].join(" "))
    }
}

pub(crate) fn read(path: &Path) -> Result<String, KernelError> {
    fs::read_to_string(path).map_err(io_at(path))
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), KernelError> {
    fs::write(path, text).map_err(io_at(path))
}
