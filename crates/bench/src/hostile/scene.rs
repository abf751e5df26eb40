//! One part of a run: two fresh servers, the good devices, and the bad peer, each in a process with
//! a deadline.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use super::bad::{Counts, Kind};
use super::content::{IMAGE, VOLUME};
use super::device::{FILE_BYTES, file_of};
use super::good::{DEVICES, OPERATIONS, WARM_UP};
use super::timings::Timings;
use crate::process::{Service, ready_text};
use crate::stream::fresh_folder;

/// How long a process may take to be ready.
const READY: Duration = Duration::from_secs(20);

/// How long a server may take to end after it was asked to: it gives its connections three seconds.
const END: Duration = Duration::from_secs(10);

/// What a process may take beyond the time that its work takes.
const GRACE: Duration = Duration::from_secs(10);

/// Where the bad peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Against {
    /// Nowhere.
    Nobody,
    /// At the server of the good devices.
    Same,
    /// At another server on the machine.
    Other,
}

impl Against {
    pub const ALL: [Against; 3] = [Against::Nobody, Against::Same, Against::Other];

    /// What the good devices' times are called in rows.
    pub fn name(self) -> &'static str {
        let [name, _, _] = self.metrics();
        name
    }

    /// The same for what 99 of 100 operations keep to, what half of them do, and how many failed.
    pub fn metrics(self) -> [&'static str; 3] {
        match self {
            Against::Nobody => ["alone", "median-alone", "failures-alone"],
            Against::Same => ["beside", "median-beside", "failures-beside"],
            Against::Other => ["elsewhere", "median-elsewhere", "failures-elsewhere"],
        }
    }
}

/// What one part measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// Times of the good devices.
    pub timings: Timings,
    /// What the bad peer got done, if there was one.
    pub counts: Option<Counts>,
}

/// What all parts share.
pub(super) struct Scene<'a> {
    /// The binary whose server is measured.
    pub runnel: &'a Path,
    /// This program, which is the devices and the bad peer too.
    pub own: &'a Path,
    pub image: &'a Path,
    /// Folder of images to push.
    pub pushes: &'a Path,
    /// Folder for stores and logs, emptied for each part.
    pub folder: PathBuf,
    /// Time that is measured.
    pub seconds: f64,
}

struct Server {
    service: Service,
    address: String,
}

impl Scene<'_> {
    /// Measures the good devices once.
    ///
    /// # Errors
    /// A process failed or did not end by its deadline. It was killed; the error has the end of
    /// what it said.
    pub fn part(&self, kind: &Kind, against: Against) -> anyhow::Result<Part> {
        let folder = fresh_folder(&self.folder)?;
        let [ours, other] = [self.serve(&folder.join("ours"))?, self.serve(&folder.join("other"))?];
        let time = WARM_UP + Duration::from_secs_f64(self.seconds) + longest() + GRACE;
        let attacked = match against {
            Against::Nobody => None,
            Against::Same => Some(&ours.address),
            Against::Other => Some(&other.address),
        };
        let counted = folder.join("bad.json");
        let mut bad = attacked.map(|address| self.attack(kind, address, time + READY, &counted)).transpose()?;
        let timings = self.work(&ours.address, time, &folder)?;
        let counts = bad.is_some().then(|| result(&counted)).transpose()?;
        if let Some(bad) = &mut bad {
            // The attack lasted as long as it should.
            bad.wait_ready(READY, || Some(()))?;
        }
        drop(bad);
        ours.stop()?;
        other.stop()?;
        Ok(Part { timings, counts })
    }

    fn serve(&self, folder: &Path) -> anyhow::Result<Server> {
        let (store, data) = (folder.join("store"), folder.join("data"));
        std::fs::create_dir_all(&store)?;
        std::fs::create_dir_all(&data)?;
        std::fs::hard_link(self.image, store.join(format!("{IMAGE}.rnl")))
            .context("cannot put an image in the store")?;
        for device in 0..DEVICES {
            std::fs::write(data.join(file_of(device)), vec![0; FILE_BYTES as usize])?;
        }
        let ready = folder.join("serve.ready");
        let mut command = Command::new(self.runnel);
        command.arg("serve").arg(&store).args(["--listen", "127.0.0.1:0", "--allow-anonymous-push", "--volume"]);
        command.arg(format!("{VOLUME}={}:rw", data.display())).arg("--ready-file").arg(&ready);
        let mut service = Service::start("serve", &mut command, folder)?;
        let address = service.wait_ready(READY, || ready_text(&ready))?;
        Ok(Server { service, address })
    }

    /// Starts the bad peer, and waits until it has begun.
    fn attack(&self, kind: &Kind, address: &str, time: Duration, result: &Path) -> anyhow::Result<Service> {
        let mut command = Command::new(self.own);
        command.args(["hostile-bad", kind.name, address, "--image"]).arg(self.image);
        command.args(["--seconds", &time.as_secs_f64().to_string(), "--result"]).arg(result);
        let mut bad = Service::start("bad", &mut command, result.parent().context("a file is in a folder")?)?;
        bad.wait_ready(READY, || result.exists().then_some(()))?;
        Ok(bad)
    }

    /// Lets the good devices work.
    fn work(&self, address: &str, time: Duration, folder: &Path) -> anyhow::Result<Timings> {
        let measured = folder.join("good.json");
        let mut command = Command::new(self.own);
        command.args(["hostile-good", address, "--image"]).arg(self.image).arg("--pushes").arg(self.pushes);
        command.args(["--seconds", &self.seconds.to_string(), "--result"]).arg(&measured);
        let mut good = Service::start("good", &mut command, folder)?;
        let end = Instant::now() + time;
        while !good.wait_end(Duration::from_millis(50))? {
            crate::interrupt::check()?;
            ensure!(Instant::now() < end, "the good devices did not end within {time:?}{}", good.log_tail());
        }
        ensure!(measured.exists(), "the good devices failed{}", good.log_tail());
        result(&measured)
    }
}

impl Server {
    /// Ends the server in order.
    fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.service.pid()).ok().and_then(Pid::from_raw).context("a child has a pid")?;
        kill_process(pid, Signal::TERM)?;
        if !self.service.wait_end(END)? {
            bail!("the server did not end within {END:?}{}", self.service.log_tail());
        }
        Ok(())
    }
}

/// The longest that an operation may take.
fn longest() -> Duration {
    OPERATIONS.iter().map(|operation| operation.deadline).max().unwrap_or_default()
}

fn result<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is no result", path.display()))
}
