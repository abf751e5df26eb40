//! Connections that send hints. Each has a thread, so that `status` is answered meanwhile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Controlled;
use crate::hint::{Answer, HintedFile, LINE_BYTES_MAX, REQUEST};

/// Connections of this kind at a time: launchers that run together.
const CONNECTIONS_MAX: usize = 8;

/// Silence after which a connection is closed; its sender makes another one.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Serves connections whose first line is a hint. Each has a thread, until it is silent for
/// [`IDLE_MAX`] or `stop` is readable.
pub(crate) struct Connections {
    open: Arc<AtomicUsize>,
    stop: OwnedFd,
}

impl Connections {
    pub fn new(stop: OwnedFd) -> Connections {
        Connections { open: Arc::default(), stop }
    }

    /// Takes over a connection of which `first` was read.
    pub fn take(&self, mount: &Arc<dyn Controlled>, reader: BufReader<UnixStream>, first: Vec<u8>) -> io::Result<()> {
        if self.open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            self.open.fetch_sub(1, Ordering::AcqRel);
            return answer(reader.get_ref(), &Answer::Error("too many connections for hints".into()));
        }
        let (mount, open, stop) = (mount.clone(), self.open.clone(), self.stop.try_clone());
        let started = thread::Builder::new().name("runnel-hints".into()).spawn(move || {
            // A client that went away concerns nobody.
            let _ = stop.and_then(|stop| serve(mount.as_ref(), reader, first, &stop));
            open.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        started.map(drop)
    }
}

fn serve(mount: &dyn Controlled, mut reader: BufReader<UnixStream>, first: Vec<u8>, stop: &OwnedFd) -> io::Result<()> {
    let mut line = first;
    loop {
        let rest = LINE_BYTES_MAX.saturating_sub(line.len() as u64);
        if !line.ends_with(b"\n") {
            reader.by_ref().take(rest).read_until(b'\n', &mut line)?;
        }
        if !line.ends_with(b"\n") {
            let long = line.len() as u64 >= LINE_BYTES_MAX;
            let problem = format!("a request is longer than {LINE_BYTES_MAX} bytes");
            return if long { answer(reader.get_ref(), &Answer::Error(problem)) } else { Ok(()) };
        }
        answer(reader.get_ref(), &obey(mount, &line))?;
        line.clear();
        if reader.buffer().is_empty() && !wait(reader.get_ref(), stop)? {
            return Ok(());
        }
    }
}

fn obey(mount: &dyn Controlled, line: &[u8]) -> Answer {
    let Some(text) = line.strip_prefix(REQUEST.as_bytes()) else {
        return Answer::Error("unknown request: after a hint come hints".into());
    };
    let hinted = serde_json::from_slice::<Vec<HintedFile>>(text).map_err(|error| format!("not a hint: {error}"));
    match hinted.and_then(|files| mount.hint(&files)) {
        Ok(count) => Answer::Hinted(count),
        Err(problem) => Answer::Error(problem),
    }
}

fn answer(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut text = serde_json::to_vec(answer)?;
    text.push(b'\n');
    stream.write_all(&text)
}

/// Waits for more. False if the mount ends or nothing comes for long.
fn wait(stream: &UnixStream, stop: &OwnedFd) -> io::Result<bool> {
    let time = Timespec { tv_sec: IDLE_MAX.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&time)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(fds[0].revents().is_empty() && !fds[1].revents().is_empty()),
        }
    }
}
