//! `mount.runnel`: what `mount -t runnel IMAGE DIR` and fstab call, as a link to `runnel`.
//!
//! An image on this machine is mounted by the kernel's own reader if that is there, else by EROFS,
//! else by FUSE; what a server has is mounted by FUSE. `id=` holds for the kernel's reader alone,
//! so with it nothing else is tried. The long options of `runnel mount` are options here as well,
//! such as `soft=30`; with one of them the mount is by FUSE, and with `signed-as=` or `fs-verity=`
//! by EROFS.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ::mount::mountpoint;
use anyhow::{Context, ensure};
use connection::Target;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::failure;

/// The name under which this is called.
const NAME: &str = "mount.runnel";

/// The kernel's own reader.
const MODULE: &str = "runnelfs";

/// What mount(8) expects of helpers whose mount fails.
const MOUNT_FAILED: u8 = 32;

/// Options of `runnel mount` that decide what mount(8) or this helper decides.
const NOT_TAKEN: [&str; 3] = ["foreground", "kernel", "help"];

/// Options of `runnel mount` that are for its mounts by EROFS.
const KERNEL_ALONE: [&str; 2] = ["--signed-as=", "--fs-verity="];

/// Options that are for others, or say what holds anyway.
const IGNORED: [&str; 16] = [
    "rw", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "suid",
    "dev", "exec", "relatime", "noatime",
];

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    target: String,
    directory: PathBuf,
    no_suid: bool,
    no_devices: bool,
    no_programs: bool,
    is_read_only: bool,
    /// Options of `runnel mount`.
    others: Vec<String>,
    /// The image that it must be.
    id: Option<String>,
    /// Only look whether the arguments are right.
    is_rehearsal: bool,
    verbose: bool,
}

impl Asked {
    fn parse(arguments: &[String]) -> anyhow::Result<Asked> {
        let usage = || failure::usage(format!("usage: {NAME} IMAGE DIRECTORY [-fnsv] [-o OPTION,…]"));
        let [target, directory, rest @ ..] = arguments else { return Err(usage()) };
        let mut asked = Asked {
            target: target.clone(),
            directory: directory.into(),
            no_suid: false,
            no_devices: false,
            no_programs: false,
            is_read_only: false,
            others: Vec::new(),
            id: None,
            is_rehearsal: false,
            verbose: false,
        };
        let (mut is_sloppy, mut options) = (false, Vec::new());
        let mut rest = rest.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "-o" => options.extend(rest.next().with_context(usage)?.split(',')),
                // A type with a subtype.
                "-t" => drop(rest.next().with_context(usage)?),
                flags
                    if flags.strip_prefix('-').is_some_and(|flags| flags.chars().all(|flag| "fnsv".contains(flag))) =>
                {
                    asked.is_rehearsal |= flags.contains('f');
                    asked.verbose |= flags.contains('v');
                    is_sloppy |= flags.contains('s');
                }
                _ => return Err(usage()),
            }
        }
        let known = <super::Args as clap::Args>::augment_args(clap::Command::new(NAME));
        let is_known = |name: &str| known.get_arguments().any(|argument| argument.get_long() == Some(name));
        for option in options {
            let name = option.split('=').next().unwrap_or_default().replace('_', "-");
            match option.split_once('=').unwrap_or((option, "")) {
                ("nosuid", _) => asked.no_suid = true,
                ("nodev", _) => asked.no_devices = true,
                ("noexec", _) => asked.no_programs = true,
                ("ro", _) => asked.is_read_only = true,
                ("id", id) => asked.id = Some(id.to_string()),
                (name, _) if IGNORED.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
                ("", _) => {}
                _ if is_known(&name) && !NOT_TAKEN.contains(&name.as_str()) => {
                    let value = option.find('=').map_or("", |at| &option[at..]);
                    asked.others.push(format!("--{name}{value}"));
                }
                _ if is_sloppy => {}
                _ => return Err(failure::usage(format!("{NAME} does not know the option '{option}'"))),
            }
        }
        Ok(asked)
    }

    /// Whether an option is one of mounts by EROFS alone.
    fn is_for_kernel(&self) -> bool {
        self.others.iter().any(|option| KERNEL_ALONE.iter().any(|name| option.starts_with(name)))
    }

    fn flags(&self) -> MountFlags {
        let all = [
            (self.no_suid, MountFlags::NOSUID),
            (self.no_devices, MountFlags::NODEV),
            (self.no_programs, MountFlags::NOEXEC),
        ];
        all.iter().filter(|(wanted, _)| *wanted).fold(MountFlags::RDONLY, |flags, (_, flag)| flags | *flag)
    }

    /// Arguments of `runnel` for a mount that it serves.
    fn served(&self, by_kernel: bool) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            vec!["mount".into(), self.target.clone().into(), self.directory.clone().into()];
        let given = [
            (by_kernel, "--kernel"),
            (self.is_read_only && !by_kernel, "--read-only"),
            (!self.no_suid, "--allow-suid"),
            (!self.no_devices, "--allow-devices"),
        ];
        arguments.extend(given.iter().filter(|(given, _)| *given).map(|(_, name)| name.into()));
        arguments.extend(self.others.iter().map(OsString::from));
        arguments
    }
}

/// Does what mount(8) asks for, if this program was called as its helper.
pub fn run_if_called() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let called = PathBuf::from(arguments.next()?);
    if called.file_name()? != NAME {
        return None;
    }
    let arguments: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    Some(Asked::parse(&arguments).and_then(|asked| run(&asked)).unwrap_or_else(|error| failure::report(&error)))
}

fn run(asked: &Asked) -> anyhow::Result<ExitCode> {
    if asked.is_rehearsal {
        return Ok(ExitCode::SUCCESS);
    }
    let target = Target::parse(&asked.target)?;
    // Of what is missing the kernel says only that something is.
    let failed = |error: anyhow::Error| failure::with_code(MOUNT_FAILED, format!("{error:#}"));
    mountpoint::validate(&asked.directory).map_err(|error| failed(error.into()))?;
    if let Target::File(image) = &target {
        std::fs::metadata(image).with_context(|| image.display().to_string()).map_err(failed)?;
    }
    if let Target::File(image) = &target
        && asked.others.is_empty()
    {
        match by_module(asked, image) {
            Ok(()) => {
                tell_way(asked, MODULE);
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) if asked.id.is_some() || !is_lacking(error) => {
                return Err(failure::with_code(MOUNT_FAILED, why_not(image, error)));
            }
            Err(_) => {}
        }
        // Disks are read by the module alone.
        let is_file = !std::fs::metadata(image).is_ok_and(|about| about.file_type().is_block_device());
        if is_file && !asked.no_programs && serve(asked, true, asked.verbose)? {
            tell_way(asked, "EROFS");
            return Ok(ExitCode::SUCCESS);
        }
    }
    if asked.is_for_kernel() {
        return Ok(ExitCode::from(if serve(asked, true, true)? { 0 } else { MOUNT_FAILED }));
    }
    ensure!(asked.id.is_none(), failure::usage(format!("id= is for images on this machine and the kernel's {MODULE}")));
    ensure!(!asked.no_programs, failure::usage(format!("noexec needs the kernel's {MODULE}")));
    if !serve(asked, false, true)? {
        return Ok(ExitCode::from(MOUNT_FAILED));
    }
    tell_way(asked, "FUSE");
    Ok(ExitCode::SUCCESS)
}

fn tell_way(asked: &Asked, way: &str) {
    if asked.verbose {
        tell!("{} is mounted by {way}", asked.target);
    }
}

fn by_module(asked: &Asked, image: &Path) -> Result<(), Errno> {
    let data = asked.id.as_ref().map(|id| CString::new(format!("id={id}")).unwrap_or_default());
    mount(image.as_os_str().as_bytes(), &asked.directory, MODULE, asked.flags(), data.as_deref())
}

/// Whether the kernel has no such reader, or one that does not know what the image uses.
fn is_lacking(error: Errno) -> bool {
    [Errno::NODEV, Errno::OPNOTSUPP].contains(&error)
}

/// Why the kernel's reader mounts nothing, and what to do.
fn why_not(image: &Path, error: Errno) -> String {
    let text = format!("cannot mount {} by the kernel's {MODULE}", image.display());
    match error {
        Errno::NODEV => format!(
            "{text}: this kernel has no such module\nhint: kernel/{MODULE}/README.md in the source of runnel tells how to \
             build it; without id= EROFS or FUSE mounts the image, whichever image it is"
        ),
        Errno::BADMSG => format!("{text}: it is not the image that id= names"),
        _ => format!("{text}: {error}\nhint: `dmesg` has the reason"),
    }
}

/// Mounts by a process of ours; says whether it did.
fn serve(asked: &Asked, by_kernel: bool, tell: bool) -> anyhow::Result<bool> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(asked.served(by_kernel));
    let output = if tell { None } else { Some(command.output().context("cannot start runnel")?) };
    let status = match &output {
        Some(output) => output.status,
        None => command.status().context("cannot start runnel")?,
    };
    // Whatever else could mount it would mount what was refused.
    if by_kernel && status.code() == Some(failure::UNTRUSTED.into()) {
        let said = output.map(|output| String::from_utf8_lossy(&output.stderr).trim_end().to_string());
        let said = said.unwrap_or_else(|| format!("{} is not what was signed", asked.target));
        return Err(failure::with_code(MOUNT_FAILED, said.trim_start_matches("error: ")));
    }
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<Asked> {
        Asked::parse(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn what_mount_says_is_understood() -> anyhow::Result<()> {
        let asked = parse("/a.rnl /mnt -v -o ro,nosuid,nodev,x-systemd.automount,id=12 -t runnel")?;
        assert_eq!((asked.target.as_str(), asked.id.as_deref(), asked.verbose), ("/a.rnl", Some("12"), true));
        assert_eq!(asked.flags(), MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV);
        assert_eq!(asked.served(true), ["mount", "/a.rnl", "/mnt", "--kernel"]);
        let plain = parse("runnel://server/app /mnt -o rw,_netdev")?;
        assert_eq!(plain.flags(), MountFlags::RDONLY);
        let wanted = ["mount", "runnel://server/app", "/mnt", "--allow-suid", "--allow-devices"];
        assert_eq!(plain.served(false), wanted);
        assert!(parse("/a.rnl /mnt -fn")?.is_rehearsal);
        let signed = parse("/a.rnl /mnt -o signed_as=runnel://s/a:1,trust=/r")?;
        assert!(signed.is_for_kernel() && !plain.is_for_kernel());
        let volume = parse("runnel://server/volume/v /mnt -o ro,nosuid,nodev,soft=30,allow_other,cache-size=1m")?;
        let wanted = ["mount", "runnel://server/volume/v", "/mnt", "--read-only"];
        assert_eq!(volume.served(false), [&wanted[..], &["--soft=30", "--allow-other", "--cache-size=1m"]].concat());
        Ok(())
    }

    #[test]
    fn what_is_not_understood_is_refused_unless_it_may_be_passed_over() {
        assert!(parse("/a.rnl").is_err() && parse("/a.rnl /mnt -o").is_err() && parse("/a.rnl /mnt -x").is_err());
        assert!(parse("/a.rnl /mnt -o compress=zstd").is_err());
        assert!(parse("/a.rnl /mnt -o foreground").is_err() && parse("/a.rnl /mnt -o help").is_err());
        assert!(parse("/a.rnl /mnt -s -o compress=zstd").is_ok());
    }

    #[test]
    fn another_way_is_tried_only_where_the_kernel_lacks_its_reader() {
        assert!(is_lacking(Errno::NODEV) && is_lacking(Errno::OPNOTSUPP));
        assert!(!is_lacking(Errno::BADMSG) && !is_lacking(Errno::PERM) && !is_lacking(Errno::NOENT));
    }

    #[test]
    fn a_kernel_without_the_module_is_told_apart_from_a_refused_image() {
        let why = |error| why_not(Path::new("/a.rnl"), error);
        let [lacking, other, damaged] = [Errno::NODEV, Errno::BADMSG, Errno::IO].map(why);
        assert!(lacking.contains("no such module") && lacking.contains("kernel/runnelfs/README.md"), "{lacking}");
        assert!(other.ends_with("not the image that id= names"), "{other}");
        assert!(damaged.contains(&Errno::IO.to_string()) && damaged.contains("dmesg"), "{damaged}");
    }
}
