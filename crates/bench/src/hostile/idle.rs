//! Memory of connections that say hello and nothing else, and what is left of it when they have
//! gone.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use report::results::Results;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use wire::ClientConfig;

use super::connection::Connection;
use crate::process::{Service, ready_text, tool};
use crate::stream::{fresh_folder, say};

/// Connections at once, and the addresses that they come from.
const CONNECTIONS: usize = 5000;
const ADDRESSES: usize = 100;

/// Storms of connections, one after the other: the first one also shows what a server takes once
/// and keeps.
const STORMS: usize = 3;

/// Bars: bytes of a connection, and how much larger the server may be afterwards.
const BYTES_MAX: f64 = 24.0 * 1024.0;
const LEFT_MAX: f64 = 1.1;

/// How long anything may take here.
const DEADLINE: Duration = Duration::from_secs(60);

/// Upkeep gives memory back once a second.
const SETTLING: Duration = Duration::from_secs(5);

const PEER: &str = "runnel";

/// Measures; rows are added to `results`.
///
/// # Errors
/// The server or a connection failed, or too few descriptors may be open.
pub(super) fn measure(runnel: &Path, folder: &Path, results: &mut Results) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let folder = fresh_folder(folder)?;
    let (store, ready) = (folder.join("store"), folder.join("serve.ready"));
    std::fs::create_dir_all(&store)?;
    let mut command = Command::new(runnel);
    command.arg("serve").arg(&store).args(["--listen", "127.0.0.1:0", "--connections"]);
    command.arg((CONNECTIONS + 100).to_string()).arg("--ready-file").arg(&ready);
    let mut server = Service::start("serve", &mut command, &folder)?;
    let address = server.wait_ready(DEADLINE, || ready_text(&ready))?;
    settle(&mut server)?;
    for storm in 1..=STORMS {
        let mode = format!("storm-{storm}");
        let before = resident(server.pid())?;
        let open = (0..CONNECTIONS).map(|number| connect(&address, number)).collect::<anyhow::Result<Vec<_>>>()?;
        let during = resident(server.pid())?;
        ensure!(connections(runnel, &address)? > CONNECTIONS as u64, "the server closed some of the connections");
        drop(open);
        let end = Instant::now() + DEADLINE;
        while connections(runnel, &address)? > 1 {
            ensure!(Instant::now() < end, "the server keeps connections that have left");
        }
        settle(&mut server)?;
        let after = resident(server.pid())?;
        let each = (during - before) / CONNECTIONS as f64;
        results.add(PEER, &mode, ("connection", "B"), each);
        for (metric, bytes) in [("resident-before", before), ("resident-during", during), ("resident-after", after)] {
            results.add(PEER, &mode, (metric, "B"), bytes);
        }
        results.add(PEER, &mode, ("after-to-before", "x"), after / before);
        let bar = |kept: bool| if kept { "held" } else { "missed" };
        say(&format!(
            "  {mode}: {each:.0} bytes a connection ({}); {:.0} KiB before, {:.0} KiB after ({})",
            bar(each <= BYTES_MAX),
            before / 1024.0,
            after / 1024.0,
            bar(after <= before * LEFT_MAX),
        ));
    }
    server.stop()
}

/// Lets upkeep do its work.
fn settle(server: &mut Service) -> anyhow::Result<()> {
    let end = Instant::now() + SETTLING;
    server.wait_ready(2 * SETTLING, || (Instant::now() >= end).then_some(()))
}

/// A connection that said hello and was answered.
fn connect(server: &str, number: usize) -> anyhow::Result<Connection> {
    let server: SocketAddr = server.parse().context("the server's address")?;
    let source = Ipv4Addr::new(127, 2, 0, 1 + (number % ADDRESSES) as u8);
    let deadline = Instant::now() + DEADLINE;
    let mut connection = Connection::open(source, server, ClientConfig::default(), None, deadline)?;
    while connection.wire.hello().is_none() {
        ensure!(Instant::now() < deadline, "connection {number} was not answered");
        connection.turn(deadline, super::connection::Reading::Events)?;
    }
    Ok(connection)
}

/// Connections that the server has, that which asks among them.
fn connections(runnel: &Path, address: &str) -> anyhow::Result<u64> {
    let output = tool(Command::new(runnel).args(["status", "--json", &format!("runnel://{address}")]))?;
    let status: Value = serde_json::from_slice(&output).context("runnel status --json printed no JSON")?;
    status["connections"].as_u64().context("the status has no connections")
}

/// Memory of a process that is not a file's, in bytes.
fn resident(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("the kernel tells no RssAnon")?;
    Ok(kib.trim().parse::<f64>()? * 1024.0)
}
