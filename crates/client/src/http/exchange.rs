//! One keep-alive connection to a web server: GET with a Range, and a strict look at the answer.
//!
//! Only what a range read needs is spoken, everything is bounded, and nothing is guessed: an answer
//! that is not exactly the range that was asked for ends the connection.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::time::{Duration, Instant};

use connection::{ConnectionError, Dialer, HttpFile, Transport};

use crate::error::ClientError;

/// Longest head of an answer. Web servers send under 1 KiB, gateways in front of them up to a few.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Fields of a head at most.
const FIELDS_MAX: usize = 64;

/// Read from the socket at once.
const BUFFER_BYTES: usize = 64 << 10;

/// Longest piece of an answer that is shown in an error.
const SHOWN_BYTES_MAX: usize = 100;

/// Why an exchange failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// No connection, or none that can be trusted.
    Dial(ConnectionError),
    /// The connection failed or ended in the middle, or no answer came in time.
    Lost(io::Error),
    /// Another status than 206.
    Status { status: u16, location: Option<String> },
    /// The answer does not fit the request.
    Broken(String),
    /// The answer is of another edition of the file.
    Changed,
}

/// Which version of the file an answer is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edition {
    /// Bytes of the whole file.
    pub file_bytes: u64,
    etag: Option<Vec<u8>>,
    modified: Option<Vec<u8>>,
}

/// A connection.
pub(crate) struct Exchange {
    transport: Transport,
    file: HttpFile,
    input: Vec<u8>,
    /// Bytes of `input` that were received and not yet taken.
    received: Range<usize>,
    /// Bytes of the answer's body that were not taken yet.
    body_left: u64,
    /// Whether the server keeps the connection open after this answer.
    keeps: bool,
    /// Whether an answer came before: an idle connection may be closed by the server at any time.
    pub used: bool,
    /// Whether anything of the present answer came.
    pub answered: bool,
    /// Bytes since the last look, for the counters.
    pub moved: (u64, u64),
}

/// The fields of a head that matter.
#[derive(Debug, Default)]
struct Head {
    status: u16,
    keeps: bool,
    length: Option<u64>,
    range: Option<Vec<u8>>,
    etag: Option<Vec<u8>>,
    modified: Option<Vec<u8>>,
    location: Option<String>,
    encoded: Option<String>,
}

impl Exchange {
    pub fn dial(dialer: &Dialer, file: &HttpFile, time: Duration) -> Result<Exchange, Fault> {
        let transport = dialer.dial(time).map_err(Fault::Dial)?;
        Ok(Exchange {
            transport,
            file: file.clone(),
            input: vec![0; BUFFER_BYTES],
            received: 0..0,
            body_left: 0,
            keeps: true,
            used: false,
            answered: false,
            moved: (0, 0),
        })
    }

    /// Whether another request may follow.
    pub fn is_reusable(&self) -> bool {
        self.keeps && self.body_left == 0 && self.received.is_empty()
    }

    /// Asks for a range of the file (not empty) and reads the head of the answer. The body comes by
    /// [`Exchange::body`].
    pub fn get(&mut self, range: Range<u64>, until: Instant) -> Result<Edition, Fault> {
        self.used |= self.answered;
        self.answered = false;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: runnel/{}\r\nAccept: */*\r\nAccept-Encoding: identity\r\n\
             Range: bytes={}-{}\r\n\r\n",
            self.file.path,
            self.file.server.authority(),
            env!("CARGO_PKG_VERSION"),
            range.start,
            range.end - 1
        );
        self.send(request.as_bytes(), until).map_err(Fault::Lost)?;
        let head = loop {
            // 100 to 199 announce the real answer; 101 would be another protocol.
            match self.head(until)? {
                head if (100..200).contains(&head.status) && head.status != 101 => {}
                head => break head,
            }
        };
        self.keeps = head.keeps;
        // Whatever is refused below has a body that nobody reads.
        self.body_left = u64::MAX;
        let file_bytes = head.check(&range)?;
        self.body_left = range.end - range.start;
        Ok(Edition { file_bytes, etag: head.etag, modified: head.modified })
    }

    /// Takes the next bytes of the body.
    pub fn body(&mut self, mut bytes: &mut [u8], until: Instant) -> Result<(), Fault> {
        debug_assert!(bytes.len() as u64 <= self.body_left, "the caller asked for the range");
        self.body_left -= bytes.len() as u64;
        while !bytes.is_empty() {
            if self.received.is_empty() {
                self.receive(until).map_err(Fault::Lost)?;
            }
            let count = self.received.len().min(bytes.len());
            let (now, later) = bytes.split_at_mut(count);
            now.copy_from_slice(&self.input[self.received.start..self.received.start + count]);
            self.received.start += count;
            bytes = later;
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() || self.transport.has_unsent() {
            match self.transport.write(bytes) {
                Ok(0) if !bytes.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.moved.1 += count as u64;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if !bytes.is_empty() || self.transport.has_unsent() {
                self.transport.wait_until(true, until)?;
            }
        }
        Ok(())
    }

    /// Receives at least one byte behind those that wait.
    fn receive(&mut self, until: Instant) -> io::Result<()> {
        if self.received.is_empty() {
            self.received = 0..0;
        }
        loop {
            match self.transport.read(&mut self.input[self.received.end..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    self.moved.0 += count as u64;
                    self.received.end += count;
                    self.answered = true;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.transport.wait_until(false, until)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn head(&mut self, until: Instant) -> Result<Head, Fault> {
        // To the front, so that the longest head fits behind.
        self.input.copy_within(self.received.clone(), 0);
        self.received = 0..self.received.len();
        loop {
            if let Some((head, bytes)) = Head::parse(&self.input[..self.received.end]).map_err(Fault::Broken)? {
                self.received.start = bytes;
                return Ok(head);
            }
            if self.received.end > HEAD_BYTES_MAX {
                return Err(Fault::Broken(format!("the head of the answer is longer than {HEAD_BYTES_MAX} bytes")));
            }
            self.receive(until).map_err(Fault::Lost)?;
        }
    }
}

impl Head {
    /// The head and its length, or `None` if more is needed.
    fn parse(bytes: &[u8]) -> Result<Option<(Head, usize)>, String> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let length = match response.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => {
                let begin = shown(bytes);
                return Err(format!(
                    "the answer is no HTTP ({error}): use runnel:// if `runnel serve` listens there, or check the port; it \
                     begins {begin:?}"
                ));
            }
        };
        let mut head =
            Head { status: response.code.unwrap_or(0), keeps: response.version == Some(1), ..Head::default() };
        for field in response.headers.iter() {
            head.take(field.name, field.value)?;
        }
        Ok(Some((head, length)))
    }

    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), String> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("content-length") {
            let found = number(value).ok_or_else(|| format!("Content-Length is {:?}", shown(value)))?;
            if self.length.replace(found).is_some_and(|other| other != found) {
                return Err("two different Content-Length fields".into());
            }
        } else if is("content-range") {
            if self.range.replace(value.to_vec()).is_some_and(|other| other != value) {
                return Err("two different Content-Range fields".into());
            }
        } else if is("connection") {
            let text = String::from_utf8_lossy(value).to_ascii_lowercase();
            for word in text.split(',') {
                match word.trim() {
                    "close" => self.keeps = false,
                    "keep-alive" => self.keeps = true,
                    _ => {}
                }
            }
        } else if is("etag") {
            self.etag = Some(value.to_vec());
        } else if is("last-modified") {
            self.modified = Some(value.to_vec());
        } else if is("location") {
            self.location = Some(shown(value));
        } else if is("transfer-encoding") || is("content-encoding") && !value.eq_ignore_ascii_case(b"identity") {
            self.encoded = Some(format!("{name}: {}", shown(value)));
        }
        Ok(())
    }

    /// Checks that this is the answer to a request for `range`; returns the length of the whole
    /// file.
    fn check(&self, range: &Range<u64>) -> Result<u64, Fault> {
        if self.status == 200 {
            let reason = "the web server ignores Range requests, which are how single blocks are read; \
                          use one that supports them, or `runnel serve`";
            return Err(Fault::Broken(reason.into()));
        }
        if self.status != 206 {
            return Err(Fault::Status { status: self.status, location: self.location.clone() });
        }
        if let Some(encoded) = &self.encoded {
            return Err(Fault::Broken(format!("the answer is encoded ({encoded}); it must be the bytes as they are")));
        }
        let bytes = range.end - range.start;
        let asked = format!("bytes {}-{}", range.start, range.end - 1);
        let found = self.range.as_deref().unwrap_or_default();
        let total = found.strip_prefix(asked.as_bytes()).and_then(|rest| rest.strip_prefix(b"/")).and_then(number);
        let Some(total) = total.filter(|total| *total >= range.end) else {
            return Err(Fault::Broken(format!("Content-Range is {:?} where {asked:?} was asked for", shown(found))));
        };
        if self.length != Some(bytes) {
            let found = self.length.map_or("missing".into(), |found| found.to_string());
            return Err(Fault::Broken(format!("Content-Length is {found} where {bytes} bytes were asked for")));
        }
        Ok(total)
    }
}

/// Only digits: `u64::from_str` alone would also take a sign.
fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

impl Fault {
    /// Whether the same request would fail in the same way, as far as one can tell: the READ must
    /// not wait for ever.
    pub fn is_refusal(&self) -> bool {
        match self {
            // 404, 410, 412 and 416 may mean that the file changed; 408, 429 and 5xx pass.
            Fault::Status { status, .. } => !matches!(status, 404 | 410 | 412 | 416 | 408 | 429 | 500..=599),
            Fault::Broken(_) => true,
            Fault::Dial(_) | Fault::Lost(_) | Fault::Changed => false,
        }
    }

    /// The fault as the error of a session that cannot be opened.
    /// Whether the server is not there, as far as can be seen.
    pub fn is_away(&self) -> bool {
        match self {
            Fault::Dial(error) => !matches!(error, ConnectionError::Trust { .. } | ConnectionError::System(_)),
            Fault::Lost(_) => true,
            Fault::Status { status, .. } => matches!(status, 502..=504),
            Fault::Broken(_) | Fault::Changed => false,
        }
    }

    pub fn explain(self, dialer: &Dialer, file: &HttpFile) -> ClientError {
        let reason = match self {
            Fault::Dial(error) => return error.into(),
            Fault::Lost(source) if source.kind() == io::ErrorKind::TimedOut => "no answer in time".into(),
            Fault::Lost(source) => return dialer.explain(source).into(),
            Fault::Status { status, location: Some(location) } if (300..400).contains(&status) => {
                format!("the web server sends us elsewhere ({status}): use {location}")
            }
            Fault::Status { status: 404 | 410, .. } => return ClientError::NoSuchFile { file: file.clone() },
            Fault::Status { status, .. } => format!("the web server answers {status}"),
            Fault::Broken(reason) => reason,
            Fault::Changed => "the file changed while it was opened".into(),
        };
        ClientError::Http { file: file.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str) -> Result<u64, Fault> {
        let (head, _) = Head::parse(text.as_bytes()).map_err(Fault::Broken)?.expect("a whole head");
        head.check(&(10..20))
    }

    fn broken(text: &str) -> String {
        match check(text) {
            Err(Fault::Broken(reason)) => reason,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn only_the_exact_range_is_taken() {
        let head = |fields: &str| format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n");
        assert_eq!(check(&head("content-RANGE: bytes 10-19/40\r\nContent-Length: 10\r\n")).unwrap(), 40);
        for (fields, what) in [
            ("Content-Length: 10\r\n", "Content-Range"),
            ("Content-Range: bytes 10-19/*\r\nContent-Length: 10\r\n", "Content-Range"),
            ("Content-Range: bytes 10-18/40\r\nContent-Length: 9\r\n", "Content-Range"),
            ("Content-Range: bytes 10-19/15\r\nContent-Length: 10\r\n", "Content-Range"),
            ("Content-Range: bytes 10-19/+40\r\nContent-Length: 10\r\n", "Content-Range"),
            ("Content-Range: bytes 10-19/40\r\n", "Content-Length"),
            ("Content-Range: bytes 10-19/40\r\nContent-Length: 11\r\n", "Content-Length"),
            ("Content-Range: bytes 10-19/40\r\nContent-Length: 10\r\nContent-Length: 11\r\n", "Content-Length"),
            ("Content-Range: bytes 10-19/40\r\nContent-Length: ten\r\n", "Content-Length"),
            ("Content-Range: bytes 10-19/40\r\nTransfer-Encoding: chunked\r\n", "encoded"),
            ("Content-Range: bytes 10-19/40\r\nContent-Length: 10\r\nContent-Encoding: gzip\r\n", "encoded"),
        ] {
            let reason = broken(&head(fields));
            assert!(reason.contains(what), "{fields:?}: {reason}");
        }
        assert!(broken("HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n").contains("ignores Range"));
        let other = broken("SSH-2.0-OpenSSH_9.2\r\n\r\n");
        assert!(other.contains("no HTTP") && other.contains("use runnel://"), "{other}");
        let moved = check("HTTP/1.1 301 Moved\r\nLocation: http://x/\r\n\r\n");
        assert!(matches!(moved, Err(Fault::Status { status: 301, location: Some(to) }) if to == "http://x/"));
    }

    #[test]
    fn connections_are_kept_as_their_version_says() {
        for (text, keeps) in [
            ("HTTP/1.1 206 X\r\n\r\n", true),
            ("HTTP/1.0 206 X\r\n\r\n", false),
            ("HTTP/1.1 206 X\r\nConnection: Close\r\n\r\n", false),
            ("HTTP/1.0 206 X\r\nConnection: Keep-Alive\r\n\r\n", true),
        ] {
            assert_eq!(Head::parse(text.as_bytes()).unwrap().unwrap().0.keeps, keeps, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn prop_no_head_panics(text in "(HTTP/1.[01] [0-9]{3} )?[ -~\r\n]{0,200}") {
            if let Ok(Some((head, length))) = Head::parse(text.as_bytes()) {
                prop_assert!(length <= text.len());
                let _ = head.check(&(0..1));
            }
        }
    }
}
