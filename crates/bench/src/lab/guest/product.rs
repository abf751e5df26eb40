//! Runnel itself, in all its modes: the static binary beside the driver.
//!
//! The server publishes a copy of the prepared store (the image as a hard link) from the content
//! disk, or from a slow card in the modes of the experiment `cache`. The copy lasts as long as the
//! row, also when the server is started anew. Each mode is a row of a table: which store, which
//! options for both ends. In the modes `kept` and `offline` the device has a cache on a card, which
//! holds what one start fetched; in all others it keeps nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::card::{Kind, MountedCard, SPACE_BYTES, SlowCard};
use super::net::{self, SERVER_ADDRESS, SERVER_GROUP, server_command};
use super::system::{APP, CONTENT, System, WORK};
use super::{Values, execution, group, kernel};
use crate::lab::program::{LEARNED_FROM, Program};
use crate::options::beside;
use crate::process::{Service, ready_text, tool};
use crate::stage;

/// Port of the server.
const PORT: u16 = 7327;

/// How long a server or a mount may take to be ready: metadata over the slowest link takes minutes.
pub const READY_DEADLINE: Duration = Duration::from_secs(3600);

/// How long a client may take to end once its mount is gone.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// How long the server may be at work after a start from which it learns.
const SETTLE_DEADLINE: Duration = Duration::from_secs(300);

/// The server is done when it has done nothing for so long: more than its timer for the end of an
/// action, 3 s.
const SETTLE_INTERVAL: Duration = Duration::from_secs(5);

/// Share of a processor that is nothing: timers and the answer to the question whether it is done.
const SETTLE_SHARE: f64 = 0.001;

/// Where the card or disk is mounted that has the store, or the device's cache.
const CARD: &str = "/mnt/card";

/// The kind of card that the device's cache lies on, and its space beside the cache's 64 MiB.
const CACHE_CARD: (&str, u64) = ("a", SPACE_BYTES + (64 << 20));

/// How Runnel is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    name: &'static str,
    /// The prepared store: `fresh` or `learned`.
    store: &'static str,
    /// Options of `runnel serve`.
    serve: &'static str,
    /// Options of `runnel mount`.
    mount: &'static str,
    /// What the store lies on, as a kind of [`SlowCard`]: memory if there is none.
    card: Option<&'static str>,
}

/// Modes of the experiment on caching begin so: the store is on a card, or on a hard disk.
const ON_CARD: &str = "cache-";
const ON_DISK: &str = "disk-";

/// Option of a server that no longer learns.
const FROZEN: &str = "--frozen";

/// Single pages and no guessing on the client's side.
const PAPER_MOUNT: &str = "--granularity page --readahead 0";

/// One segment per round trip, as in the paper.
const PAPER_SERVE: &str = "--push-window 0 --no-bundles --frozen";

/// The server has learned, and then its image was replaced by the next version.
const UPDATED: &str = "updated";

/// The device keeps what it fetches: the cache's own limit, whatever the size of the card.
const KEPT_MOUNT: &str = "--cache /mnt/card/cache --cache-size 64m";

/// The name is signed, and the device has seen no signature before: the most that one costs.
const SIGNED: &str = "signed";
const SIGNED_MOUNT: &str = "--trust /run/lab/publisher/root.json";

/// Folders of its publisher, and of what the device has seen, below [`WORK`].
const PUBLISHER: &str = "publisher";
const SEEN: &str = "seen";

/// There is no link once the cache is filled, so that a page which is not there is an error.
const OFFLINE: &str = "offline";
const OFFLINE_MOUNT: &str = "--cache /mnt/card/cache --cache-size 64m --soft 30";

/// All of an image is fetched at a rate.
const RATED: &str = "rated";

/// The rate, and a cache that holds any image of the lab.
const PIN_RATE: [&str; 2] = ["--rate", "128k"];
const PIN_CACHE: [&str; 2] = ["--cache-size", "1g"];

/// Starts from which a server learns that is to know one program only: as many as the store
/// `learned` was made from.
const STARTS_OF_ONE: usize = 3;

const fn mode(name: &'static str, store: &'static str, serve: &'static str, mount: &'static str) -> Mode {
    Mode { name, store, serve, mount, card: None }
}

const MODES: [Mode; 18] = [
    mode("none", "fresh", "--no-learn", ""),
    mode("once", "fresh", "--frozen", ""),
    mode("learned", "learned", "--frozen", ""),
    mode(SIGNED, "learned", "--frozen", SIGNED_MOUNT),
    mode(UPDATED, "learned", "--frozen", ""),
    mode("kept", "learned", "--frozen", KEPT_MOUNT),
    mode(OFFLINE, "learned", "--frozen", OFFLINE_MOUNT),
    mode(RATED, "learned", "--frozen", ""),
    mode("paper", "learned", PAPER_SERVE, PAPER_MOUNT),
    mode("io-pool-long", "fresh", "--no-learn", PAPER_MOUNT),
    mode("io-pool-short", "fresh", "--no-learn", "--granularity page --readahead 0 --ablation short"),
    mode("io-alloc-long", "fresh", "--no-learn", "--granularity page --readahead 0 --ablation alloc"),
    mode("io-alloc-short", "fresh", "--no-learn", "--granularity page --readahead 0 --ablation alloc --ablation short"),
    mode("cache-none", "learned", "--push-window 0 --frozen --provider none", PAPER_MOUNT),
    mode("cache-madvise", "learned", "--push-window 0 --frozen --provider madvise", PAPER_MOUNT),
    mode("cache-nv", "learned", "--push-window 0 --frozen --provider nv", PAPER_MOUNT),
    mode("cache-nv-async", "learned", "--push-window 0 --frozen --provider nv-async", PAPER_MOUNT),
    mode("cache-bundle", "learned", "--frozen", ""),
];

impl Mode {
    fn named(name: &str) -> anyhow::Result<Mode> {
        // What was learned from one start of the same program, and from some of another one.
        let name = if name.starts_with(LEARNED_FROM) { "once" } else { name };
        let on_disk = name.strip_prefix(ON_DISK).map(|provider| format!("{ON_CARD}{provider}"));
        let listed = on_disk.as_deref().unwrap_or(name);
        let found = MODES.into_iter().find(|mode| mode.name == listed);
        let mut mode = found.with_context(|| {
            let known = MODES.map(|mode| mode.name).join(", ");
            format!(
                "runnel has no mode '{name}'; there are {known}, {LEARNED_FROM}PROGRAM, and {ON_DISK}X for \
                 {ON_CARD}X with the store on a hard disk"
            )
        })?;
        if listed.starts_with(ON_CARD) {
            mode.card = Some(if on_disk.is_some() { "disk" } else { "a" });
        }
        Ok(mode)
    }

    /// True if the server learns from one start before anything is measured. Not only in the mode
    /// `once`: what was learned from devices that read whole blocks does not fit one that reads
    /// pages.
    fn learns_first(self) -> bool {
        self.name == "once" || (self.is_frozen() && self.mount == PAPER_MOUNT)
    }

    /// True if the device has a cache.
    fn is_kept(self) -> bool {
        self.mount.starts_with(KEPT_MOUNT)
    }

    /// True if the server pushes what it has learned, and learns nothing from the measured runs:
    /// all find the same.
    fn is_frozen(self) -> bool {
        words(self.serve).any(|word| word == FROZEN)
    }
}

/// Server, store and one mount.
#[derive(Debug)]
pub struct Runnel {
    mode: Mode,
    program: &'static Program,
    /// The program whose starts the server learns from, and how many of them.
    teacher: (&'static Program, usize),
    runnel: PathBuf,
    store: Option<PathBuf>,
    server: Option<Service>,
    client: Option<Service>,
    card: Option<MountedCard>,
}

impl Runnel {
    /// In the mode called `mode`, for one program.
    pub fn new(mode: &str, program: &str) -> anyhow::Result<Runnel> {
        let program = Program::named(program)?;
        let teacher = match mode.strip_prefix(LEARNED_FROM) {
            Some(name) => (Program::named(name)?, STARTS_OF_ONE),
            None => (program, 1),
        };
        let (taught, tree) = (teacher.0, program.tree);
        ensure!(taught.tree == tree, "{} and {} are in different images", taught.name, program.name);
        let mode = Mode::named(mode)?;
        let has_next = mode.name != UPDATED || program.next_tree().is_some();
        ensure!(has_next, "the lab has no next version of the tree {tree}");
        Ok(Runnel { mode, program, teacher, runnel: beside(), store: None, server: None, client: None, card: None })
    }

    /// Makes the row's own store, with the image of `tree` only.
    fn prepare_store(&mut self, tree: &str) -> anyhow::Result<PathBuf> {
        let store = Path::new(CONTENT).join("store");
        stage::remove(&store)?;
        let image = format!("{tree}.rnl");
        copy_store(&Path::new(CONTENT).join(self.mode.store), &store, &image)?;
        ensure!(store.join(&image).exists(), "the store '{}' has no {image}", self.mode.store);
        let Some(kind) = self.mode.card else { return Ok(store) };
        let card = SlowCard::filled(Kind::named(kind)?, &store, SPACE_BYTES)?;
        Ok(PathBuf::from(self.card.insert(card.mounted(CARD)?).point))
    }

    /// Gives the device a new cache and fills it by one start; takes the link down if the mode says
    /// so.
    fn fill_cache(&mut self, tree: &str) -> anyhow::Result<()> {
        let empty = Path::new(WORK).join("empty");
        fs::create_dir_all(&empty).with_context(|| format!("cannot make {}", empty.display()))?;
        let (kind, space_bytes) = CACHE_CARD;
        let card = SlowCard::filled(Kind::named(kind)?, &empty, space_bytes)?;
        self.card = Some(card.mounted(CARD)?);
        self.mount(tree)?;
        execution::run(self.program).context("the start that fills the cache")?;
        self.unmount()?;
        if self.mode.name == OFFLINE { net::set_link(false) } else { Ok(()) }
    }

    /// Starts by other mounts, at a server that learns; waits until it has, and ends it.
    fn learn(&mut self, tree: &str, store: &Path) -> anyhow::Result<()> {
        let options = words(self.mode.serve).filter(|word| *word != FROZEN);
        self.server = Some(start_server(&self.runnel, store, options)?);
        let (teacher, starts) = self.teacher;
        for _ in 0..starts {
            self.mount(tree)?;
            execution::run(teacher).context("a start to learn from")?;
            self.unmount()?;
            settle(&self.runnel)?;
        }
        let folder = store.join("learned");
        let has_learned = fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(has_learned, "the server learned nothing from a start: {} is empty", folder.display());
        self.stop()
    }

    /// Replaces the image of `tree` by that of `next`, as a user does, at a server that learns;
    /// waits until it has done what that leaves it to do, and ends it.
    fn update(&mut self, tree: &str, next: &str, store: &Path) -> anyhow::Result<()> {
        let options = words(self.mode.serve).filter(|word| *word != FROZEN);
        self.server = Some(start_server(&self.runnel, store, options)?);
        let image = Path::new(CONTENT).join("images").join(format!("{next}.rnl"));
        let mut command = server_command(&self.runnel.to_string_lossy());
        tool(command.arg("push").arg(image).arg(format!("{}/{tree}", server_url())))?;
        settle(&self.runnel)?;
        self.stop()
    }

    /// Signs the name of the image of `tree`, as a publisher does.
    fn sign(&mut self, tree: &str, store: &Path) -> anyhow::Result<()> {
        let publisher = Path::new(WORK).join(PUBLISHER);
        stage::remove(&publisher)?;
        tool(Command::new(&self.runnel).args(["trust", "init", "--no-passphrase"]).arg(&publisher))?;
        self.server = Some(start_server(&self.runnel, store, words(self.mode.serve))?);
        let image = store.join(format!("{tree}.rnl"));
        let mut command = server_command(&self.runnel.to_string_lossy());
        tool(command.arg("push").arg("--sign").arg(publisher).arg(image).arg(format!("{}/{tree}", server_url())))?;
        self.stop()
    }
}

/// Starts the server on `store`; returns when it accepts connections.
pub fn start_server(
    runnel: &Path,
    store: &Path,
    options: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<Service> {
    let ready = Path::new(WORK).join("serve.ready");
    // Left by the server before this one.
    let _ = fs::remove_file(&ready);
    let mut command = server_command(&runnel.to_string_lossy());
    // Whoever can connect in the guest is ours.
    let address = format!("{SERVER_ADDRESS}:{PORT}");
    command.arg("serve").arg(store).args(["--listen", &address, "--allow-anonymous-push"]);
    command.arg("--ready-file").arg(&ready).args(options);
    let mut server = Service::start("serve", &mut command, Path::new(WORK))?;
    server.wait_ready(READY_DEADLINE, || ready_text(&ready))?;
    Ok(server)
}

/// What `target`, a server or a mount, tells about itself.
fn status(runnel: &Path, target: &str) -> anyhow::Result<Value> {
    let output = tool(Command::new(runnel).args(["status", "--json", target]))?;
    serde_json::from_slice(&output).context("runnel status --json printed no JSON")
}

/// Waits until the server has done what a start leaves it to do: it writes down what it learned and
/// compresses it.
pub fn settle(runnel: &Path) -> anyhow::Result<()> {
    let end = Instant::now() + SETTLE_DEADLINE;
    let mut last = group::usage(SERVER_GROUP)?.total();
    loop {
        ensure!(Instant::now() < end, "the server is still at work {SETTLE_DEADLINE:?} after a start");
        std::thread::sleep(SETTLE_INTERVAL);
        let now = group::usage(SERVER_GROUP)?.total();
        let waiting = status(runnel, &server_url())?["bundles_waiting"].as_u64().unwrap_or(0);
        if now - last < SETTLE_SHARE * SETTLE_INTERVAL.as_secs_f64() && waiting == 0 {
            return Ok(());
        }
        last = group::usage(SERVER_GROUP)?.total();
    }
}

/// Address of the server.
pub fn server_url() -> String {
    format!("runnel://{SERVER_ADDRESS}:{PORT}")
}

/// The options of a mode's text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

/// Copies a store, of the images only `image`, as a hard link.
pub fn copy_store(from: &Path, to: &Path, image: &str) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("no store {}", from.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", from.display()))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let context = || format!("cannot copy {} to {}", source.display(), target.display());
        if entry.file_type().with_context(context)?.is_dir() {
            copy_store(&source, &target, image)?;
        } else if entry.file_name() == image {
            fs::hard_link(&source, &target).with_context(context)?;
        } else if source.extension().is_none_or(|extension| extension != "rnl") {
            fs::copy(&source, &target).with_context(context)?;
        }
    }
    Ok(())
}

/// Field of `runnel status --json`, name in records, and the factor to its unit.
const COUNTERS: [(&str, &str, f64); 5] = [
    ("requests", "requests", 1.0),
    ("pages_demanded", "pages_demanded", 1.0),
    ("pages_pushed", "pages_pushed", 1.0),
    ("pages_wasted", "pages_wasted", 1.0),
    ("stall_micros", "stall", 1e-6),
];

fn counters_of(status: &Value) -> anyhow::Result<Values> {
    let session = status.get("session").context("runnel status --json has no session")?;
    let counter = |(field, name, factor): &(&str, &str, f64)| {
        let value = session.get(*field).and_then(Value::as_f64);
        let value = value.with_context(|| format!("runnel status --json has no {field}"))?;
        Ok((name.to_string(), value * factor))
    };
    COUNTERS.iter().map(counter).collect::<anyhow::Result<BTreeMap<_, _>>>()
}

/// Takes the mount of [`APP`] away and waits for the end of its client.
pub fn unmount(runnel: &Path, mut client: Service) -> anyhow::Result<()> {
    tool(Command::new(runnel).arg("umount").arg(APP))?;
    ensure!(client.wait_end(END_DEADLINE)?, "the client did not end {END_DEADLINE:?} after its mount");
    ensure!(!kernel::is_mounted(Path::new(APP)), "{APP} is still mounted after the client's end");
    Ok(())
}

/// The counters of the mount at `target`.
pub fn counters(runnel: &Path, target: &str) -> anyhow::Result<Values> {
    counters_of(&status(runnel, target)?)
}

impl System for Runnel {
    fn serve(&mut self, tree: &str) -> anyhow::Result<()> {
        let store = match &self.store {
            Some(store) => store.clone(),
            None => {
                let store = self.prepare_store(tree)?;
                if self.mode.learns_first() {
                    self.learn(tree, &store)?;
                }
                if let Some(next) = self.program.next_tree().filter(|_| self.mode.name == UPDATED) {
                    self.update(tree, next, &store).context("the update of the image")?;
                }
                if self.mode.name == SIGNED {
                    self.sign(tree, &store).context("the signature of the name")?;
                }
                self.store.insert(store).clone()
            }
        };
        self.server = Some(start_server(&self.runnel, &store, words(self.mode.serve))?);
        if self.mode.is_kept() { self.fill_cache(tree) } else { Ok(()) }
    }

    fn mount(&mut self, tree: &str) -> anyhow::Result<()> {
        let ready = Path::new(WORK).join("mount.ready");
        let _ = fs::remove_file(&ready);
        let mut command = Command::new(&self.runnel);
        command.arg("mount").arg(format!("{}/{tree}", server_url())).arg(APP);
        // Starts are cold, unless the mode names a folder.
        command.env("RUNNEL_CACHE", "none");
        let seen = Path::new(WORK).join(SEEN);
        stage::remove(&seen)?;
        command.env("RUNNEL_TRUST_STATE", seen);
        command.arg("--foreground").arg("--ready-file").arg(&ready).args(words(self.mode.mount));
        let mut client = Service::start("mount", &mut command, Path::new(WORK))?;
        client.wait_ready(READY_DEADLINE, || ready_text(&ready))?;
        self.client = Some(client);
        Ok(())
    }

    fn fetch_all(&mut self, tree: &str) -> anyhow::Result<()> {
        let folder = Path::new(CONTENT).join("pinned");
        stage::remove(&folder)?;
        let mut command = Command::new(&self.runnel);
        command.arg("pin").arg(format!("{}/{tree}", server_url())).arg("--cache").arg(&folder).args(PIN_CACHE);
        if self.mode.name == RATED {
            command.args(PIN_RATE);
        }
        tool(&mut command).map(drop)
    }

    fn counters(&self) -> anyhow::Result<Values> {
        counters(&self.runnel, APP)
    }

    fn server_files(&self, _program: &Program) -> Vec<PathBuf> {
        self.store.iter().filter(|_| self.mode.card.is_none()).cloned().collect()
    }

    fn unmount(&mut self) -> anyhow::Result<()> {
        self.client.take().map_or(Ok(()), |client| unmount(&self.runnel, client))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        self.client = None;
        if self.mode.is_kept() {
            self.card = None;
            net::set_link(true)?;
        }
        self.server.take().map_or(Ok(()), Service::stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_of_their_own_and_stores_that_exist() -> anyhow::Result<()> {
        for (index, mode) in MODES.iter().enumerate() {
            assert!(["fresh", "learned"].contains(&mode.store));
            assert!(MODES[..index].iter().all(|other| other.name != mode.name));
        }
        assert!(["once", "paper", "cache-nv"].iter().all(|name| Mode::named(name).is_ok_and(Mode::learns_first)));
        assert!(
            ["none", "learned", "io-pool-long"].iter().all(|name| !Mode::named(name).is_ok_and(Mode::learns_first))
        );
        assert!(Runnel::new("of-python-nine", "python-decimal").is_ok_and(|row| row.mode.learns_first()));
        for (mode, program) in [("of-perl", "python"), ("of-emacs", "perl"), ("updated", "perl")] {
            assert!(Runnel::new(mode, program).is_err(), "{mode} {program}");
        }
        assert_eq!(
            ["cache-nv", "disk-nv", "paper"].map(|name| Mode::named(name).ok().and_then(|mode| mode.card)),
            [Some("a"), Some("disk"), None]
        );
        let error = Mode::named("twice").expect_err("no such mode").to_string();
        assert!(error.contains("io-pool-long"), "{error}");
        Ok(())
    }

    #[test]
    fn a_store_is_copied_with_one_image() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("learned"))?;
        for name in ["perl.rnl", "java.rnl", "learned/x.actions"] {
            fs::write(from.join(name), name)?;
        }
        copy_store(&from, &to, "perl.rnl")?;
        assert!(to.join("perl.rnl").exists() && !to.join("java.rnl").exists());
        assert_eq!(fs::read_to_string(to.join("learned/x.actions"))?, "learned/x.actions");
        Ok(())
    }

    #[test]
    fn counters_are_those_of_the_session() -> anyhow::Result<()> {
        let fields = r#""requests":7,"pages_demanded":8,"pages_pushed":900,"pages_wasted":3,"stall_micros":250000"#;
        let text = format!(r#"{{"requests":99,"session":{{{fields}}}}}"#);
        let values = counters_of(&serde_json::from_str(&text)?)?;
        assert_eq!((values["requests"], values["pages_pushed"], values["stall"]), (7.0, 900.0, 0.25));
        assert!(counters_of(&serde_json::from_str("{}")?).is_err());
        Ok(())
    }
}
