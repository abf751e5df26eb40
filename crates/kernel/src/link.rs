//! The kernel's own final link, on an object of ours.
//!
//! `scripts/link-vmlinux.sh` runs in a folder that looks like the build's: it has links to the
//! build's files, and copies of those that the link writes. Our object stands in the place of the
//! archive of all objects. So the kernel's own makefiles make names, sorted tables, relocations for
//! a random address and the boot image, unchanged.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{image, write};
use crate::error::io_at;
use crate::{Build, KernelError, Processor, tool};

/// How sections lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// As the kernel's linker script has it.
    #[default]
    Stock,
    /// Without the alignment of code, constants and variables to 2 MiB, which large pages would
    /// use.
    Compact,
}

impl Layout {
    /// Whether the configuration of `build` allows the layout.
    ///
    /// # Errors
    /// It does not, or the linker script is not understood.
    pub fn check(self, build: &Build) -> Result<(), KernelError> {
        self.script(build).map(drop)
    }

    fn script(self, build: &Build) -> Result<String, KernelError> {
        let script = build.script()?;
        match self {
            Layout::Stock => Ok(script),
            Layout::Compact => compact(build, &script),
        }
    }
}

/// What a link made.
#[derive(Clone, Debug)]
pub struct Output {
    /// The kernel as an ELF file.
    pub vmlinux: PathBuf,
    /// The image that a boot loader takes.
    pub bzimage: PathBuf,
    /// Symbols by address.
    pub system_map: PathBuf,
}

/// A folder for links of one build.
#[derive(Debug)]
pub struct Link<'b> {
    build: &'b Build,
    folder: PathBuf,
}

/// What the link makes anew, at the top of the build's folder.
const MADE: [&str; 6] = ["vmlinux", "vmlinux.a", "vmlinux.o", "System.map", "source", "Makefile"];

/// The script that the link uses, in its folder.
const SCRIPT: &str = "specialise.lds";

impl<'b> Link<'b> {
    /// Makes `folder` ready for links of `build`; what is in it is removed.
    ///
    /// # Errors
    /// The folder holds something else, or cannot be written.
    pub fn new(build: &'b Build, folder: &Path) -> Result<Self, KernelError> {
        if folder.exists() {
            // Only what a link made is removed.
            if !folder.join(SCRIPT).exists() && fs::read_dir(folder).map_err(io_at(folder))?.next().is_some() {
                let reason = "the folder is not empty and holds no link of ours".to_string();
                return Err(KernelError::Input { path: folder.to_path_buf(), reason });
            }
            fs::remove_dir_all(folder).map_err(io_at(folder))?;
        }
        fs::create_dir_all(folder).map_err(io_at(folder))?;
        let folder = fs::canonicalize(folder).map_err(io_at(folder))?;
        write(&folder.join(SCRIPT), "")?;
        let from = build.folder();
        let is_ours = |name: &str| {
            MADE.contains(&name)
                || matches!(name, "init" | "arch" | ".version")
                || [".tmp_", ".vmlinux", "specialise"].iter().any(|start| name.starts_with(start))
        };
        mirror(from, &folder, &is_ours)?;
        copy(&from.join("init"), &folder.join("init"), &|_| true)?;
        let own = Path::new("arch").join(build.processor().folder());
        fs::create_dir_all(folder.join(&own)).map_err(io_at(&folder))?;
        mirror(&from.join("arch"), &folder.join("arch"), &|name| own.ends_with(name))?;
        mirror(&from.join(&own), &folder.join(&own), &|name| name == "boot")?;
        let is_kept = |name: &str| {
            !name.ends_with("Image")
                && !name.ends_with("Image.gz")
                && !name.starts_with("vmlinux.bin")
                && !name.starts_with("vmlinux.relocs")
        };
        copy(&from.join(&own).join("boot"), &folder.join(&own).join("boot"), &is_kept)?;
        Ok(Self { build, folder })
    }

    /// Links `object`.
    ///
    /// # Errors
    /// The layout does not fit the configuration, or a program of the link failed.
    pub fn run(&self, object: &[u8], layout: Layout) -> Result<Output, KernelError> {
        self.link(object, &layout.script(self.build)?, false)
    }

    /// Links the build's own `object` with the linker's collection of garbage, and without it
    /// dropping what the kernel then cannot start without: the most that the kernel's own means can
    /// do.
    ///
    /// # Errors
    /// The linker script is not as expected, or a program of the link failed.
    pub fn run_collected(&self, object: &[u8]) -> Result<Output, KernelError> {
        self.link(object, &with_tables(&self.build.script()?)?, true)
    }

    fn link(&self, object: &[u8], script: &str, collects: bool) -> Result<Output, KernelError> {
        // The archive of all objects may be an object: the linker looks at contents. With IBT it
        // takes the other name.
        for name in ["vmlinux.a", "vmlinux.o"] {
            fs::write(self.folder.join(name), object).map_err(io_at(self.folder.join(name)))?;
        }
        write(&self.folder.join(SCRIPT), script)?;
        let mut environment = self.build.environment()?;
        let source = self.build.source().folder();
        environment.insert("KBUILD_VMLINUX_LIBS".into(), String::new());
        environment.insert("KBUILD_LDS".into(), SCRIPT.into());
        environment.insert("KBUILD_BUILD_VERSION".into(), "1".into());
        if let Some(timestamp) = self.build.timestamp() {
            environment.insert("KBUILD_BUILD_TIMESTAMP".into(), timestamp);
        }
        let command = |program: &str| {
            let mut command = Command::new(program);
            command.env_clear().envs(&environment).current_dir(&self.folder);
            command
        };
        let value = |name: &str, other: &str| environment.get(name).cloned().unwrap_or_else(|| other.to_string());
        let log = self.folder.join("specialise.log");
        let mut link = command(&value("CONFIG_SHELL", "sh"));
        link.arg(source.join("scripts/link-vmlinux.sh"));
        link.args([value("LD", "ld"), value("KBUILD_LDFLAGS", ""), self.build.link_options(collects)?]);
        tool::run(&mut link, &log)?;
        let processor = self.build.processor();
        let own = Path::new("arch").join(processor.folder());
        // AArch64 has nothing to do there, and x86 before Linux 6.5 does it in the boot image.
        let makefile = source.join(&own).join("Makefile.postlink");
        if makefile.exists() {
            let mut post = command("make");
            post.args(["-s", "-rR", "-f"]).arg(makefile).arg("vmlinux");
            tool::run(&mut post, &log)?;
        }
        let mut boot = command("make");
        boot.args(["-s", "-rR", "-f"]).arg(source.join("scripts/Makefile.build"));
        boot.arg(format!("obj={}/boot", own.display())).arg(image(Path::new(""), processor));
        tool::run(&mut boot, &log)?;
        Ok(Output {
            vmlinux: self.folder.join("vmlinux"),
            bzimage: image(&self.folder, processor),
            system_map: self.folder.join("System.map"),
        })
    }
}

/// The script without the alignment to 2 MiB.
fn compact(build: &Build, script: &str) -> Result<String, KernelError> {
    if build.processor() != Processor::X86_64 {
        let reason = "the compact layout is for x86-64: AArch64 aligns what it maps differently to 64 KiB, and no more"
            .to_string();
        return Err(KernelError::Config { reason });
    }
    // The second is the first before Linux 6.9.
    for option in ["MITIGATION_PAGE_TABLE_ISOLATION", "PAGE_TABLE_ISOLATION", "AMD_MEM_ENCRYPT"] {
        if build.is_set(option) {
            let reason = format!("the compact layout is not for CONFIG_{option}, which maps the kernel by 2 MiB");
            return Err(KernelError::Config { reason });
        }
    }
    // PMD_SIZE and HPAGE_SIZE, as the preprocessor leaves them.
    let text = script.replace("ALIGN((1 << 21))", "ALIGN((1 << 12))");
    let left = aligned_to_large_pages(&text);
    if text == script || left > 0 {
        let reason = format!("the linker script aligns in a way that is not known ({left} places)");
        return Err(KernelError::Config { reason });
    }
    Ok(text)
}

/// Sections that the kernel's script does not keep from the linker's collection, since no
/// architecture that offers it has them.
const NOT_KEPT: [&str; 15] = [
    ".altinstructions",
    ".altinstr_replacement",
    ".altinstr_aux",
    ".x86_cpu_dev.init",
    ".apicdrivers",
    ".exit.text",
    ".exit.data",
    ".smp_locks",
    ".retpoline_sites",
    ".return_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".orc_header",
    ".orc_unwind_ip",
    ".orc_unwind",
];

/// The script with all tables kept.
fn with_tables(script: &str) -> Result<String, KernelError> {
    let mut text = String::new();
    let mut rest = script;
    while let Some(at) = rest.find("*(") {
        let end = rest[at..].find(')').map_or(rest.len(), |length| at + length + 1);
        let pattern = &rest[at..end];
        let first = pattern[2..].split([' ', ')']).next().unwrap_or_default();
        text.push_str(&rest[..at]);
        if NOT_KEPT.contains(&first) && !text.ends_with("KEEP(") {
            text.push_str("KEEP(");
            text.push_str(pattern);
            text.push(')');
        } else {
            text.push_str(pattern);
        }
        rest = &rest[end..];
    }
    text.push_str(rest);
    if text == script {
        let reason = "the linker script names no table that must be kept".to_string();
        return Err(KernelError::Config { reason });
    }
    Ok(text)
}

/// How often the script aligns to 2 MiB.
fn aligned_to_large_pages(script: &str) -> usize {
    script
        .split("ALIGN(")
        .skip(1)
        .filter(|rest| rest.split(';').next().is_some_and(|rest| rest.contains("<< 21")))
        .count()
}

/// Links to all that is in `from`, but for names that `is_left_out`.
fn mirror(from: &Path, to: &Path, is_left_out: &dyn Fn(&str) -> bool) -> Result<(), KernelError> {
    for entry in fs::read_dir(from).map_err(io_at(from))? {
        let entry = entry.map_err(io_at(from))?;
        let name = entry.file_name();
        if !is_left_out(&name.to_string_lossy()) {
            symlink(entry.path(), to.join(&name)).map_err(io_at(to.join(&name)))?;
        }
    }
    Ok(())
}

/// Copies a folder with times, which make compares; of its files those whose name `is_kept`.
fn copy(from: &Path, to: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<(), KernelError> {
    fs::create_dir_all(to).map_err(io_at(to))?;
    for entry in fs::read_dir(from).map_err(io_at(from))? {
        let entry = entry.map_err(io_at(from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(io_at(&path))?;
        if kind.is_dir() {
            copy(&path, &target, is_kept)?;
        } else if kind.is_file() && is_kept(&entry.file_name().to_string_lossy()) {
            fs::copy(&path, &target).map_err(io_at(&target))?;
            let times = entry.metadata().and_then(|about| about.modified()).map_err(io_at(&path))?;
            let file = fs::File::options().write(true).open(&target).map_err(io_at(&target))?;
            file.set_modified(times).map_err(io_at(&target))?;
        } else if kind.is_symlink() {
            let aim = read_link(&path)?;
            symlink(aim, &target).map_err(io_at(&target))?;
        }
    }
    Ok(())
}

fn read_link(path: &Path) -> Result<PathBuf, KernelError> {
    fs::read_link(path).map_err(io_at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_kept_from_the_collection() {
        let script = ".a : { *(.altinstructions) KEEP(*(.apicdrivers)) *(.exit.data .exit.data.*) *(.text .text.*) }";
        let kept = ".a : { KEEP(*(.altinstructions)) KEEP(*(.apicdrivers)) KEEP(*(.exit.data .exit.data.*)) *(.text .text.*) }";
        assert_eq!(with_tables(script).unwrap(), kept);
        assert!(with_tables("{ *(.text) }").is_err());
    }
}
