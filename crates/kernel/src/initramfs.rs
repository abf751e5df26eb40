//! Initial file systems for test devices: archives of cpio in the kernel's form (`newc`).

/// An archive in the making. Every folder of a path must be added before what lies in it.
#[derive(Debug, Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

impl Initramfs {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder; the path has no slash at its start.
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, b"");
    }

    /// Adds a file that everybody may run.
    pub fn file(&mut self, path: &str, contents: &[u8]) {
        self.entry(path, FILE, contents);
    }

    /// Adds a symlink.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK, target.as_bytes());
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let is_end = path == "TRAILER!!!";
        let fields = [
            if is_end { 0 } else { self.entries },
            if is_end { 0 } else { mode },
            0,
            0,
            1,
            0,
            contents.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.fill();
        self.bytes.extend_from_slice(contents);
        self.fill();
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_reads_what_we_write() {
        let mut archive = Initramfs::new();
        archive.folder("bin");
        archive.file("bin/sh", b"#!\n");
        archive.link("init", "bin/sh");
        let bytes = archive.finish();
        let child = Command::new("cpio").args(["-t", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            eprintln!("skipped: cpio is not installed");
            return;
        };
        child.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), "bin\nbin/sh\ninit\n");
    }
}
