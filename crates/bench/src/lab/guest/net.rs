//! The network of the guest: the device in the root name space, the server in the name space `srv`,
//! one shaped link.
//!
//! The link is a veth pair with `netem` on both ends, which counts bytes with the headers of every
//! packet, but lets a buffer of several packets pass as one. On a fast link a buffer holds a few of
//! them, so that segmentation costs what it costs with a network card that does it; on a slow one
//! it holds one packet, so that netem delays, drops and paces real packets
//! ([`Link::merged_packets`]). This is the same for every system. [`up`] is called once by the
//! driver, [`shape`] for each row; [`server_command`] starts programs on the server's side.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Context;

use super::super::link::Link;
use super::exec::enter_network;
use super::kernel::clock_seconds;
use crate::process::{tool, try_tool};

/// Address of the device.
pub const DEVICE_ADDRESS: &str = "10.0.0.2";

/// Address of the server.
pub const SERVER_ADDRESS: &str = "10.0.0.1";

/// The device's end of the link.
pub const DEVICE_INTERFACE: &str = "dev0";

/// The server's end of the link.
const SERVER_INTERFACE: &str = "srv0";

/// Name space of the server.
pub const SERVER_SPACE: &str = "srv";

/// Control group of the server's processes, below the root of the hierarchy.
pub const SERVER_GROUP: &str = "server";

/// The kernel remembers the window of connections to the same host; without this a run would depend
/// on the one before.
const FORGET: &str = "net.ipv4.tcp_no_metrics_save=1";

/// Content of a full packet: an MTU of 1500 without the headers of IP and of TCP with a time stamp.
const PACKET_CONTENT_BYTES: u32 = 1448;

/// What a full packet has besides, with the header of Ethernet.
const PACKET_HEAD_BYTES: u32 = 66;

/// Question of the bare echo: about what a request for a page takes.
const ECHO_QUESTION_BYTES: usize = 64;

/// Answer of the bare echo: a page and a small head.
const ECHO_ANSWER_BYTES: usize = 4096 + 32;

/// How long an echo may take: the slowest link with many losses.
const ECHO_DEADLINE: Duration = Duration::from_secs(120);

/// A command that runs `program` on the server: in its network name space and control group. Add
/// arguments as usual; `PATH` is searched.
pub fn server_command(program: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["lab-exec", "--space", SERVER_SPACE, "--group", SERVER_GROUP, "--", program]);
    command
}

/// Makes the name space and the link.
pub fn up() -> anyhow::Result<()> {
    let ip = |text: &str| tool(Command::new("ip").args(text.split(' ')));
    tool(Command::new("modprobe").args(["-a", "veth", "sch_netem"]))?;
    ip(&format!("netns add {SERVER_SPACE}"))?;
    ip(&format!("link add {DEVICE_INTERFACE} type veth peer name {SERVER_INTERFACE} netns {SERVER_SPACE}"))?;
    ip("link set lo up")?;
    for (interface, address, server) in
        [(DEVICE_INTERFACE, DEVICE_ADDRESS, false), (SERVER_INTERFACE, SERVER_ADDRESS, true)]
    {
        // No address of version 6: its neighbour search would be in every count of packets.
        run_at(server, &format!("sysctl -qw net.ipv6.conf.{interface}.disable_ipv6=1 {FORGET}"))?;
        run_at(server, &format!("ip addr add {address}/24 dev {interface}"))?;
        run_at(server, &format!("ip link set {interface} up"))?;
    }
    run_at(true, "ip link set lo up")?;
    Ok(())
}

/// The words of `text` as a command on one of the two sides.
fn command_at(server: bool, text: &str) -> Command {
    let mut words = text.split(' ');
    let program = words.next().unwrap_or_default();
    let mut command = if server { server_command(program) } else { Command::new(program) };
    command.args(words);
    command
}

fn run_at(server: bool, text: &str) -> anyhow::Result<Vec<u8>> {
    tool(&mut command_at(server, text))
}

/// Gives both directions the properties of `link`; an open link if there is none.
pub fn shape(link: Option<&Link>) -> anyhow::Result<()> {
    for (interface, server) in [(DEVICE_INTERFACE, false), (SERVER_INTERFACE, true)] {
        // There may be none yet.
        try_tool(&mut command_at(server, &format!("tc qdisc del dev {interface} root")));
        let packets = link.map_or(1, Link::merged_packets);
        merge_packets(interface, server, packets).with_context(|| format!("cannot set the offloads of {interface}"))?;
        if let Some(link) = link {
            run_at(server, &format!("tc qdisc add dev {interface} root {}", netem(link)))
                .with_context(|| format!("cannot shape {interface} as {}", link.name))?;
        }
    }
    Ok(())
}

/// Takes the link down, at the device's end, or up again.
pub fn set_link(is_up: bool) -> anyhow::Result<()> {
    let state = if is_up { "up" } else { "down" };
    run_at(false, &format!("ip link set {DEVICE_INTERFACE} {state}")).map(drop)
}

/// Lets a buffer hold so many packets, on the way out and on the way in.
fn merge_packets(interface: &str, server: bool, packets: u32) -> anyhow::Result<()> {
    let bytes = packets * PACKET_CONTENT_BYTES + PACKET_HEAD_BYTES;
    run_at(server, &format!("ip link set {interface} gso_max_segs {packets} gso_max_size {bytes}"))?;
    let switch = if packets > 1 { "on" } else { "off" };
    run_at(server, &format!("ethtool -K {interface} tso {switch} gso {switch} gro {switch}")).map(drop)
}

/// What `tc qdisc` is told about a link.
fn netem(link: &Link) -> String {
    let Link { rate_bits, delay_micros, queue_packets, loss_percent, .. } = link;
    let loss = if *loss_percent > 0.0 { format!(" loss {loss_percent}%") } else { String::new() };
    format!("netem limit {queue_packets} delay {delay_micros}us rate {rate_bits}bit{loss}")
}

/// Seconds of `count` bare exchanges over the link, a small question and a page as answer: what the
/// medium alone takes.
pub fn echo_seconds(count: usize) -> anyhow::Result<Vec<f64>> {
    let server = thread::spawn(|| -> anyhow::Result<TcpListener> {
        enter_network(SERVER_SPACE)?;
        TcpListener::bind((SERVER_ADDRESS, 0)).context("cannot listen for the echo")
    });
    let listener = server.join().map_err(|_| anyhow::anyhow!("the thread of the echo panicked"))??;
    let address = listener.local_addr().context("cannot tell the address of the echo")?;
    let answering = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ECHO_DEADLINE))?;
        let (mut question, answer) = ([0u8; ECHO_QUESTION_BYTES], [1u8; ECHO_ANSWER_BYTES]);
        for _ in 0..count {
            stream.read_exact(&mut question)?;
            stream.write_all(&answer)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect_timeout(&address, ECHO_DEADLINE).context("cannot connect to the echo")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ECHO_DEADLINE))?;
    let (question, mut answer) = ([0u8; ECHO_QUESTION_BYTES], [0u8; ECHO_ANSWER_BYTES]);
    let mut seconds = Vec::with_capacity(count);
    for _ in 0..count {
        let start = clock_seconds();
        stream.write_all(&question).and_then(|()| stream.read_exact(&mut answer)).context("the echo broke")?;
        seconds.push(clock_seconds() - start);
    }
    answering.join().map_err(|_| anyhow::anyhow!("the thread of the echo panicked"))?.context("the echo broke")?;
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netem_is_told_rate_delay_queue_and_loss() -> anyhow::Result<()> {
        for (name, expected) in [
            ("lan", "netem limit 2000 delay 100us rate 1000000000bit"),
            ("wifi+1%", "netem limit 200 delay 1500us rate 50000000bit loss 1%"),
            ("wifi+0.001%", "netem limit 200 delay 1500us rate 50000000bit loss 0.001%"),
        ] {
            assert_eq!(netem(&Link::named(name)?), expected);
        }
        Ok(())
    }

    #[test]
    fn the_server_is_started_through_the_helper() {
        let command = server_command("true");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(words.join(" "), "lab-exec --space srv --group server -- true");
    }
}
