//! One build of a kernel with a section for each function.
//!
//! x86 and AArch64 do not offer the option that divides functions into sections. Only the final
//! link is in its way, and that link is ours. So `make` gets a copy of the top `Kconfig` with the
//! option added. The source stays as it is.
//!
//! The handler of removed system calls (`removed_call.c`) is compiled with the file that answers
//! calls which do not exist: make takes flags for one file on its command line, and one of them
//! names a text to read first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::available_parallelism;

use rustix::fs::{FlockOperation, flock};

use crate::error::io_at;
use crate::{Codec, KernelError, Processor, Source, config, frozen, tool};

/// What is added to the top `Kconfig`.
const KCONFIG: &str = "\nconfig HAVE_LD_DEAD_CODE_DATA_ELIMINATION\n\tdef_bool y\n";

/// The handler of removed system calls.
const REMOVED_CALL: &str = include_str!("removed_call.c");

/// What is in the names of all its symbols.
pub(crate) const REMOVED_CALL_SYMBOLS: &str = "specialise_removed";

/// Files of a build that are ours.
pub(crate) const STAMP: &str = "specialise.stamp";
const KCONFIG_FILE: &str = "specialise.Kconfig";
pub(crate) const LOG: &str = "specialise.log";
const REMOVED_CALL_FILE: &str = "specialise-removed-call.c";
const LOCK: &str = "specialise.lock";

/// Programs that a build takes, and the packages of Debian that have them.
const PROGRAMS: [&str; 9] = ["make", "gcc", "ld", "flex", "bison", "bc", "perl", "awk", "setpriv"];
const PACKAGES: &str = "make gcc binutils flex bison bc perl mawk util-linux libelf-dev libssl-dev";

/// A finished build.
#[derive(Clone, Debug)]
pub struct Build {
    source: Source,
    folder: PathBuf,
    config: String,
    processor: Processor,
    /// Keeps others out as long as it is open.
    _lock: Arc<File>,
    /// Lines of the wanted configuration that the kernel did not take.
    pub unmet: Vec<String>,
    /// Whether the build was there already.
    pub reused: bool,
}

impl Build {
    /// Builds `source` with `config` (the text of a whole configuration or of a fragment) in
    /// `folder`, unless it holds that build already; with `frozen`, the patched source that keeps
    /// code compressed. Takes minutes; `say` is told what begins.
    ///
    /// # Errors
    /// The configuration cannot be had, or make failed.
    pub fn prepare(
        source: &Source,
        config: &str,
        frozen: Option<Codec>,
        folder: &Path,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, KernelError> {
        let (folder, lock) = enter(folder)?;
        let (patches, config) = match frozen {
            Some(codec) => (frozen::text(source.release())?, format!("{config}{}", codec.config())),
            None => (String::new(), config.to_string()),
        };
        let config = config.as_str();
        let processor = Processor::of_config(config);
        let removed_call = processor.removed_call(REMOVED_CALL);
        let (path, release) = (source.folder().display(), source.release());
        let stamp = format!("{path}\n{release}\n{config}\n{removed_call}{patches}");
        let finished = ["vmlinux.o", ".vmlinux.cmd"].iter().all(|name| folder.join(name).is_file())
            && image(&folder, processor).is_file();
        let known = fs::read_to_string(folder.join(STAMP)).is_ok_and(|text| text == stamp);
        let source = match frozen {
            // It is linked to the source, which may have gone meanwhile.
            Some(_) => frozen::patched(source, &folder)?,
            None => source.clone(),
        };
        let mut build = Self {
            source,
            folder: folder.clone(),
            config: String::new(),
            processor,
            _lock: lock,
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
        if !build.is_set(processor.option()) {
            let reason =
                format!("CONFIG_{} cannot be set; kernels for x86-64 and AArch64 are supported", processor.option());
            return Err(KernelError::Config { reason });
        }
        if !build.reused {
            say("building the kernel; this takes minutes");
            let jobs = available_parallelism().map_or(1, usize::from);
            tool::run(build.make().arg(format!("-j{jobs}")).arg(processor.image()), &folder.join(LOG))?;
            fs::write(folder.join(STAMP), stamp).map_err(io_at(folder.join(STAMP)))?;
        }
        Ok(build)
    }

    fn configure(&self, config: &str, say: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        tool::require(&PROGRAMS, PACKAGES)?;
        let (programs, packages) = self.processor.tools();
        tool::require(programs, packages)?;
        say("configuring the kernel");
        let top = read(&self.source.folder().join("Kconfig"))?;
        write(&self.folder.join(KCONFIG_FILE), &format!("{top}{KCONFIG}"))?;
        write(&self.folder.join(REMOVED_CALL_FILE), &self.processor.removed_call(REMOVED_CALL))?;
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
        let mut make = make(&self.source, &self.folder);
        make.args(self.processor.make());
        // Relative to where the compiler runs, so that the folder may be moved.
        make.arg(format!("CFLAGS_sys_ni.o=-include {REMOVED_CALL_FILE}"));
        make.env("KBUILD_KCONFIG", self.folder.join(KCONFIG_FILE));
        make
    }

    /// The source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The processor.
    pub fn processor(&self) -> Processor {
        self.processor
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
        read(&self.folder.join("arch").join(self.processor.folder()).join("kernel/vmlinux.lds"))
    }

    /// Options that the build gives the final link, with or without the linker's own collection of
    /// garbage.
    pub(crate) fn link_options(&self, collects: bool) -> Result<String, KernelError> {
        let path = self.folder.join(".vmlinux.cmd");
        let text = read(&path)?;
        // savedcmd_vmlinux := …/link-vmlinux.sh "ld" "options of ld" "options of this link"; …
        // Before Linux 6.3 without `saved`.
        let is_command = |line: &&str| line.strip_prefix("saved").unwrap_or(line).starts_with("cmd_vmlinux");
        let options = text.lines().find(is_command).and_then(|line| line.split('"').nth(5));
        let unknown = || KernelError::Input { path, reason: "it does not say how the kernel was linked".to_string() };
        let options = options.ok_or_else(unknown)?;
        let is_kept = |word: &&str| collects || *word != "--gc-sections";
        Ok(options.split_whitespace().filter(is_kept).collect::<Vec<_>>().join(" "))
    }

    /// The environment in which the kernel's makefiles run programs.
    pub(crate) fn environment(&self) -> Result<BTreeMap<String, String>, KernelError> {
        let path = self.folder.join("specialise.env");
        // A goal of our own, known to make by an option: its recipe sees all that the makefiles
        // export.
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

/// The boot image in the folder of a build or a link.
pub(crate) fn image(folder: &Path, processor: Processor) -> PathBuf {
    folder.join("arch").join(processor.folder()).join("boot").join(processor.image())
}

/// `make` for builds of `source` in `folder`.
pub(crate) fn make(source: &Source, folder: &Path) -> Command {
    // It ends with us.
    let mut make = Command::new("setpriv");
    make.args(["--pdeathsig", "TERM", "--", "make", "-C"])
        .arg(source.folder())
        .arg(format!("O={}", folder.display()))
        .env("LC_ALL", "C");
    // Settings of a make that we were started from are not for this one.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
    make
}

/// Opens the folder of a build, which nobody else uses then.
pub(crate) fn enter(folder: &Path) -> Result<(PathBuf, Arc<File>), KernelError> {
    fs::create_dir_all(folder).map_err(io_at(folder))?;
    let folder = fs::canonicalize(folder).map_err(io_at(folder))?;
    let refused = |reason: &str| KernelError::Input { path: folder.clone(), reason: reason.to_string() };
    let is_empty = fs::read_dir(&folder).map_err(io_at(&folder))?.next().is_none();
    if !is_empty && ![LOCK, KCONFIG_FILE, STAMP].iter().any(|name| folder.join(name).exists()) {
        return Err(refused("it is not empty, and no build of ours; give an empty folder"));
    }
    let path = folder.join(LOCK);
    let lock = File::create(&path).map_err(io_at(&path))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| refused("another build is going on here; wait for its end, or give another folder"))?;
    Ok((folder, Arc::new(lock)))
}

/// Opens a regular file for reading.
pub(crate) fn open(path: &Path) -> Result<File, KernelError> {
    host::file::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
            KernelError::Input { path: path.to_path_buf(), reason: "it is not a regular file".to_string() }
        }
        _ => KernelError::Io { path: path.to_path_buf(), source: error },
    })
}

/// The bytes of a regular file.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, KernelError> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(io_at(path))?;
    Ok(bytes)
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, KernelError> {
    let wrong = |_| KernelError::Input { path: path.to_path_buf(), reason: "it is not text in UTF-8".to_string() };
    String::from_utf8(bytes(path)?).map_err(wrong)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), KernelError> {
    fs::write(path, text).map_err(io_at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_for_one_build_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let (_, lock) = enter(folder.path()).unwrap();
        let refused = |folder: &Path| matches!(enter(folder), Err(KernelError::Input { .. }));
        assert!(refused(folder.path()), "it is in use");
        drop(lock);
        assert!(enter(folder.path()).is_ok(), "it is ours");
        let foreign = tempfile::tempdir().unwrap();
        fs::write(foreign.path().join("letter"), "dear").unwrap();
        assert!(refused(foreign.path()));
        assert_eq!(fs::read_dir(foreign.path()).unwrap().count(), 1, "nothing was written there");
    }

    #[test]
    fn only_text_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        fs::write(&path, b"\xff\xfe").unwrap();
        for path in [&*path, folder.path(), Path::new("/dev/zero")] {
            assert!(matches!(read(path), Err(KernelError::Input { .. })), "{}", path.display());
        }
        let absent = read(&folder.path().join("absent"));
        assert!(matches!(absent, Err(KernelError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        assert!(tool::require(&["sh"], "dash").is_ok());
        let error = tool::require(&["sh", "no-such-program"], "a b").unwrap_err().to_string();
        assert!(error.contains("no-such-program: not installed") && error.contains("a b"), "{error}");
    }
}
