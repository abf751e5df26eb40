//! A small HTTP/1.1 server for files of one folder, with byte ranges and kept-alive connections:
//! what a static host or a registry is to a lazy-loading client. One thread per connection; only
//! for benches, on a unix socket.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;

/// Longest request head; a longer one closes the connection.
const HEAD_BYTES_MAX: u64 = 16 * 1024;

/// Bytes read from the file and written at once.
pub(crate) const COPY_BYTES: usize = 128 * 1024;

/// Answer to a request for what is not there.
pub(crate) const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// A running server; dropping it ends its accepting thread. Connections end when their clients
/// close them.
#[derive(Debug)]
pub struct RangeServer {
    socket: PathBuf,
    requests: Arc<AtomicU64>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RangeServer {
    /// Serves the files of `folder` on the unix socket `socket`.
    pub fn start(folder: &Path, socket: &Path) -> anyhow::Result<RangeServer> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        let (requests, stopping) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, stop, folder) = (Arc::clone(&requests), Arc::clone(&stopping), folder.to_path_buf());
        let accept = move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let (counter, folder) = (Arc::clone(&counter), folder.clone());
                // A connection that breaks is the client's to repeat.
                std::thread::spawn(move || serve(&stream, &folder, &counter));
            }
        };
        let thread = std::thread::Builder::new().name("range-server".into()).spawn(accept)?;
        Ok(RangeServer { socket: socket.to_path_buf(), requests, stopping, thread: Some(thread) })
    }

    /// Requests answered so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for RangeServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // A connection of our own wakes the thread.
        if UnixStream::connect(&self.socket).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Only the head of the answer.
    pub head_only: bool,
    /// Path of the target as it came: percent-encoded, without a query.
    pub path: String,
    /// First byte and, if given, last byte.
    pub range: Option<(u64, Option<u64>)>,
    /// The client wants the connection closed after the answer.
    pub close: bool,
}

fn serve(stream: &UnixStream, folder: &Path, requests: &AtomicU64) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader)? {
        requests.fetch_add(1, Ordering::Relaxed);
        answer(&mut { stream }, folder, &request)?;
        if request.close {
            break;
        }
    }
    Ok(())
}

/// The next request; `None` at the end of the connection.
pub(crate) fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut lines = Vec::new();
    let mut limited = reader.take(HEAD_BYTES_MAX);
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let line = line.trim_end().to_string();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let Some((first, headers)) = lines.split_first() else { return Ok(None) };
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let mut request = Request { head_only: method == "HEAD", path: path.to_string(), range: None, close: false };
    for (key, value) in headers.iter().filter_map(|line| line.split_once(':')) {
        let value = value.trim();
        if key.eq_ignore_ascii_case("range") {
            request.range = parse_range(value);
        } else if key.eq_ignore_ascii_case("connection") {
            request.close = value.eq_ignore_ascii_case("close");
        }
    }
    Ok(Some(request))
}

fn parse_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
    // One that ends before it begins is none.
    last.is_none_or(|last| last >= first).then_some((first, last))
}

fn answer(out: &mut impl Write, folder: &Path, request: &Request) -> io::Result<()> {
    let name = request.path.rsplit('/').next().unwrap_or_default();
    let file = if name.is_empty() || name == ".." { None } else { File::open(folder.join(name)).ok() };
    match file {
        Some(file) => send_file(out, &file, request, ""),
        None => out.write_all(NOT_FOUND),
    }
}

/// Answers `request` with `file`, or the range of it that is asked for. `headers` are further
/// lines, each with its end.
pub(crate) fn send_file(out: &mut impl Write, file: &File, request: &Request, headers: &str) -> io::Result<()> {
    let length = file.metadata()?.len();
    let (first, last) = match request.range {
        Some((first, _)) if first >= length => {
            let head = format!(
                "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{length}\r\nContent-Length: 0\r\n\r\n"
            );
            return out.write_all(head.as_bytes());
        }
        Some((first, last)) => (first, last.map_or(length, |last| length.min(last.saturating_add(1)))),
        None => (0, length),
    };
    let bytes = last.saturating_sub(first);
    let status = if request.range.is_some() {
        format!("206 Partial Content\r\nContent-Range: bytes {first}-{}/{length}", last.saturating_sub(1))
    } else {
        "200 OK".to_string()
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\nAccept-Ranges: bytes\r\n{headers}Content-Type: application/octet-stream\r\n\r\n"
    );
    out.write_all(head.as_bytes())?;
    if request.head_only {
        return Ok(());
    }
    let mut buffer = vec![0; COPY_BYTES.min(bytes as usize)];
    let mut at = first;
    while at < last {
        let count = buffer.len().min((last - at) as usize);
        file.read_exact_at(&mut buffer[..count], at)?;
        out.write_all(&buffer[..count])?;
        at += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(socket: &Path, request: &str) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn ranges_whole_files_and_missing_files_are_answered() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("blob"), "0123456789")?;
        let socket = folder.path().join("socket");
        let server = RangeServer::start(folder.path(), &socket)?;
        let two = "GET /x/blob?a=b HTTP/1.1\r\nRange: bytes=2-4\r\n\r\nGET /blob HTTP/1.1\r\nConnection: close\r\n\r\n";
        let text = ask(&socket, two)?;
        assert!(text.contains("206 Partial Content") && text.contains("Content-Range: bytes 2-4/10"), "{text}");
        assert!(text.contains("\r\n\r\n234HTTP/1.1 200 OK") && text.ends_with("\r\n\r\n0123456789"), "{text}");
        let cases = [
            ("GET /blob HTTP/1.1\r\nrange: bytes=8-99\r\nconnection: close\r\n\r\n", "\r\n\r\n89"),
            (
                "GET /blob HTTP/1.1\r\nrange: bytes=10-\r\nconnection: close\r\n\r\n",
                "bytes */10\r\nContent-Length: 0\r\n\r\n",
            ),
            ("GET /blob HTTP/1.1\r\nrange: bytes=5-2\r\nconnection: close\r\n\r\n", "\r\n\r\n0123456789"),
            ("HEAD /blob HTTP/1.1\r\nconnection: close\r\n\r\n", "octet-stream\r\n\r\n"),
            ("GET /none HTTP/1.1\r\nconnection: close\r\n\r\n", "Content-Length: 0\r\n\r\n"),
            ("GET /.. HTTP/1.1\r\nconnection: close\r\n\r\n", "Content-Length: 0\r\n\r\n"),
        ];
        for (request, end) in cases {
            let text = ask(&socket, request)?;
            assert!(text.ends_with(end), "{request} gave {text}");
        }
        assert_eq!(server.requests(), 2 + cases.len() as u64);
        Ok(())
    }
}
