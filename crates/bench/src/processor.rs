//! `runnel-bench processor`: what a start costs the server's processor, beside nginx.
//!
//! One server and a program that varies: python imports another nine tenths of forty-odd modules at
//! each start. Each of the starts is cold, from a fresh mount over loopback. The server's processor
//! time comes from the scheduler, in nanoseconds and for each thread, so that the making of bundles
//! shows by itself. Then nginx, on the same machine and in the same run, sends as many bytes to a
//! client that throws them away: as one file, which is the least that any server can do; in as many
//! answers as our server gave, which is what a client that asks over HTTP would make it do; and in
//! these answers spread over the time that the start took, as a program asks: a server that is
//! woken for each answer works with cold caches.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use report::results::Results;
use serde_json::Value;
use units::{Rng, SplitMix64};

use crate::history::append_history;
use crate::interrupt;
use crate::options::{beside, binary, revision};
use crate::process::{Service, find_program, ready_text, timed, tool};
use crate::product::Product;
use crate::site::{MountPoint, drop_caches};
use crate::stream::{fresh_folder, say};
use crate::workload::{Database, Tree, python};

/// Name of this bench in rows.
const BENCH: &str = "processor";

/// Name of the one case.
const CASE: &str = "python-varying";

/// Starts of one run. The last one is what the bar speaks of.
const STARTS: usize = 5;

/// Of so many modules each start leaves one out.
const LEFT_OUT: u64 = 10;

/// The bar: the last start's processor time over that of nginx for as many bytes in as many
/// answers.
const RATIO_MAX: f64 = 2.0;

/// Times that nginx sends the bytes of one start: its time for one is too short to measure.
const REPEATS: u32 = 30;

/// The same for answers that are spread over the time of a start.
const SPREAD_REPEATS: u32 = 5;

/// Pages of a push frame.
const PIECE_PAGES: f64 = 32.0;

/// How long a service may take to be ready, a program to end, or the server to make its bundles.
const DEADLINE: Duration = Duration::from_secs(120);

/// A run that nothing touches any more is over after three seconds; then the server learns and
/// looks for bundles that pay.
const LEARNING: Duration = Duration::from_secs(5);

/// What starts cost the server's processor, beside nginx
///
/// A program that varies is started five times, cold, from one server, over loopback; then nginx
/// sends as many bytes. Needs root, FUSE, and the Debian packages nginx-light and python3. About
/// two minutes.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Runs of five starts, each with a server that knows nothing
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Keep the tree and the image in this folder for the next bench
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// One JSON line per row instead of a table
    #[arg(long)]
    pub json: bool,
    /// Measure this runnel instead of the one beside this program
    #[arg(long = "binary", value_name = "FILE", default_value_os_t = beside(), hide_default_value = true)]
    pub runnel: PathBuf,
    /// Add the rows to this file
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// Runs the bench. Rows or a table go to `out`.
///
/// # Errors
/// nginx or a Debian package of the workload is missing, or a program failed.
pub fn run(options: &Options, out: &mut dyn Write) -> anyhow::Result<()> {
    ensure!(options.runs > 0, "--runs 0: at least 1");
    let nginx = find_program("nginx").context("nginx is missing: install the Debian package nginx-light")?;
    let runnel = binary(&options.runnel)?;
    interrupt::listen()?;
    let temporary = tempfile::Builder::new().prefix("runnel-bench-").tempdir().context("cannot make a folder")?;
    let work = options.work.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    std::fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let work = std::fs::canonicalize(&work)?;
    let database = Database::read()?;
    if let Some(package) = Tree::Python.missing(&database) {
        anyhow::bail!("the Debian package {package} is not installed");
    }
    let (root, _) = Tree::Python.build(&database, &work)?;
    let image = work.join(format!("{}.rnl", Tree::Python.name()));
    Product { runnel: runnel.clone() }.pack(&root, &image)?;
    let modules = python::modules(Path::new("/"))?;
    let version = String::from_utf8(Command::new(&nginx).arg("-v").output()?.stderr)?;
    let commit = revision();
    say(&format!("{} runs of {STARTS} starts, source revision {commit}, {}", options.runs, version.trim()));
    let mut results = Results::new(BENCH, CASE, "loopback");
    for number in 1..=options.runs {
        say(&format!("run {number}"));
        let place = Place { runnel: &runnel, image: &image, folder: fresh_folder(&work.join("run"))? };
        let last = place.starts(&modules, number as u64, &mut results)?;
        let [file, answers, spread] = nginx_seconds(&nginx, &fresh_folder(&work.join("nginx"))?, &last)?;
        results.add("nginx", "one-file", PROCESSOR, file);
        results.add("nginx", "same-answers", PROCESSOR, answers);
        results.add("nginx", "same-answers-spread", PROCESSOR, spread);
        results.add("runnel", "last-start-to-nginx-same-answers-spread", RATIO, last.seconds / spread);
        results.add("runnel", "last-start-to-nginx-same-answers", RATIO, last.seconds / answers);
        results.add("runnel", "last-start-to-nginx-one-file", RATIO, last.seconds / file);
    }
    let lines = results.rows(&commit)?;
    if options.json {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    } else {
        writeln!(out, "\n{}", results.table())?;
        let cases = [
            ("last-start-to-nginx-same-answers-spread", "over the time of a start"),
            ("last-start-to-nginx-same-answers", "back to back"),
        ];
        for (case, pace) in cases {
            let ratio = results.summary(case, RATIO.0).context("nothing was measured")?;
            let bar = if ratio.median <= RATIO_MAX { "held" } else { "missed" };
            writeln!(out, "  at most {RATIO_MAX} x nginx for the same bytes in as many answers, {pace}: {bar}")?;
        }
    }
    if let Some(history) = &options.history {
        append_history(history, &lines)?;
    }
    Ok(())
}

const PROCESSOR: (&str, &str) = ("processor", "s");
const RATIO: (&str, &str) = ("ratio", "x");

/// Where one run happens.
struct Place<'a> {
    runnel: &'a Path,
    image: &'a Path,
    folder: PathBuf,
}

/// What a start cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// Processor time of the server, bundles that it made for it or after it included.
    seconds: f64,
    /// Bytes that it sent: pushes, blocks, pages, metadata.
    bytes: u64,
    /// Pieces of pushes and answers to requests.
    answers: u64,
    /// How long the program took to start.
    lasted: Duration,
}

impl Place<'_> {
    /// Starts with a new server; the cost of the last one.
    fn starts(&self, modules: &[String], seed: u64, results: &mut Results) -> anyhow::Result<Cost> {
        let store = self.folder.join("store");
        std::fs::create_dir_all(&store)?;
        let published = store.join("python.rnl");
        std::fs::hard_link(self.image, &published).context("cannot put the image into the store")?;
        let ready = self.folder.join("serve.ready");
        let mut command = Command::new(self.runnel);
        command.arg("serve").arg(&store).args(["--listen", "127.0.0.1:0", "--ready-file"]).arg(&ready);
        let mut server = Service::start("serve", &mut command, &self.folder)?;
        let address = server.wait_ready(DEADLINE, || ready_text(&ready))?;
        let mut rng = SplitMix64(seed);
        let mut last = Cost::default();
        for number in 1..=STARTS {
            let some: Vec<String> = modules.iter().filter(|_| rng.below(LEFT_OUT) > 0).cloned().collect();
            let (serving, bundles, lasted, metrics) = self.start(&mut server, &address, &python::program(&some))?;
            last.seconds = serving + bundles;
            last.lasted = lasted;
            last.bytes =
                sum(&metrics, &["push_bytes", "block_bytes_demanded", "page_bytes_demanded", "metadata_bytes"]) as u64;
            last.answers =
                ((sum(&metrics, &["pages_pushed"]) / PIECE_PAGES).ceil() + sum(&metrics, &["requests"])) as u64;
            results.add("runnel", &format!("start-{number}"), PROCESSOR, serving);
            results.add("runnel", &format!("bundles-{number}"), PROCESSOR, bundles);
            results.add("runnel", &format!("start-{number}"), ("bytes", "B"), last.bytes as f64);
            results.add("runnel", &format!("start-{number}"), ("answers", "count"), last.answers as f64);
            let pages = |name| sum(&metrics, &[name]);
            results.add("runnel", &format!("start-{number}"), ("pages_pushed", "count"), pages("pages_pushed"));
            results.add(
                "runnel",
                &format!("start-{number}"),
                ("pages_from_bundle", "count"),
                pages("pages_from_bundle"),
            );
        }
        server.stop()?;
        Ok(last)
    }

    /// One cold start: seconds of serving it, seconds of bundles, how long it took, and by how much
    /// the server's metrics grew.
    fn start(
        &self,
        server: &mut Service,
        address: &str,
        program: &str,
    ) -> anyhow::Result<(f64, f64, Duration, BTreeMap<String, f64>)> {
        let metrics = self.status(address)?.0;
        drop_caches(&[self.runnel.to_path_buf(), self.image.to_path_buf()]);
        let before = threads(server.pid())?;
        let ready = self.folder.join("mount.ready");
        let _ = std::fs::remove_file(&ready);
        let point = MountPoint::create(self.folder.join("root"))?;
        let mut command = Command::new(self.runnel);
        command.arg("mount").arg(format!("runnel://{address}/python")).arg(point.path()).env("RUNNEL_CACHE", "none");
        command.args(["--foreground", "--ready-file"]).arg(&ready);
        let mut client = Service::start("mount", &mut command, &self.folder)?;
        client.wait_ready(DEADLINE, || ready.exists().then_some(()))?;
        let mut command = Command::new(self.runnel);
        command.arg("enter").arg(point.path()).args([
            "--",
            "/usr/bin/python3",
            "-I",
            "-S",
            "-W",
            "ignore",
            "-c",
            program,
        ]);
        command.env_clear().envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("PYTHONDONTWRITEBYTECODE", "1")]);
        let done = timed("python", command.current_dir("/"), DEADLINE)?;
        ensure!(done.output.starts_with(b"imports"), "python printed something else");
        tool(Command::new(self.runnel).arg("umount").arg(point.path()))?;
        ensure!(client.wait_end(DEADLINE)?, "the client did not end after its mount");
        let after = threads(server.pid())?;
        // What is learned from the start, and the bundles that follow, belong to it.
        let learned = Instant::now() + LEARNING;
        server.wait_ready(2 * LEARNING, || (Instant::now() >= learned).then_some(()))?;
        let mut grown = BTreeMap::new();
        loop {
            let (now, waiting) = self.status(address)?;
            if waiting == 0 {
                grown.extend(now.iter().map(|(name, value)| (name.clone(), value - metrics.get(name).unwrap_or(&0.0))));
                break;
            }
            server.wait_ready(DEADLINE, || Some(()))?;
            std::thread::sleep(LEARNING / 20);
        }
        let end = threads(server.pid())?;
        // The status requests are ours.
        if let Some(requests) = grown.get_mut("requests") {
            *requests -= 1.0;
        }
        let serving = grown_nanos(&before, &after, |name| name != BUNDLE_THREAD);
        let bundles = grown_nanos(&before, &end, |name| name == BUNDLE_THREAD);
        Ok((serving as f64 / 1e9, bundles as f64 / 1e9, done.wall, grown))
    }

    /// The server's metrics, and the bundles that wait to be made.
    fn status(&self, address: &str) -> anyhow::Result<(BTreeMap<String, f64>, u64)> {
        let output = tool(Command::new(self.runnel).args(["status", "--json", &format!("runnel://{address}")]))?;
        let status: Value = serde_json::from_slice(&output).context("runnel status --json printed no JSON")?;
        let metrics = status["metrics"].as_object().context("the status has no metrics")?;
        let metrics = metrics.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        Ok((metrics, status["bundles_waiting"].as_u64().context("the status has no bundles_waiting")?))
    }
}

/// Name of the server's thread that makes bundles.
const BUNDLE_THREAD: &str = "bundles";

/// Processor time of each thread of a process so far: name and nanoseconds by number.
type Threads = BTreeMap<u32, (String, u64)>;

fn threads(pid: u32) -> anyhow::Result<Threads> {
    let mut found = Threads::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).context("the process is gone")? {
        let path = entry?.path();
        let Some(number) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A thread may end while we look.
        let read = |name: &str| std::fs::read_to_string(path.join(name)).ok();
        let Some((name, times)) = read("comm").zip(read("schedstat")) else { continue };
        let nanos = times.split_whitespace().next().and_then(|text| text.parse().ok());
        found.insert(number, (name.trim().to_string(), nanos.context("the kernel has no schedstat")?));
    }
    Ok(found)
}

/// Nanoseconds between two looks, over the threads of these names. One that ended meanwhile had
/// been idle for ten seconds.
fn grown_nanos(before: &Threads, after: &Threads, wanted: impl Fn(&str) -> bool) -> u64 {
    let grown = |(number, (_, nanos)): (&u32, &(String, u64))| {
        nanos.saturating_sub(before.get(number).map_or(0, |(_, before)| *before))
    };
    after.iter().filter(|(_, (name, _))| wanted(name)).map(grown).sum()
}

fn sum(metrics: &BTreeMap<String, f64>, names: &[&str]) -> f64 {
    names.iter().filter_map(|name| metrics.get(*name)).sum()
}

/// Seconds of processor time that nginx takes to send the bytes of `start`: as one file on a new
/// connection, in as many ranges on one connection, and in these spread over as long a time.
fn nginx_seconds(nginx: &Path, folder: &Path, start: &Cost) -> anyhow::Result<[f64; 3]> {
    let Cost { bytes, answers, lasted, .. } = *start;
    // The kernel gives a port that is free; nginx takes it a moment later.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut rng = SplitMix64(1);
    let noise: Vec<u8> =
        (0..bytes.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(bytes as usize).collect();
    std::fs::write(folder.join("file"), noise)?;
    let conf = folder.join("nginx.conf");
    let here = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary.iter().map(|name| format!("{name}_temp_path {here}/{name};\n")).collect();
    let text = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log; events {{}}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n{temporary}\
         server {{ listen {address}; root {here}; }} }}\n"
    );
    std::fs::write(&conf, text)?;
    let mut service = Service::start("nginx", Command::new(nginx).arg("-c").arg(&conf).arg("-p").arg(folder), folder)?;
    service.wait_ready(DEADLINE, || TcpStream::connect(address).ok().map(drop))?;
    let spent =
        |service: &Service| Ok::<u64, anyhow::Error>(grown_nanos(&Threads::new(), &threads(service.pid())?, |_| true));
    get(&mut TcpStream::connect(address)?, address, None)?;

    let begun = spent(&service)?;
    for _ in 0..REPEATS {
        ensure!(get(&mut TcpStream::connect(address)?, address, None)? == bytes, "nginx sent something else");
    }
    let file = spent(&service)?;
    let answer_bytes = bytes.div_ceil(answers.max(1)).max(1);
    let in_ranges = |pause: Duration| {
        let mut connection = TcpStream::connect(address)?;
        connection.set_nodelay(true)?;
        for from in (0..bytes).step_by(answer_bytes as usize) {
            let through = (from + answer_bytes).min(bytes) - 1;
            let got = get(&mut connection, address, Some((from, through)))?;
            ensure!(got == through - from + 1, "nginx sent something else");
            std::thread::sleep(pause);
        }
        Ok(())
    };
    (0..REPEATS).try_for_each(|_| in_ranges(Duration::ZERO))?;
    let ranges = spent(&service)?;
    let pause = lasted / answers.clamp(1, u64::from(u32::MAX)) as u32;
    (0..SPREAD_REPEATS).try_for_each(|_| in_ranges(pause))?;
    let spread = spent(&service)?;
    service.stop()?;
    let seconds = |nanos: u64, repeats: u32| nanos as f64 / f64::from(repeats) / 1e9;
    Ok([seconds(file - begun, REPEATS), seconds(ranges - file, REPEATS), seconds(spread - ranges, SPREAD_REPEATS)])
}

/// Gets the file or a range of it; the bytes of the answer's body.
fn get(connection: &mut TcpStream, host: SocketAddr, range: Option<(u64, u64)>) -> anyhow::Result<u64> {
    let range = range.map(|(from, through)| format!("Range: bytes={from}-{through}\r\n")).unwrap_or_default();
    connection.write_all(format!("GET /file HTTP/1.1\r\nHost: {host}\r\n{range}\r\n").as_bytes())?;
    let mut buf = vec![0; 64 << 10];
    let mut head = Vec::new();
    let end = loop {
        let count = connection.read(&mut buf)?;
        ensure!(count > 0, "nginx closed the connection");
        head.extend_from_slice(&buf[..count]);
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: u64 = length.context("nginx said no length")?.trim().parse()?;
    let mut left = length.saturating_sub((head.len() - end) as u64);
    while left > 0 {
        let count = connection.read(&mut buf)? as u64;
        ensure!(count > 0, "nginx closed the connection");
        left = left.saturating_sub(count);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_came_count_whole_and_others_by_what_they_added() {
        let threads = |all: &[(u32, &str, u64)]| {
            all.iter().map(|(number, name, nanos)| (*number, (name.to_string(), *nanos))).collect::<Threads>()
        };
        let before = threads(&[(1, "server", 100), (2, "bundles", 50), (3, "server", 7)]);
        let after = threads(&[(1, "server", 130), (2, "bundles", 90), (4, "server", 5)]);
        assert_eq!(grown_nanos(&before, &after, |name| name != BUNDLE_THREAD), 35);
        assert_eq!(grown_nanos(&before, &after, |name| name == BUNDLE_THREAD), 40);
        assert!(super::threads(std::process::id()).is_ok_and(|own| !own.is_empty()));
    }
}
