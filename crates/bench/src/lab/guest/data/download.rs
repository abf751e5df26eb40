//! The whole file over plain TCP before anything else: one HTTP request in the clear, answered by
//! the web server of the lab, written to a file system in memory.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::super::net::SERVER_ADDRESS;
use super::super::peer::web_server::{PORT, WebServer};
use super::super::system::WORK;
use super::system::{DataSystem, published};
use crate::lab::data::case::{Case, PROGRAM_FILE, SCENES_FILE, Work};

/// Longest head of an answer.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// The system.
pub struct Download {
    case: &'static Case,
    server: Option<WebServer>,
}

/// Where downloads go.
pub fn folder() -> PathBuf {
    Path::new(WORK).join("download")
}

/// Empties the folder of downloads.
pub fn clear() -> anyhow::Result<()> {
    let folder = folder();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Starts a server for what the case publishes.
pub fn serve(case: &Case) -> anyhow::Result<WebServer> {
    let logs = Path::new(WORK).join("download-server");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    WebServer::start(&published(case), &logs)
}

/// Downloads the file `name`.
pub fn fetch(name: &str) -> anyhow::Result<()> {
    let path = folder().join(name);
    let fetched = || -> anyhow::Result<()> {
        let mut stream = TcpStream::connect((SERVER_ADDRESS, PORT)).context("cannot connect")?;
        let question = format!("GET /{name} HTTP/1.1\r\nHost: {SERVER_ADDRESS}\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).context("cannot ask")?;
        let mut stream = BufReader::new(stream);
        let size = body_bytes(&mut stream)?;
        let mut file = File::create(&path)?;
        let copied = io::copy(&mut stream.take(size), &mut file).context("the connection broke")?;
        ensure!(copied == size, "{copied} of {size} bytes came");
        Ok(())
    };
    fetched().with_context(|| format!("cannot download {name}"))
}

/// Reads the head of an answer; returns the size of what follows.
fn body_bytes(stream: &mut impl BufRead) -> anyhow::Result<u64> {
    let mut head = stream.take(HEAD_BYTES_MAX);
    let mut line = String::new();
    head.read_line(&mut line).context("no answer")?;
    ensure!(line.split(' ').nth(1) == Some("200"), "the server answered '{}'", line.trim_end());
    let mut size = None;
    loop {
        line.clear();
        ensure!(head.read_line(&mut line)? > 0, "the answer ends in its head");
        if line.trim_end().is_empty() {
            return size.context("the answer does not tell its size");
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            size = Some(value.trim().parse().context("the size of the answer is no number")?);
        }
    }
}

/// What plays a game that was downloaded.
pub fn game() -> Command {
    let mut command = Command::new(folder().join(PROGRAM_FILE));
    command.arg(folder().join(SCENES_FILE));
    command
}

impl Download {
    /// Of the files of `case`.
    pub fn new(case: &'static Case) -> Download {
        Download { case, server: None }
    }
}

impl DataSystem for Download {
    fn serve(&mut self) -> anyhow::Result<()> {
        self.server = Some(serve(self.case)?);
        Ok(())
    }

    fn mount(&mut self) -> anyhow::Result<()> {
        clear()
    }

    fn fetch(&mut self) -> anyhow::Result<()> {
        if self.case.work != Work::Game {
            return fetch(self.case.file);
        }
        fetch(PROGRAM_FILE)?;
        fetch(SCENES_FILE)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder().join(PROGRAM_FILE), mode).context("cannot make the game executable")
    }

    fn folder(&self) -> String {
        folder().display().to_string()
    }

    fn game(&self) -> Command {
        game()
    }

    fn client_files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.server = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_found_in_the_head() -> anyhow::Result<()> {
        let text = "HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 12\r\n\r\nbody";
        assert_eq!(body_bytes(&mut text.as_bytes())?, 12);
        for bad in [
            "",
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n",
        ] {
            assert!(body_bytes(&mut bad.as_bytes()).is_err(), "{bad}");
        }
        Ok(())
    }
}
