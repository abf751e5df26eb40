//! A web server for one folder over TCP: files with byte ranges, index pages, kept-alive
//! connections. What a static host is to clients that mount the web; Nydus and casync fetch from it
//! too.
//!
//! Paths resolve as in a root of their own, so that the links of a tree (`bin -> usr/bin`,
//! `/etc/alternatives`) lead where they lead for programs inside it, never out of the folder. Links
//! look like what they point to: HTTP has no links. One thread per connection. `runnel-bench
//! lab-http` calls [`serve`] in the server's name space; its requests are counted in a file, which
//! also says that it is ready.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2};

use super::listing::{Entry, date, decode, page};
use crate::peer::range_server::{COPY_BYTES, NOT_FOUND, Request, read_request, send_file};

/// Room for the head of an answer beside the first part of a file, so that both leave in one write.
const HEAD_BYTES: usize = 1024;

/// Width of the number in the file of counted requests: it is overwritten in place.
const COUNT_WIDTH: usize = 12;

/// Serves the files of `folder` on `listen` until the process ends. `count` is written with `0`
/// once connections are accepted, then with the number of requests answered.
pub fn serve(folder: &Path, listen: SocketAddr, count: &Path) -> anyhow::Result<()> {
    let site = Arc::new(Site::open(folder, count)?);
    let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    site.write_count(0).with_context(|| format!("cannot write {}", count.display()))?;
    for stream in listener.incoming().flatten() {
        let site = Arc::clone(&site);
        // A connection that breaks is the client's to repeat.
        std::thread::spawn(move || site.serve(&stream));
    }
    Ok(())
}

#[derive(Debug)]
struct Site {
    root: OwnedFd,
    count: File,
    requests: Mutex<u64>,
}

impl Site {
    fn open(folder: &Path, count: &Path) -> anyhow::Result<Site> {
        let root = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
        let count = File::create(count).with_context(|| format!("cannot write {}", count.display()))?;
        Ok(Site { root: root.into(), count, requests: Mutex::new(0) })
    }

    fn write_count(&self, requests: u64) -> io::Result<()> {
        self.count.write_all_at(format!("{requests:>COUNT_WIDTH$}\n").as_bytes(), 0)
    }

    /// Counts and writes under one lock: else a connection could put an older number over a newer
    /// one.
    fn count_request(&self) -> io::Result<()> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests += 1;
        self.write_count(*requests)
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        let mut writer = BufWriter::with_capacity(COPY_BYTES + HEAD_BYTES, stream);
        while let Some(request) = read_request(&mut reader)? {
            self.answer(&mut writer, &request)?;
            writer.flush()?;
            self.count_request()?;
            if request.close {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, out: &mut impl Write, request: &Request) -> io::Result<()> {
        let path = decode(&request.path);
        // Opening a device or a pipe could block; only files and folders are opened for reading.
        let Ok(found) = open_in(self.root.as_fd(), &path, OFlags::PATH).and_then(|file| fstat(&file)) else {
            return out.write_all(NOT_FOUND);
        };
        let dated = format!("Last-Modified: {}\r\n", date(u64::try_from(found.st_mtime).unwrap_or_default()));
        match file_type(&found) {
            FileType::Directory if !path.ends_with(b"/") => {
                let to = &request.path;
                write!(out, "HTTP/1.1 301 Moved Permanently\r\nLocation: {to}/\r\nContent-Length: 0\r\n\r\n")
            }
            FileType::Directory => {
                let body = page(&request.path, &self.entries(&path)?);
                let length = body.len();
                let kind = "text/html; charset=utf-8";
                write!(out, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nContent-Type: {kind}\r\n{dated}\r\n")?;
                if request.head_only { Ok(()) } else { out.write_all(body.as_bytes()) }
            }
            FileType::RegularFile => {
                let file = open_in(self.root.as_fd(), &path, OFlags::RDONLY)?;
                send_file(out, &File::from(file), request, &dated)
            }
            _ => out.write_all(NOT_FOUND),
        }
    }

    /// Files and folders of the folder at `path`, sorted; what a link points to counts, other kinds
    /// are left out.
    fn entries(&self, path: &[u8]) -> io::Result<Vec<Entry>> {
        let folder = open_in(self.root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            let Some(kind) = self.kind(folder.as_fd(), path, &name) else { continue };
            if matches!(kind, FileType::Directory | FileType::RegularFile) {
                entries.push(Entry { folder: kind == FileType::Directory, name });
            }
        }
        entries.sort();
        Ok(entries)
    }

    /// What `name` in `folder` (at `path`) is, or leads to; nothing if a link leads nowhere.
    fn kind(&self, folder: BorrowedFd<'_>, path: &[u8], name: &[u8]) -> Option<FileType> {
        let plain = rustix::fs::statat(folder, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if file_type(&plain) != FileType::Symlink {
            return Some(file_type(&plain));
        }
        let whole = [path, name].concat();
        let target = open_in(self.root.as_fd(), &whole, OFlags::PATH).ok()?;
        fstat(&target).ok().map(|found| file_type(&found))
    }
}

fn file_type(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

/// Opens the file at `path` as if `root` were the root folder.
fn open_in(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat2(root, OsStr::from_bytes(path), flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The answers to `requests`, sent on one connection, of a server of `folder`.
    fn ask(folder: &Path, requests: &str) -> anyhow::Result<(String, String)> {
        let count = folder.join("count");
        let site = Arc::new(Site::open(folder, &count)?);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        let thread = std::thread::spawn(move || site.serve(&stream));
        client.write_all(requests.as_bytes())?;
        client.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        thread.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        Ok((text, std::fs::read_to_string(count)?.trim().to_string()))
    }

    #[test]
    fn links_resolve_inside_the_folder() -> anyhow::Result<()> {
        let outside = tempfile::tempdir()?;
        let folder = outside.path().join("tree");
        std::fs::create_dir_all(folder.join("usr/bin"))?;
        std::fs::create_dir_all(folder.join("etc"))?;
        std::fs::write(outside.path().join("secret"), "secret")?;
        std::fs::write(folder.join("usr/bin/_perl"), "#!perl")?;
        symlink("usr/bin", folder.join("bin"))?;
        symlink("/usr/bin/_perl", folder.join("etc/perl"))?;
        symlink("../../secret", folder.join("etc/out"))?;
        symlink("nowhere", folder.join("etc/none"))?;

        let (text, _) = ask(&folder, "GET / HTTP/1.1\r\n\r\n")?;
        assert!(text.contains("text/html") && text.contains("\"bin/\"") && text.contains("\"usr/\""), "{text}");
        let (text, _) = ask(&folder, "GET /etc/ HTTP/1.1\r\n\r\n")?;
        assert!(text.contains("\"perl\"") && !text.contains("out") && !text.contains("none"), "{text}");
        let (text, count) = ask(&folder, "GET /etc/perl HTTP/1.1\r\n\r\nGET /bin/%5Fperl HTTP/1.1\r\n\r\n")?;
        assert_eq!((text.matches("#!perl").count(), count.as_str()), (2, "2"), "{text}");
        for bad in ["/../secret", "/etc/out", "/etc/none", "/nothing"] {
            let (text, _) = ask(&folder, &format!("GET {bad} HTTP/1.1\r\n\r\n"))?;
            assert!(text.starts_with("HTTP/1.1 404"), "{bad}: {text}");
        }
        Ok(())
    }

    #[test]
    fn ranges_heads_and_folders_without_a_slash_are_answered() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("sub"))?;
        std::fs::write(folder.path().join("blob"), "0123456789")?;
        let (text, _) = ask(folder.path(), "GET /blob HTTP/1.1\r\nRange: bytes=2-4\r\n\r\n")?;
        assert!(text.contains("206 Partial") && text.contains("Last-Modified: ") && text.ends_with("\n234"), "{text}");
        let (text, _) = ask(folder.path(), "HEAD /blob HTTP/1.1\r\n\r\n")?;
        assert!(text.contains("Content-Length: 10\r\n") && text.ends_with("\r\n\r\n"), "{text}");
        let (text, _) = ask(folder.path(), "GET /sub HTTP/1.1\r\n\r\n")?;
        assert!(text.contains("301 Moved") && text.contains("Location: /sub/\r\n"), "{text}");
        Ok(())
    }
}
