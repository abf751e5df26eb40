//! Why a program in the new root cannot be started. The kernel says "no such file" of a program
//! that is there and lacks its interpreter, and the C library hands programs of other processors to
//! /bin/sh.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use elf::{Bytes, Machine, Program, Shebang};

/// Longest first line of a script that Linux reads.
const SHEBANG_BYTES_MAX: usize = 256;

/// The shell that the C library starts for files that the kernel does not know.
const SHELL: &str = "/bin/sh";

/// A program file, read as far as needed.
struct Local(File);

impl Bytes for Local {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// Why `program`, searched for in `search_path` if it is a bare name, cannot be started
/// here. `None` if nothing does, or nothing that can be told.
pub(super) fn obstacle(program: &OsStr, search_path: &OsStr) -> Option<String> {
    let path = find(program, search_path)?;
    if path.is_dir() {
        return Some(format!("{} is a directory; name a program", path.display()));
    }
    let file = Local(File::open(&path).ok()?);
    let mut start = [0; SHEBANG_BYTES_MAX];
    let read = file.read_at(0, &mut start).ok()?;
    let name = path.display();
    if let Some(script) = Shebang::parse(&start[..read]) {
        let interpreter = Path::new(OsStr::from_bytes(&script.interpreter));
        return (!interpreter.exists())
            .then(|| format!("{name} is a script for {}, which is not in the image", interpreter.display()));
    }
    if !start.starts_with(b"\x7fELF") && !Path::new(SHELL).exists() && !runs_foreign() {
        return Some(format!("{name} is no program: it begins neither as an ELF file nor with #!"));
    }
    let wanted = Program::parse(&file).ok()?;
    let ours = Program::parse(&Local(File::open("/proc/self/exe").ok()?)).ok()?.machine;
    if !ours.starts(wanted.machine) && !runs_foreign() {
        return Some(format!("{name} is {}; this machine is {ours}", described(wanted.machine)));
    }
    let loader = wanted.interpreter?;
    let loader = Path::new(OsStr::from_bytes(&loader));
    (!loader.exists()).then(|| {
        format!("{name} needs {}, which is not in the image; `runnel pack --closure` packs it too", loader.display())
    })
}

fn described(machine: Machine) -> String {
    let name = machine.to_string();
    let article = if name.starts_with(['A', 'i', 'I']) { "an" } else { "a" };
    format!("{article} {name} program")
}

/// The file that would be executed.
fn find(program: &OsStr, search_path: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let is_program = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(search_path).map(|folder| folder.join(program)).find(is_program)
}

/// Whether the kernel hands some programs to interpreters, such as QEMU's for other processors.
fn runs_foreign() -> bool {
    let handlers = fs::read_dir("/proc/sys/fs/binfmt_misc").into_iter().flatten().flatten();
    handlers.filter(|entry| entry.file_name() != "register" && entry.file_name() != "status").count() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that says of itself what the first bytes of this one say, changed.
    fn program(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        let mut bytes = fs::read("/proc/self/exe").expect("readable");
        change(&mut bytes);
        let path = folder.join("program");
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
        path
    }

    #[test]
    fn what_cannot_be_started_is_described() {
        let folder = tempfile::tempdir().expect("tempdir");
        let path = program(folder.path(), |_| ());
        assert_eq!(obstacle(path.as_os_str(), OsStr::new("")), None);
        let said = |change: fn(&mut Vec<u8>)| {
            program(folder.path(), change);
            obstacle(OsStr::new("program"), folder.path().as_os_str()).expect("an obstacle")
        };
        let folder_said = obstacle(folder.path().as_os_str(), OsStr::new("")).expect("an obstacle");
        assert!(folder_said.contains("is a directory; name a program"), "{folder_said}");
        // `e_machine`: IBM Z, which no machine but itself starts.
        let foreign = |bytes: &mut Vec<u8>| bytes[18] = 22;
        if !runs_foreign() {
            assert!(said(foreign).contains("is an IBM Z program; this machine is "));
        }
        let script = said(|bytes| *bytes = b"#!/no/such/shell -e\n".to_vec());
        assert!(script.contains("a script for /no/such/shell, which is not in the image"), "{script}");
        let loader = said(|bytes| {
            let name = b"/lib64/ld-linux";
            if let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
                bytes[at + 1] = b'X';
            } else {
                // No x86-64: any other fault will do.
                *bytes = b"#!/lib64/ld-linux, which is not in the image".to_vec();
            }
        });
        assert!(loader.contains("/lib64/ld-linux") || loader.contains("/Xib64/ld-linux"), "{loader}");
        assert!(loader.contains("which is not in the image"), "{loader}");
    }
}
