//! A whole run: build, rewrite, link, measure.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use specialise::{Device, Options, Passes, Report, SpecialiseError};

use crate::build::REMOVED_CALL_SYMBOLS;
use crate::build::{read, write};
use crate::calls::Constants;
use crate::error::io_at;
use crate::policy::{Policy, read_syscalls};
use crate::sizes::symbol_bytes;
use crate::{
    Build, Calls, Codec, Frozen, KernelError, KernelSizes, Layout, Link, Output, Processor, Source, block_map,
};

/// The file that says what counts.
const COVERAGE_MAP: &str = "coverage.map";

/// What is to be built, and how.
#[derive(Clone, Debug)]
pub struct Job {
    /// The kernel's source.
    pub source: PathBuf,
    /// Folder of the build, which is used again for the same configuration.
    pub build: PathBuf,
    /// Folder of the results.
    pub output: PathBuf,
    /// What the report repeats.
    pub asked: Asked,
    /// The system calls that were found in the device's images.
    pub calls: Calls,
    /// Which passes run.
    pub passes: Passes,
    /// How sections lie.
    pub layout: Layout,
    /// How the kernel compresses code that is frozen; `None` builds it without our patch, which
    /// also tells what an instrumented kernel counted.
    pub codec: Option<Codec>,
    /// What ran, so that the rest is frozen; needs a codec.
    pub freeze: Option<Frozen>,
    /// Count which blocks of functions run, and write what counts.
    pub instrument: bool,
}

/// One kernel of the report.
#[derive(Clone, Debug, Serialize)]
pub struct SizeRow {
    /// Which.
    pub name: String,
    /// Its sizes in memory, bytes.
    #[serde(flatten)]
    pub sizes: KernelSizes,
    /// What remains after the start, without padding.
    pub resident: u64,
    /// Its boot image, bytes.
    pub bzimage: u64,
}

/// What a user asks for, so that a report says which device it is about.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Asked {
    /// The configuration: whole, or a fragment over the smallest one.
    pub config: PathBuf,
    /// The device's command line.
    pub command_line: Option<String>,
    /// The list of its PCI devices.
    pub devices: Option<PathBuf>,
    /// A list of system calls of its programs.
    pub syscalls: Option<PathBuf>,
    /// What people add.
    pub policy: Option<PathBuf>,
    /// Variables of the kernel with the number that each has for good.
    pub fixed: BTreeMap<String, u64>,
    /// Also use the constants that the programs of images give to system calls: a call with another
    /// one is then undefined, so nothing else may ever run.
    pub arguments: bool,
    /// Leave dead code in place, filled with traps.
    pub trap: bool,
}

/// What a run did.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// What was asked for.
    pub asked: Asked,
    /// Stock and reduced kernels.
    pub kernels: Vec<SizeRow>,
    /// Time of analysis and rewriting.
    pub analysis_seconds: f64,
    /// Peak memory of this process after it.
    pub analysis_peak_bytes: u64,
    /// Bytes in the reduced kernel of what logs removed system calls, part of its sizes: code,
    /// names of calls that were logged, and text.
    pub removed_call_bytes: u64,
    /// Whether the build was there already.
    pub build_reused: bool,
    /// Lines of the configuration that the kernel did not take.
    pub config_unmet: Vec<String>,
    /// The system calls of the device with who keeps them; `None` if all stay.
    pub calls: Option<Calls>,
    /// Names of the system calls that answer ENOSYS now.
    pub calls_removed: Vec<String>,
    /// What was removed.
    pub removed: Report,
}

/// Files of a link that was finished.
#[derive(Clone, Debug)]
pub struct Linked {
    /// The kernel as an ELF file.
    pub vmlinux: PathBuf,
    /// The image that a boot loader takes.
    pub bzimage: PathBuf,
    /// Symbols by address.
    pub system_map: PathBuf,
}

impl Linked {
    fn in_folder(folder: &Path, processor: Processor) -> Self {
        Self {
            vmlinux: folder.join("vmlinux"),
            bzimage: folder.join(processor.image()),
            system_map: folder.join("System.map"),
        }
    }

    fn take(folder: &Path, processor: Processor, output: &Output) -> Result<Self, KernelError> {
        fs::create_dir_all(folder).map_err(io_at(folder))?;
        let linked = Self::in_folder(folder, processor);
        let pairs = [
            (&output.vmlinux, &linked.vmlinux),
            (&output.bzimage, &linked.bzimage),
            (&output.system_map, &linked.system_map),
        ];
        for (from, to) in pairs {
            fs::copy(from, to).map_err(io_at(to))?;
        }
        Ok(linked)
    }

    fn row(&self, name: &str) -> Result<SizeRow, KernelError> {
        let bytes = fs::read(&self.vmlinux).map_err(io_at(&self.vmlinux))?;
        let not_kernel = || KernelError::Input { path: self.vmlinux.clone(), reason: "it is no kernel".to_string() };
        let sizes = KernelSizes::measure(&bytes).ok_or_else(not_kernel)?;
        let bzimage = fs::metadata(&self.bzimage).map_err(io_at(&self.bzimage))?.len();
        Ok(SizeRow { name: name.to_string(), sizes, resident: sizes.resident(), bzimage })
    }
}

impl Job {
    /// Builds the kernel, or finds it built.
    ///
    /// # Errors
    /// As [`Build::prepare`].
    pub fn build(&self, say: &mut dyn FnMut(&str)) -> Result<Build, KernelError> {
        let source = Source::open(&self.source)?;
        // What is wrong with the other files is better said before a build of minutes.
        specialise::check_release(source.release())?;
        let config = read(&self.asked.config)?;
        let processor = Processor::of_config(&config);
        self.check(&source, processor)?;
        self.entry_points(&source, processor)?;
        self.device_list()?;
        if let Some(frozen) = &self.freeze {
            frozen.check(source.release(), processor)?;
        }
        Build::prepare(&source, &config, self.codec, &self.build, say)
    }

    /// Whether all that is asked for is there for the processor, and the source stays as it is.
    fn check(&self, source: &Source, processor: Processor) -> Result<(), KernelError> {
        if processor != Processor::X86_64 {
            let refused = |reason: &str| Err(KernelError::Config { reason: reason.to_string() });
            match (self.layout, self.instrument) {
                (_, true) => return Err(specialise::SpecialiseError::Uncounted.into()),
                (Layout::Compact, _) => return refused("the compact layout is for x86-64 only"),
                (Layout::Stock, false) => {}
            }
        }
        for folder in [&self.build, &self.output] {
            // What is not there yet would be made in the first folder above it that is.
            let there = folder.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
            let there = there.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
            if fs::canonicalize(source.folder()).is_ok_and(|source| there.starts_with(source)) {
                let reason = "it lies in the kernel's source, which stays as it is; give a folder outside".to_string();
                return Err(KernelError::Input { path: folder.clone(), reason });
            }
        }
        Ok(())
    }

    /// Entry points of the system calls that stay, with the arguments they are given; `None` if all
    /// stay.
    fn entry_points(
        &self,
        source: &Source,
        processor: Processor,
    ) -> Result<Option<BTreeMap<String, Constants>>, KernelError> {
        if processor != Processor::X86_64 && !self.calls.is_empty() {
            let reason = "the calls of programs are those of x86-64, and the configuration is not; list the device's with --syscalls";
            return Err(KernelError::Calls { reason: reason.to_string() });
        }
        let calls = self.all_calls(&self.policy()?)?;
        calls.map(|calls| calls.entry_points(source, processor)).transpose()
    }

    fn device_list(&self) -> Result<Option<Vec<Device>>, KernelError> {
        let Some(path) = &self.asked.devices else { return Ok(None) };
        let wrong = |line| KernelError::Input {
            path: path.clone(),
            reason: format!("line {line}: expected 'vendor:device [class]' in hexadecimal digits"),
        };
        Ok(Some(Device::read_all(&read(path)?).map_err(wrong)?))
    }

    /// All system calls that stay; `None` if nothing is known of them, so that all do.
    fn all_calls(&self, policy: &Policy) -> Result<Option<Calls>, KernelError> {
        let mut calls = self.calls.clone();
        if let Some(path) = &self.asked.syscalls {
            calls.list(&read_syscalls(path)?);
        }
        if let (true, Some(path), false) = (calls.is_empty(), &self.asked.policy, policy.syscalls.is_empty()) {
            let reason = "its `syscalls` are beside those of programs, and none are given, so that all stay; give --image or --syscalls";
            return Err(KernelError::Input { path: path.clone(), reason: reason.to_string() });
        }
        if calls.is_empty() {
            return Ok(None);
        }
        calls.list(&policy.syscalls);
        Ok(Some(calls))
    }

    fn policy(&self) -> Result<Policy, KernelError> {
        Ok(self.asked.policy.as_deref().map(Policy::read).transpose()?.unwrap_or_default())
    }

    /// What the crate `specialise` is told.
    ///
    /// # Errors
    /// One of the files cannot be read or understood.
    pub fn options(&self, build: &Build) -> Result<Options, KernelError> {
        let policy = self.policy()?;
        let calls = self.entry_points(build.source(), build.processor())?;
        let syscalls = calls.as_ref().map(|calls| calls.keys().cloned().collect());
        let arguments = calls.filter(|_| self.asked.arguments).unwrap_or_default();
        Ok(Options {
            release: build.source().release().to_string(),
            script: build.script()?,
            passes: self.passes,
            syscalls,
            command_line: self.asked.command_line.clone(),
            devices: self.device_list()?,
            fixed: self.asked.fixed.clone(),
            arguments,
            roots: policy.roots,
            modules: build.is_set("MODULES"),
            padding_is_spare: !build.is_set("CFI_CLANG"),
            freeze: self.freeze.as_ref().map(|frozen| frozen.freeze.clone()),
            trap: self.asked.trap,
            instrument: self.instrument,
        })
    }

    /// Does it all; `say` is told what begins. Results: `vmlinux`, `bzImage` (of AArch64
    /// `Image.gz`), `System.map`, `report.json`, and of a kernel that counts `coverage.map`.
    ///
    /// # Errors
    /// A file, a program, or the object is not as it must be.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> Result<(JobReport, Linked), KernelError> {
        let build = self.build(say)?;
        fs::create_dir_all(&self.output).map_err(io_at(&self.output))?;
        let options = self.options(&build)?;
        // Before anything is linked: a layout that does not fit the configuration is refused at
        // once.
        self.layout.check(&build)?;
        let object = fs::read(build.object()).map_err(io_at(build.object()))?;
        let link = Link::new(&build, &self.output.join("link"))?;
        let stock = self.stock(&build, &link, &object, say)?;
        say("analysing and rewriting");
        let start = Instant::now();
        let outcome = specialise::specialise(&object, &options).map_err(|error| refused(&build, error))?;
        let analysis_seconds = start.elapsed().as_secs_f64();
        let analysis_peak_bytes = peak_bytes();
        say("linking");
        let mut kernels = vec![stock.row("stock")?];
        let reduced = link.run(&outcome.object, Layout::Stock)?;
        let mut linked = Linked::take(&self.output, build.processor(), &reduced)?;
        kernels.push(linked.row("reduced")?);
        let bytes = fs::read(&linked.vmlinux).map_err(io_at(&linked.vmlinux))?;
        let removed_call_bytes = symbol_bytes(&bytes, REMOVED_CALL_SYMBOLS).unwrap_or(0);
        if self.layout == Layout::Compact {
            say("linking without alignment to 2 MiB");
            linked = Linked::take(&self.output, build.processor(), &link.run(&outcome.object, Layout::Compact)?)?;
            kernels.push(linked.row("reduced, compact layout")?);
        }
        if self.instrument {
            let map = block_map(build.source().release(), &outcome.counters)?;
            write(&self.output.join(COVERAGE_MAP), &map.write())?;
        }
        // Of entry points the report of the pass speaks, of names people do.
        let entries = build.source().entry_points(build.processor())?.into_iter();
        let is_removed = |entry: &String| outcome.report.device.syscalls_removed.contains(entry);
        let calls_removed = entries.filter(|(_, entry)| is_removed(entry)).map(|(name, _)| name).collect();
        let report = JobReport {
            asked: self.asked.clone(),
            kernels,
            analysis_seconds,
            analysis_peak_bytes,
            removed_call_bytes,
            build_reused: build.reused,
            config_unmet: build.unmet.clone(),
            calls: self.all_calls(&self.policy()?)?,
            calls_removed,
            removed: outcome.report,
        };
        let path = self.output.join("report.json");
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| KernelError::Input { path: path.clone(), reason: error.to_string() })?;
        write(&path, &format!("{text}\n"))?;
        Ok((report, linked))
    }

    /// The chain that keeps a symbol alive.
    ///
    /// # Errors
    /// As [`specialise::why`], and of files.
    pub fn why(&self, symbol: &str, say: &mut dyn FnMut(&str)) -> Result<Vec<String>, KernelError> {
        let build = self.build(say)?;
        let options = self.options(&build)?;
        let object = fs::read(build.object()).map_err(io_at(build.object()))?;
        specialise::why(&object, &options, symbol).map_err(|error| refused(&build, error))
    }

    /// The kernel of the untouched object, linked the same way: what the reduced one is compared
    /// with. It is kept with the build.
    fn stock(
        &self,
        build: &Build,
        link: &Link<'_>,
        object: &[u8],
        say: &mut dyn FnMut(&str),
    ) -> Result<Linked, KernelError> {
        let folder = build.folder().join("specialise.stock");
        let linked = Linked::in_folder(&folder, build.processor());
        let time = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
        let made = time(&linked.system_map);
        if made.is_some() && made > time(&build.object()) && linked.bzimage.is_file() && linked.vmlinux.is_file() {
            return Ok(linked);
        }
        say("linking the stock kernel, to compare with");
        Linked::take(&folder, build.processor(), &link.run(object, Layout::Stock)?)
    }
}

/// What was wrong with the object, or with what was asked of it.
fn refused(build: &Build, error: SpecialiseError) -> KernelError {
    match error {
        SpecialiseError::Fixed { .. } | SpecialiseError::NotFound { .. } => error.into(),
        error => KernelError::Object { path: build.object(), build: build.folder().to_path_buf(), source: error },
    }
}

/// The most memory this process ever had, as the kernel counts it; 0 if it does not say.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_programs_are_for_their_processor() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("source/scripts")).unwrap();
        write(&at("source/Makefile"), "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 1\n").unwrap();
        write(&at("source/scripts/link-vmlinux.sh"), "").unwrap();
        write(&at("source/scripts/syscall.tbl"), "63 common read sys_read\n").unwrap();
        write(&at("config"), "CONFIG_ARM64=y\n").unwrap();
        write(&at("list"), "readahead\n").unwrap();
        let mut calls = Calls::default();
        calls.list([&"read".to_string()]);
        let job = Job {
            source: at("source"),
            build: at("build"),
            output: at("output"),
            asked: Asked { config: at("config"), ..Asked::default() },
            calls,
            passes: Passes::all(),
            layout: Layout::Stock,
            codec: None,
            freeze: None,
            instrument: false,
        };
        let refused = |job: &Job| match job.build(&mut |_| ()) {
            Err(KernelError::Calls { reason }) => reason,
            other => panic!("{:?}", other.err()),
        };
        assert!(refused(&job).contains("--syscalls"));
        // A list is looked up in the processor's table.
        let asked = Asked { syscalls: Some(at("list")), ..job.asked.clone() };
        let listed = Job { calls: Calls::default(), asked, ..job };
        assert!(refused(&listed).contains("readahead"));
        // What only the other processor has, and folders where nothing is written.
        let listed = Job { asked: Asked { syscalls: None, ..listed.asked.clone() }, ..listed };
        for (wrong, what) in [
            (Job { instrument: true, ..listed.clone() }, "--instrument"),
            (Job { layout: Layout::Compact, ..listed.clone() }, "compact layout"),
            (Job { build: at("source/build"), ..listed.clone() }, "source/build"),
            (Job { output: at("source"), ..listed.clone() }, "in the kernel's source"),
        ] {
            let error = wrong.build(&mut |_| ()).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        assert!(!at("build").exists(), "before anything is built");
    }
}
