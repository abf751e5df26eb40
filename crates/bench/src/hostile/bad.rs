//! The process of the bad peer: one address, many connections, one kind of misbehaviour.
//!
//! A kind is a name, a sentence and a function that misbehaves over one connection until that is
//! over. Each connection has a thread; after a pause it makes another one. The whole process runs
//! at the lowest priority (nice 19), and its threads send and receive one at a time: an attacker on
//! the network has a processor of its own, and what this one takes from the good devices on the
//! same machine is not the server's doing. Hundreds of threads would take most of it, whatever
//! their priority. What an attack got done is counted, so that one that never came about does not
//! look like one that did no harm.

mod floods;
mod readers;
mod touches;
mod uploads;
mod volumes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use units::SplitMix64;
use wire::ClientConfig;

use super::connection::Connection;
use super::content::Content;
use super::timings::hand_over;

/// The address of the bad peer.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// The lowest priority.
const NICE: i32 = 19;

/// How often the counts are written.
const COUNT_PERIOD: Duration = Duration::from_millis(200);

/// One thread at a time sends and receives.
static GATE: Mutex<()> = Mutex::new(());

/// Time to connect.
const CONNECT_TIME: Duration = Duration::from_secs(2);

/// How long a function looks at its connection before it sees whether the attack is over.
const TURN: Duration = Duration::from_millis(100);

/// A little more than the connections that a server takes from one address by default.
const ALL_CONNECTIONS: usize = 260;

/// A kind of misbehaviour.
pub(super) struct Kind {
    /// Its name on the command line and in rows.
    pub name: &'static str,
    /// What it does.
    pub does: &'static str,
    /// Connections at once.
    connections: usize,
    /// Pause between two connections of a thread: bounds the rate of reconnecting.
    pause: Duration,
    misbehave: fn(&mut Attack) -> io::Result<()>,
}

/// All kinds.
pub(super) const KINDS: [Kind; 10] = [
    Kind {
        name: "never-reads",
        does: "40 connections ask for a thousand blocks each and never read",
        connections: 40,
        pause: Duration::from_millis(50),
        misbehave: readers::never_read,
    },
    Kind {
        name: "slow-readers",
        does: "40 connections ask for a thousand blocks each and read 1 KiB a second",
        connections: 40,
        pause: Duration::from_millis(50),
        misbehave: readers::read_slowly,
    },
    Kind {
        name: "pings",
        does: "as many connections as the server admits send pings without a pause",
        connections: ALL_CONNECTIONS,
        pause: Duration::from_millis(100),
        misbehave: floods::ping,
    },
    Kind {
        name: "connects",
        does: "8 threads connect and leave, up to 1000 times a second each",
        connections: 8,
        pause: Duration::from_millis(1),
        misbehave: floods::connect_and_leave,
    },
    Kind {
        name: "half-hellos",
        does: "as many connections as the server admits send half of a hello",
        connections: ALL_CONNECTIONS,
        pause: Duration::from_millis(100),
        misbehave: floods::say_half_a_hello,
    },
    Kind {
        name: "idle-uploads",
        does: "40 connections announce as many uploads as they may, and send nothing of them",
        connections: 40,
        pause: Duration::from_millis(50),
        misbehave: uploads::announce_only,
    },
    Kind {
        name: "slow-uploads",
        does: "40 connections announce as many uploads as they may, and send a byte a second of each",
        connections: 40,
        pause: Duration::from_millis(50),
        misbehave: uploads::send_slowly,
    },
    Kind {
        name: "leases",
        does: "20 connections take leases on invented files and prove invented device numbers",
        connections: 20,
        pause: Duration::from_millis(50),
        misbehave: volumes::take_leases,
    },
    Kind {
        name: "stops-and-touches",
        does: "20 connections teach an action, then touch its first pages and stop the push, in a loop",
        connections: 20,
        pause: Duration::from_millis(50),
        misbehave: touches::stop_and_touch,
    },
    Kind {
        name: "garbage",
        does: "20 connections send random frames behind a hello",
        connections: 20,
        pause: Duration::from_millis(20),
        misbehave: floods::send_garbage,
    },
];

/// Be the bad peer of `hostile`
#[derive(Clone, Debug, clap::Args)]
pub struct Orders {
    /// What it does
    pub kind: String,
    /// Address of the server
    pub server: SocketAddr,
    /// The image that it serves
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,
    /// End after this time, if nobody ended it before
    #[arg(long, value_name = "SECONDS")]
    pub seconds: f64,
    /// Write counts to this file, which is there once the attack has begun
    #[arg(long, value_name = "FILE")]
    pub result: PathBuf,
}

/// What an attack got done.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// Connections that were made.
    pub connected: u64,
    /// Attempts to connect that failed.
    pub not_connected: u64,
    /// Connections that the server ended.
    pub thrown_out: u64,
    /// What the kind is about: requests, pings, uploads, pushes that were stopped.
    pub acts: u64,
    /// Answers that refused something.
    pub refused: u64,
    /// Connections over which the server said nothing for ten seconds though it owed an answer.
    pub silent: u64,
}

#[derive(Default)]
struct Tally {
    connected: AtomicU64,
    not_connected: AtomicU64,
    thrown_out: AtomicU64,
    acts: AtomicU64,
    refused: AtomicU64,
    silent: AtomicU64,
}

impl Tally {
    fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            connected: get(&self.connected),
            not_connected: get(&self.not_connected),
            thrown_out: get(&self.thrown_out),
            acts: get(&self.acts),
            refused: get(&self.refused),
            silent: get(&self.silent),
        }
    }
}

/// What a function has for one connection.
struct Attack<'a> {
    server: SocketAddr,
    content: &'a Content,
    rng: SplitMix64,
    over: &'a AtomicBool,
    tally: &'a Tally,
}

impl Attack<'_> {
    /// A connection with a hello; `receive_bytes` for a small buffer in the kernel.
    fn connect(&mut self, config: ClientConfig, receive_bytes: Option<usize>) -> io::Result<Connection> {
        let deadline = Instant::now() + CONNECT_TIME;
        match Connection::open(ADDRESS, self.server, config, receive_bytes, deadline) {
            Ok(connection) => {
                self.tally.connected.fetch_add(1, Ordering::Relaxed);
                Ok(connection.through(&GATE))
            }
            Err(error) => {
                self.tally.not_connected.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Whether the whole attack is over.
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Something was done that the kind is about.
    fn acted(&self, count: u64) {
        self.tally.acts.fetch_add(count, Ordering::Relaxed);
    }

    /// The server refused something.
    fn refused(&self) {
        self.tally.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// The kind of this name.
///
/// # Errors
/// There is none; the error lists those there are.
pub(super) fn kind(name: &str) -> anyhow::Result<&'static Kind> {
    let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.with_context(|| format!("no kind '{name}'; there are: {}", names.join(", ")))
}

/// Attacks until the time is over.
///
/// # Errors
/// An unknown kind, files that cannot be read or written.
pub fn attack(orders: &Orders) -> anyhow::Result<()> {
    let kind = kind(&orders.kind)?;
    rustix::process::setpriority_process(None, NICE).context("cannot lower the priority")?;
    let content = Content::read(&orders.image)?;
    let (over, tally) = (AtomicBool::new(false), Tally::default());
    let end = Instant::now() + Duration::from_secs_f64(orders.seconds);
    std::thread::scope(|scope| {
        // Threads that were started end whatever happens.
        let outcome = (0..kind.connections)
            .try_for_each(|number| {
                let rng = SplitMix64(number as u64);
                let attack = Attack { server: orders.server, content: &content, rng, over: &over, tally: &tally };
                let builder = std::thread::Builder::new().stack_size(256 << 10);
                builder.spawn_scoped(scope, || repeat(kind, attack)).map(drop).context("cannot start a thread")
            })
            .and_then(|()| {
                while Instant::now() < end {
                    hand_over(&orders.result, &tally.counts())?;
                    std::thread::sleep(COUNT_PERIOD);
                }
                Ok(())
            });
        over.store(true, Ordering::Relaxed);
        outcome
    })
}

/// Misbehaves over one connection after the other.
fn repeat(kind: &Kind, mut attack: Attack) {
    while !attack.is_over() {
        if let Err(error) = (kind.misbehave)(&mut attack) {
            let is_silent = error.to_string().contains("the server sent nothing");
            let count = if is_silent { &attack.tally.silent } else { &attack.tally.thrown_out };
            count.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::sleep(kind.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_by_name_and_listed_otherwise() {
        assert!(KINDS.iter().all(|one| kind(one.name).is_ok_and(|found| found.does == one.does)));
        let error = kind("polite").err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("never-reads, slow-readers, pings"), "{error}");
    }
}
