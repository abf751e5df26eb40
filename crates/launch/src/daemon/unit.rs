//! The unit file by which systemd starts the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use crate::LaunchError;

/// Its name.
pub const NAME: &str = "runnel-launchd.service";

/// Where systemd looks for what an administrator adds.
pub const FOLDER: &str = "/etc/systemd/system";

/// The line that makes a file ours.
const MARK: &str = "# made by `runnel launchd --install`; `runnel launchd --uninstall` takes it away";

/// Longest file that may be ours.
const UNIT_BYTES_MAX: u64 = 1 << 20;

/// Writes the unit file: `runnel` (an absolute path) with these folders of plans. The file written.
///
/// # Errors
/// A file of that name is not ours, the folder cannot be written to, or a path holds what a unit
/// file cannot.
pub fn install(units: &Path, runnel: &Path, folders: &[PathBuf]) -> Result<PathBuf, LaunchError> {
    let path = units.join(NAME);
    check_ours(&path)?;
    let text = text(runnel, folders)?;
    fs::create_dir_all(units).map_err(LaunchError::io("make", units))?;
    fs::write(&path, text).map_err(LaunchError::io("write", &path))?;
    Ok(path)
}

/// Takes the unit file away; the file, if there was one.
///
/// # Errors
/// A file of that name is not ours, or cannot be taken away.
pub fn uninstall(units: &Path) -> Result<Option<PathBuf>, LaunchError> {
    let path = units.join(NAME);
    if !check_ours(&path)? {
        return Ok(None);
    }
    fs::remove_file(&path).map_err(LaunchError::io("remove", &path))?;
    // What `systemctl enable` made, which it does not take away without the unit.
    let enabled = units.join("multi-user.target.wants").join(NAME);
    if fs::symlink_metadata(&enabled).is_ok_and(|found| found.is_symlink()) {
        fs::remove_file(&enabled).map_err(LaunchError::io("remove", &enabled))?;
    }
    Ok(Some(path))
}

/// Whether there is such a file.
fn check_ours(path: &Path) -> Result<bool, LaunchError> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(false);
    }
    let bytes = crate::small_file::read(path, UNIT_BYTES_MAX).map_err(LaunchError::io("read", path))?;
    if bytes.starts_with(MARK.as_bytes()) {
        return Ok(true);
    }
    let source = std::io::Error::other("this file was not made by `runnel launchd --install`");
    Err(LaunchError::io("replace", path)(source))
}

/// A path as a word of a unit file (systemd.syntax(7), systemd.service(5)).
fn word(path: &Path) -> Result<String, LaunchError> {
    let text = path.to_str().filter(|text| path.is_absolute() && !text.chars().any(char::is_control));
    let text = text.ok_or_else(|| {
        let source = std::io::Error::other("not an absolute path, or not one that a unit file can hold");
        LaunchError::io("use", path)(source)
    })?;
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    Ok(format!("\"{escaped}\""))
}

fn text(runnel: &Path, folders: &[PathBuf]) -> Result<String, LaunchError> {
    // Only in command lines a dollar begins a variable.
    let mut command = format!("{} launchd", word(runnel)?.replace('$', "$$"));
    let mut writable = String::new();
    for folder in folders {
        command.push_str(&format!(" --plans {}", word(folder)?.replace('$', "$$")));
        writable.push_str(&format!(" {}", word(folder)?));
    }
    Ok(TEMPLATE.replace("{mark}", MARK).replace("{command}", &command).replace("{folders}", writable.trim_start()))
}

/// Fetching fills the page cache in the name of the service, so there is no limit of memory. Of the
/// privileges: SYS_ADMIN is for fanotify, PERFMON for probes, SYS_PTRACE to see what others
/// execute, SETUID and SETGID to give up the rights of root for files, DAC_READ_SEARCH for programs
/// of root's that read what is others'.
const TEMPLATE: &str = "\
{mark}
[Unit]
Description=Fetches ahead what programs are about to read
After=local-fs.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=10
Nice=5
UMask=0077
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_PERFMON CAP_SYS_PTRACE CAP_SETUID CAP_SETGID CAP_DAC_READ_SEARCH CAP_SYS_RESOURCE
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folders}
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
SystemCallArchitectures=native
TasksMax=128
LimitNOFILE=16384

[Install]
WantedBy=multi-user.target
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_comes_and_goes_and_holds_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let units = folder.path().join("units");
        let folders = ["/root/.cache/runnel/plans", "/home/a b/100%$x"].map(PathBuf::from);
        for _ in 0..2 {
            install(&units, Path::new("/opt/runnel"), &folders).unwrap();
        }
        let text = fs::read_to_string(units.join(NAME)).unwrap();
        for line in [
            "ExecStart=\"/opt/runnel\" launchd --plans \"/root/.cache/runnel/plans\" --plans \"/home/a b/100%%$$x\"",
            "ReadWritePaths=\"/root/.cache/runnel/plans\" \"/home/a b/100%%$x\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        fs::create_dir(units.join("multi-user.target.wants")).unwrap();
        let enabled = units.join("multi-user.target.wants").join(NAME);
        std::os::unix::fs::symlink(units.join(NAME), &enabled).unwrap();
        assert_eq!(uninstall(&units).unwrap(), Some(units.join(NAME)));
        assert!(fs::symlink_metadata(enabled).is_err());
        assert_eq!(uninstall(&units).unwrap(), None);
        for bad in ["relative", "/a\nExecStartPre=/bin/evil"] {
            assert!(install(&units, Path::new(bad), &folders).is_err(), "{bad:?}");
        }
        fs::write(units.join(NAME), "[Unit]\n").unwrap();
        assert!(install(&units, Path::new("/opt/runnel"), &[]).is_err() && uninstall(&units).is_err());
        assert_eq!(fs::read(units.join(NAME)).unwrap(), b"[Unit]\n", "a file of somebody else stays");
    }
}
