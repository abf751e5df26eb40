//! Drives Runnel as a user would: `runnel pack`, `serve`, `mount`, `status`, `umount`, as child
//! processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use report::row::{Metric, Sample};
use serde_json::Value;

use crate::link::{Link, ShapedLink, Traffic, Upstream};
use crate::process::{Service, ready_text, tool, try_tool};
use crate::site::{MountPoint, Site};

/// How long a server or a mount may take to be ready; metadata over the slowest named link takes
/// about a minute.
const READY_DEADLINE: Duration = Duration::from_secs(180);

/// How long a client may take to end once its mount is gone.
const END_DEADLINE: Duration = Duration::from_secs(10);

/// How long a bench waits for the server to write down what it learned from one start: its timer is
/// three seconds.
const LEARNED_DEADLINE: Duration = Duration::from_secs(8);

/// The `runnel` binary.
#[derive(Clone, Debug)]
pub struct Product {
    /// Path of the binary.
    pub runnel: PathBuf,
}

impl Product {
    /// Packs `tree` into `image` unless it is there; returns how long it took.
    pub fn pack(&self, tree: &Path, image: &Path) -> anyhow::Result<Duration> {
        let start = Instant::now();
        if !image.exists() {
            let unfinished = image.with_extension("rnl.new");
            tool(Command::new(&self.runnel).arg("pack").arg(tree).arg("-o").arg(&unfinished))?;
            std::fs::rename(&unfinished, image).context("cannot rename the finished image")?;
        }
        Ok(start.elapsed())
    }

    /// Makes a store in `folder` that publishes `image` under the stem of its name, with nothing
    /// learned.
    pub fn fresh_store(&self, image: &Path, folder: PathBuf) -> anyhow::Result<Store> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).context("cannot remove an old store")?;
        }
        std::fs::create_dir_all(&folder).context("cannot make a store")?;
        let name = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let published = folder.join(format!("{name}.rnl"));
        // The same file twice: nothing is copied. Across file systems it must be.
        if std::fs::hard_link(image, &published).is_err() {
            std::fs::copy(image, &published).context("cannot put the image into the store")?;
        }
        Ok(Store { folder, name })
    }

    /// Starts a server of `store` behind `link`, with more `options` of `runnel serve`. Logs and
    /// ready files go to `folder`.
    pub fn serve(
        &self,
        store: &Store,
        link: &Link,
        seed: u64,
        options: &[&str],
        folder: &Path,
    ) -> anyhow::Result<Server> {
        let ready = folder.join("serve.ready");
        // Left by the server before this one.
        let _ = std::fs::remove_file(&ready);
        let mut command = Command::new(&self.runnel);
        command
            .arg("serve")
            .arg(&store.folder)
            .args(["--listen", "127.0.0.1:0"])
            .arg("--ready-file")
            .arg(&ready)
            .args(options)
            // What an earlier run fetched would be there, unless the options name a folder.
            .env("RUNNEL_CACHE", "none");
        let mut service = Service::start("serve", &mut command, folder)?;
        let text = service.wait_ready(READY_DEADLINE, || ready_text(&ready))?;
        let address = text.parse().with_context(|| format!("the server wrote {text:?} instead of its address"))?;
        let shaped = ShapedLink::start(link, Upstream::Tcp(address), seed)?;
        Ok(Server { runnel: self.runnel.clone(), service, shaped, name: store.name.clone() })
    }

    /// Mounts `target` on a folder under `folder`, which must not be in use by another mount.
    fn mount(&self, target: &str, options: &[String], folder: &Path) -> anyhow::Result<Client> {
        let start = Instant::now();
        let ready = folder.join("mount.ready");
        let _ = std::fs::remove_file(&ready);
        let point = MountPoint::create(folder.join("root"))?;
        let mut command = Command::new(&self.runnel);
        command
            .arg("mount")
            .arg(target)
            .arg(point.path())
            .arg("--foreground")
            .arg("--ready-file")
            .arg(&ready)
            .args(options);
        let mut service = Service::start("mount", &mut command, folder)?;
        // The file may be empty: that it is there says enough.
        service.wait_ready(READY_DEADLINE, || ready.exists().then_some(()))?;
        let mounted_in = start.elapsed();
        Ok(Client { runnel: self.runnel.clone(), point, service, mounted_in })
    }

    /// Mounts an image file.
    pub fn mount_file(&self, image: &Path, options: &[String], folder: &Path) -> anyhow::Result<Mounted<'static>> {
        let client = self.mount(&image.display().to_string(), options, folder)?;
        Ok(Mounted { client, server: None, mounted_bytes: 0 })
    }

    /// Mounts the image of a server over its link.
    pub fn mount_remote<'a>(
        &self,
        server: &'a Server,
        options: &[String],
        folder: &Path,
    ) -> anyhow::Result<Mounted<'a>> {
        let before = server.shaped.traffic().down_bytes;
        let target = format!("runnel://{}/{}", server.shaped.address(), server.name);
        let client = self.mount(&target, options, folder)?;
        let mounted_bytes = server.shaped.traffic().down_bytes - before;
        Ok(Mounted { client, server: Some(server), mounted_bytes })
    }
}

/// A folder of published images and of what was learned about them.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    name: String,
}

impl Store {
    /// Files of learned actions with their sizes and times: changes when the server has written
    /// something.
    fn learned(&self) -> Vec<(PathBuf, u64, Option<std::time::SystemTime>)> {
        let entries = std::fs::read_dir(self.folder.join("learned")).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries
            .filter_map(|entry| entry.metadata().ok().map(|data| (entry.path(), data.len(), data.modified().ok())))
            .collect();
        found.sort();
        found
    }

    /// Files of learned actions.
    pub fn learned_files(&self) -> Vec<PathBuf> {
        self.learned().into_iter().map(|(path, _, _)| path).collect()
    }

    /// Bytes of learned actions.
    pub fn learned_bytes(&self) -> u64 {
        self.learned().iter().map(|(_, bytes, _)| bytes).sum()
    }
}

/// How long the server may take to compress what it learned: seconds of low-priority work.
const BUNDLES_DEADLINE: Duration = Duration::from_secs(60);

/// A running server and the link before it.
#[derive(Debug)]
pub struct Server {
    runnel: PathBuf,
    service: Service,
    shaped: ShapedLink,
    name: String,
}

impl Server {
    /// Waits until the store holds something else than `before`; false if it does not within the
    /// time a server needs.
    fn wait_learned(
        &mut self,
        store: &Store,
        before: &[(PathBuf, u64, Option<std::time::SystemTime>)],
    ) -> anyhow::Result<bool> {
        let end = Instant::now() + LEARNED_DEADLINE;
        let look = || {
            let changed = store.learned() != before;
            (changed || Instant::now() >= end).then_some(changed)
        };
        let changed = self.service.wait_ready(2 * LEARNED_DEADLINE, look)?;
        self.wait_bundles()?;
        Ok(changed)
    }

    /// Waits until what was learned is compressed: it belongs to learning, not to the start that is
    /// measured next.
    fn wait_bundles(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + BUNDLES_DEADLINE;
        let url = format!("runnel://{}", self.shaped.address());
        let runnel = self.runnel.clone();
        let look = || {
            let output = Command::new(&runnel).args(["status", "--json", &url]).output().ok()?;
            // A server that does not say has nothing to wait for.
            let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            let waiting = status["bundles_waiting"].as_u64().unwrap_or(0);
            (waiting == 0 || Instant::now() >= end).then_some(())
        };
        self.service.wait_ready(2 * BUNDLES_DEADLINE, look)
    }

    /// Ends the server in order: what it learned is saved.
    pub fn stop(self) -> anyhow::Result<()> {
        drop(self.shaped);
        self.service.stop()
    }
}

/// Lets the server learn from one start: `start` mounts, runs and unmounts. Returns true if the
/// store changed.
pub fn learn(
    server: &mut Server,
    store: &Store,
    start: impl FnOnce(&Server) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let before = store.learned();
    start(server)?;
    server.wait_learned(store, &before)
}

/// A mount and its process. Dropping it unmounts and ends the process.
#[derive(Debug)]
struct Client {
    runnel: PathBuf,
    point: MountPoint,
    service: Service,
    mounted_in: Duration,
}

impl Client {
    fn status(&self) -> anyhow::Result<Value> {
        let output = tool(Command::new(&self.runnel).args(["status", "--json"]).arg(self.point.path()))?;
        serde_json::from_slice(&output).context("runnel status --json printed no JSON")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        try_tool(Command::new(&self.runnel).arg("umount").arg(self.point.path()));
        // The fields that drop next kill what is left and unmount lazily.
        let _ = self.service.wait_end(END_DEADLINE);
    }
}

/// A mounted image.
#[derive(Debug)]
pub struct Mounted<'a> {
    client: Client,
    server: Option<&'a Server>,
    mounted_bytes: u64,
}

/// Field of `runnel status --json`, the metric it becomes, and the factor to the metric's unit.
const COUNTERS: [(&str, Metric, f64); 5] = [
    ("requests", Metric::Requests, 1.0),
    ("pages_demanded", Metric::PagesDemanded, 1.0),
    ("pages_pushed", Metric::PagesPushed, 1.0),
    ("pages_wasted", Metric::PagesWasted, 1.0),
    ("stall_micros", Metric::Stall, 1e-6),
];

/// The counters of a status report: those of the session, not of the mount, which has fields of the
/// same names.
fn counters_of(status: &Value) -> anyhow::Result<Sample> {
    let session = status.get("session").context("runnel status --json has no session")?;
    let mut sample = Sample::new();
    for (field, metric, factor) in COUNTERS {
        let value = session.get(field).and_then(Value::as_f64);
        sample.insert(metric, value.with_context(|| format!("runnel status --json has no {field}"))? * factor);
    }
    Ok(sample)
}

impl Site for Mounted<'_> {
    fn root(&self) -> &Path {
        self.client.point.path()
    }

    fn traffic(&self) -> Traffic {
        self.server.map(|server| server.shaped.traffic()).unwrap_or_default()
    }

    fn counters(&self) -> anyhow::Result<Sample> {
        counters_of(&self.client.status()?)
    }

    fn mounting(&self) -> Sample {
        let mut sample = Sample::from([(Metric::Mount, self.client.mounted_in.as_secs_f64())]);
        if self.server.is_some() {
            sample.insert(Metric::MountBytes, self.mounted_bytes as f64);
        }
        sample
    }

    fn client(&self) -> Option<u32> {
        Some(self.client.service.pid())
    }
}

impl Mounted<'_> {
    /// Unmounts; an error if the client did not end by itself.
    pub fn close(mut self) -> anyhow::Result<()> {
        tool(Command::new(&self.client.runnel).arg("umount").arg(self.client.point.path()))?;
        ensure!(self.client.service.wait_end(END_DEADLINE)?, "the client did not end {END_DEADLINE:?} after its mount");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_the_session() -> anyhow::Result<()> {
        let fields = r#""requests":7,"pages_demanded":8,"pages_pushed":900,"pages_wasted":3,"stall_micros":250000"#;
        let text = format!(r#"{{"fuse":{{"requests":99}},"pid":5,"session":{{{fields}}}}}"#);
        let sample = counters_of(&serde_json::from_str(&text)?)?;
        assert_eq!(
            (sample[&Metric::Requests], sample[&Metric::PagesPushed], sample[&Metric::Stall]),
            (7.0, 900.0, 0.25)
        );
        for (text, expected) in [(r#"{"session":{"requests":1}}"#, "pages_demanded"), ("{}", "session")] {
            let error = counters_of(&serde_json::from_str(text)?).expect_err("something is missing");
            assert!(error.to_string().contains(expected), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_fresh_store_holds_the_image_and_nothing_learned() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let image = folder.path().join("python.rnl");
        std::fs::write(&image, "image")?;
        let product = Product { runnel: "/bin/true".into() };
        let store = folder.path().join("store");
        std::fs::create_dir_all(store.join("learned"))?;
        std::fs::write(store.join("learned/x.actions"), "old")?;
        let store = product.fresh_store(&image, store)?;
        assert_eq!((store.name.as_str(), store.learned_bytes()), ("python", 0));
        assert_eq!(std::fs::read(store.folder.join("python.rnl"))?, b"image");
        Ok(())
    }
}
