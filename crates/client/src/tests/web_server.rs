//! A web server in this process that knows Range requests, and whatever mistake a test wants of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use super::HANG;

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Honest,
    /// The whole file, as if there were no Range.
    Whole,
    /// A Content-Range one byte further on.
    Shifted,
    /// One byte less than was asked for, and it says so.
    Shorter,
    /// Ends after so many bytes of the body.
    Cut(usize),
    /// Honest, but then closes the connection without a word.
    ThenClose,
    /// The right head, and every byte of the body wrong.
    Garbage,
    Status(u16),
    /// No answer until the server goes.
    Silence,
}

type Policy = Box<dyn FnMut(&Range<usize>) -> Act + Send>;

struct State {
    bytes: Vec<u8>,
    /// Other files, by their paths.
    beside: BTreeMap<String, Vec<u8>>,
    etag: String,
    policy: Policy,
    requests: Vec<Range<usize>>,
    connections: Vec<TcpStream>,
    closed: bool,
}

pub(crate) struct WebServer {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl WebServer {
    pub fn start(bytes: &[u8]) -> WebServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            bytes: bytes.to_vec(),
            beside: BTreeMap::new(),
            etag: "\"one\"".into(),
            policy: Box::new(|_| Act::Honest),
            requests: Vec::new(),
            connections: Vec::new(),
            closed: false,
        };
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut state = shared.0.lock().unwrap();
                if state.closed {
                    return;
                }
                state.connections.push(stream.try_clone().unwrap());
                let shared = Arc::clone(&shared);
                // A connection that ends is the client's business, or the test's.
                std::thread::spawn(move || drop(serve(&shared, stream)));
            }
        });
        WebServer { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}/images/app.rnl?v=1", self.address)
    }

    pub fn policy(&self, policy: impl FnMut(&Range<usize>) -> Act + Send + 'static) {
        self.state.0.lock().unwrap().policy = Box::new(policy);
    }

    pub fn replace(&self, bytes: &[u8], etag: &str) {
        let mut state = self.state.0.lock().unwrap();
        state.bytes = bytes.to_vec();
        state.etag = etag.into();
    }

    /// Puts other files beside the image.
    pub fn put_beside(&self, files: BTreeMap<String, Vec<u8>>) {
        self.state.0.lock().unwrap().beside = files;
    }

    /// The ranges that were asked for so far.
    pub fn requests(&self) -> Vec<Range<usize>> {
        self.state.0.lock().unwrap().requests.clone()
    }

    /// Waits until so many requests came.
    pub fn wait_for(&self, requests: usize) {
        let (state, changed) = &*self.state;
        let waiting = changed.wait_timeout_while(state.lock().unwrap(), HANG, |state| state.requests.len() < requests);
        assert!(!waiting.unwrap().1.timed_out(), "fewer than {requests} requests came");
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let mut state = self.state.0.lock().unwrap();
        state.closed = true;
        for stream in &state.connections {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        drop(state);
        self.state.1.notify_all();
        // So that the thread that accepts sees it.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(shared: &(Mutex<State>, Condvar), stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut stream = stream;
    loop {
        let mut range = None;
        let first = lines.next().ok_or(std::io::ErrorKind::UnexpectedEof)??;
        let path = first.strip_prefix("GET ").and_then(|rest| rest.strip_suffix(" HTTP/1.1"));
        let path = path.expect("a request").to_owned();
        for line in &mut lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            if let Some((start, end)) = line.strip_prefix("Range: bytes=").and_then(|text| text.split_once('-')) {
                range = Some(start.parse::<usize>().unwrap()..end.parse::<usize>().unwrap() + 1);
            }
        }
        let range = range.expect("every request has a Range");
        let (answer, goes_on) = {
            let mut state = shared.0.lock().unwrap();
            if path != "/images/app.rnl?v=1" {
                let (answer, goes_on) = small_file(state.beside.get(&path), range);
                drop(state);
                stream.write_all(&answer)?;
                if goes_on {
                    continue;
                }
                return stream.shutdown(std::net::Shutdown::Both);
            }
            state.requests.push(range.clone());
            let act = (state.policy)(&range);
            shared.1.notify_all();
            if act == Act::Silence {
                drop(shared.1.wait_while(state, |state| !state.closed));
                return Ok(());
            }
            answer(&state, range, act)
        };
        stream.write_all(&answer)?;
        if !goes_on {
            return stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn small_file(file: Option<&Vec<u8>>, range: Range<usize>) -> (Vec<u8>, bool) {
    let Some(file) = file else { return (b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n".to_vec(), false) };
    let body = &file[range.clone()];
    let ranges = format!("Content-Range: bytes {}-{}/{}\r\n", range.start, range.end - 1, file.len());
    let head = format!("HTTP/1.1 206 X\r\n{ranges}Content-Length: {}\r\n\r\n", body.len());
    ([head.as_bytes(), body].concat(), true)
}

fn answer(state: &State, range: Range<usize>, act: Act) -> (Vec<u8>, bool) {
    let total = state.bytes.len();
    let (status, shown) = match act {
        Act::Whole => (200, 0..total),
        Act::Status(status) => (status, 0..0),
        Act::Shifted => (206, range.start + 1..range.end + 1),
        Act::Shorter => (206, range.start..range.end - 1),
        _ if range.end > total => (416, 0..0),
        _ => (206, range.clone()),
    };
    let mut head = format!("HTTP/1.1 {status} X\r\nETag: {}\r\nContent-Length: {}\r\n", state.etag, shown.len());
    if status == 206 {
        head += &format!("Content-Range: bytes {}-{}/{total}\r\n", shown.start, shown.end - 1);
    }
    if (300..400).contains(&status) {
        head += "Location: https://elsewhere.example/app.rnl\r\n";
    }
    let mut answer = (head + "\r\n").into_bytes();
    let mut body = state.bytes.get(shown).unwrap_or_default().to_vec();
    match act {
        Act::Cut(bytes) => body.truncate(bytes),
        Act::Garbage => body.iter_mut().for_each(|byte| *byte ^= 0x55),
        _ => {}
    }
    answer.extend(body);
    (answer, !matches!(act, Act::Cut(_) | Act::ThenClose))
}
