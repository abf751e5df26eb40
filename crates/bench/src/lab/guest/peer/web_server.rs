//! The web server of the lab on the server's side of the link: `runnel-bench lab-http`, see
//! [`super::http`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::net::{SERVER_ADDRESS, server_command};
use super::client::Server;
use crate::process::{Service, ready_text};

/// Port of the server.
pub const PORT: u16 = 8080;

/// How long the server may take to start.
const READY_DEADLINE: Duration = Duration::from_secs(20);

/// A running web server.
#[derive(Debug)]
pub struct WebServer {
    count: PathBuf,
    #[allow(dead_code, reason = "held for its drop")]
    service: Service,
}

impl WebServer {
    /// Serves `published`; its log and the file of counted requests go to `folder`.
    pub fn start(published: &Path, folder: &Path) -> anyhow::Result<WebServer> {
        let count = folder.join("requests");
        let mut command = server_command("/proc/self/exe");
        command.arg("lab-http").arg(published);
        command.args(["--listen", &format!("{SERVER_ADDRESS}:{PORT}"), "--count"]).arg(&count);
        let mut service = Service::start("web-server", &mut command, folder)?;
        service.wait_ready(READY_DEADLINE, || ready_text(&count))?;
        Ok(WebServer { count, service })
    }
}

impl Server for WebServer {
    fn requests(&self) -> Option<f64> {
        ready_text(&self.count)?.parse().ok()
    }
}

/// Address of what the server publishes at `path`.
pub fn address(path: &str) -> String {
    format!("http://{SERVER_ADDRESS}:{PORT}/{path}")
}
