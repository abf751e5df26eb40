//! What a server knows after another device used it: programs are started on the host from a mount
//! over loopback.
//!
//! First each program alone with a server that knows nothing: what that server writes down is the
//! page list of the program, its pages in the order of their first touch. Then all programs,
//! several times, with one server whose store becomes `learned`.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use profile::ActionSet;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::Value;
use units::InodeId;

use super::super::program::Program;
use super::image::fresh_store;
use super::stage::{finish, remove, unfinished};
use crate::process::{Service, find_program, ready_text, timed, tool, try_tool, with_own_mounts};
use crate::site::MountPoint;

/// Starts from which the server learns: it takes the second as an exact one, and makes bundles of
/// what did not change.
const STARTS: usize = 3;

/// How long servers and mounts may take to be ready or to end, and programs to run.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long a server may take to write down what it learned from starts, and to compress it:
/// low-priority work.
const LEARNED_DEADLINE: Duration = Duration::from_secs(180);

/// What was learned is complete when nothing was written for so long: the server closes an action
/// after three seconds and looks every second.
const SETTLED: Duration = Duration::from_secs(5);

/// Changes when programs are learned in another way.
pub const VERSION: u32 = 3;

/// How a program is started in its mounted tree: as in the guest, with the devices of the machine
/// and an empty /tmp.
const ENTER: &str = r#"set -e
root=$0 chroot=$1; shift
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
exec "$chroot" "$root" "$@""#;

/// The binary and a folder for mounts, logs and ready files.
#[derive(Clone, Debug)]
pub struct Learner {
    /// The binary that serves and mounts.
    pub runnel: PathBuf,
    /// Folder that is removed at the end.
    pub work: PathBuf,
}

struct Server<'a> {
    learner: &'a Learner,
    service: Service,
    address: String,
    store: PathBuf,
}

impl Learner {
    /// Writes the page list of `program` to `list`. `images` has the images of all trees.
    pub fn page_list(&self, program: &Program, images: &Path, list: &Path) -> anyhow::Result<()> {
        let store = self.work.join("store");
        fresh_store(images, &store)?;
        let mut server = self.serve(store, &[])?;
        server.start(program)?;
        let inodes = server.with_mount(program.tree, |root| Ok((paths(root)?, main_inode(root, program))))?;
        server.wait_learned()?;
        let actions = server.stop()?;
        let text = page_lines(&actions, &inodes.0, inodes.1)?;
        ensure!(!text.is_empty(), "the server learned nothing from a start of {}", program.name);
        let new = unfinished(list)?;
        fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
        finish(list)
    }

    /// Makes the store `folder` of a server that has learned `programs`.
    pub fn learned_store(&self, programs: &[&Program], images: &Path, folder: &Path) -> anyhow::Result<()> {
        fresh_store(images, folder)?;
        if programs.is_empty() {
            return Ok(());
        }
        // Worked on in place: the caller's stamp says whether it is whole.
        let mut server = self.serve(folder.to_path_buf(), &[])?;
        for _ in 0..STARTS {
            for program in programs {
                server.start(program).with_context(|| format!("while learning {}", program.name))?;
            }
            server.wait_learned()?;
        }
        server.stop()?;
        // The last runs may have changed actions when the server stopped: their bundles belong to
        // the store too.
        let mut server = self.serve(folder.to_path_buf(), &["--frozen"])?;
        let trees: BTreeSet<&str> = programs.iter().map(|program| program.tree).collect();
        for tree in trees {
            server.with_mount(tree, |root| fs::metadata(root).context("a mounted tree has a root"))?;
        }
        server.wait_learned()?;
        server.stop().map(drop)
    }

    fn serve(&self, store: PathBuf, options: &[&str]) -> anyhow::Result<Server<'_>> {
        fs::create_dir_all(&self.work).with_context(|| format!("cannot make {}", self.work.display()))?;
        let ready = self.work.join("serve.ready");
        remove(&ready)?;
        let mut command = Command::new(&self.runnel);
        command.arg("serve").arg(&store).args(["--listen", "127.0.0.1:0", "--ready-file"]).arg(&ready).args(options);
        let mut service = Service::start("serve", &mut command, &self.work)?;
        let address = service.wait_ready(DEADLINE, || ready_text(&ready))?;
        Ok(Server { learner: self, service, address, store })
    }
}

impl Server<'_> {
    /// One start of `program` in a mount of its own.
    fn start(&self, program: &Program) -> anyhow::Result<()> {
        self.with_mount(program.tree, |root| {
            let chroot = find_program("chroot").context("chroot is missing; apt-get install coreutils")?;
            // On one core, which is what the guest has: a Java machine chooses its garbage
            // collector by their number.
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", &first_core()?.to_string(), "sh", "-c", ENTER]).arg(root).arg(chroot);
            command.args(program.command);
            command.env_clear().envs(super::super::program::ENVIRONMENT).current_dir("/");
            let done = with_own_mounts(|| timed(program.name, &mut command, DEADLINE))?;
            let output = String::from_utf8_lossy(&done.output);
            let expected = program.expected;
            ensure!(output.contains(expected), "{} printed {output:?} without {expected:?}", program.name);
            Ok(())
        })
    }

    /// Mounts the image of `tree`, lets `work` use its root, and unmounts.
    fn with_mount<T>(&self, tree: &str, work: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let folder = &self.learner.work;
        let ready = folder.join("mount.ready");
        remove(&ready)?;
        let point = MountPoint::create(folder.join("root"))?;
        let mut command = Command::new(&self.learner.runnel);
        command.arg("mount").arg(format!("runnel://{}/{tree}", self.address)).arg(point.path());
        // The server learns from each start only if it is asked.
        command.env("RUNNEL_CACHE", "none");
        command.args(["--foreground", "--ready-file"]).arg(&ready);
        let mut service = Service::start("mount", &mut command, folder)?;
        service.wait_ready(DEADLINE, || ready.exists().then_some(()))?;
        let done = work(point.path());
        try_tool(Command::new(&self.learner.runnel).arg("umount").arg(point.path()));
        let ended = service.wait_end(DEADLINE)?;
        let done = done?;
        ensure!(ended, "the mount of {tree} did not end{}", service.log_tail());
        Ok(done)
    }

    /// What is written down: files with their sizes and times.
    fn learned(&self) -> anyhow::Result<Vec<(PathBuf, u64, i64, i64)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.store.join("learned")).into_iter().flatten() {
            let entry = entry?;
            // It may be replaced just now: then the next look sees the new one.
            let Ok(data) = entry.metadata() else { continue };
            found.push((entry.path(), data.len(), data.mtime(), data.mtime_nsec()));
        }
        found.sort();
        Ok(found)
    }

    /// Waits until the server writes nothing any more and makes no bundle.
    fn wait_learned(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + LEARNED_DEADLINE;
        let mut last = (self.learned()?, Instant::now());
        loop {
            let now = self.learned()?;
            if now != last.0 {
                last = (now, Instant::now());
            }
            let waiting = self.bundles_waiting();
            if last.1.elapsed() >= SETTLED && waiting == 0 {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the server still makes {waiting} bundles after {LEARNED_DEADLINE:?}");
            // Looks again soon; an error if the server has ended meanwhile.
            let next = Instant::now() + Duration::from_millis(100);
            self.service.wait_ready(DEADLINE, || (Instant::now() >= next).then_some(()))?;
        }
    }

    fn bundles_waiting(&self) -> u64 {
        let mut command = Command::new(&self.learner.runnel);
        let output = tool(command.args(["status", "--json"]).arg(format!("runnel://{}", self.address)));
        let status: Value = output.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        status["bundles_waiting"].as_u64().unwrap_or(0)
    }

    /// Ends the server, which saves what it learned; returns that.
    fn stop(self) -> anyhow::Result<Vec<ActionSet>> {
        let learned = self.store.join("learned");
        self.service.stop()?;
        let mut sets = Vec::new();
        for entry in fs::read_dir(&learned).into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "actions") {
                continue;
            }
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let set = profile::decode(&bytes, &profile::Limits::default());
            sets.push(set.with_context(|| format!("{} holds no learned actions", path.display()))?);
        }
        Ok(sets)
    }
}

/// The first core that this process may use.
fn first_core() -> anyhow::Result<usize> {
    let allowed = sched_getaffinity(None).context("cannot ask for the cores of this process")?;
    (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).context("this process has no core")
}

/// The path of every regular file below `root`, by its inode number.
fn paths(root: &Path) -> anyhow::Result<HashMap<u64, PathBuf>> {
    let mut found = HashMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() {
                let inode = entry.metadata()?.ino();
                found.insert(inode, Path::new("/").join(path.strip_prefix(root).unwrap_or(&path)));
            }
        }
    }
    Ok(found)
}

/// The inode of the program's own file.
fn main_inode(root: &Path, program: &Program) -> Option<u64> {
    let path = root.join(program.command[0].trim_start_matches('/'));
    fs::metadata(path).ok().map(|found| found.ino())
}

/// The lines of a page list. An action is what one process touched: first comes that of the program
/// itself, then those of the processes it started, as they ended, which is the order in which
/// actions are numbered.
fn page_lines(sets: &[ActionSet], paths: &HashMap<u64, PathBuf>, main: Option<u64>) -> anyhow::Result<String> {
    let mut actions: Vec<_> = sets.iter().flat_map(ActionSet::iter).collect();
    actions.sort_by_key(|action| Some(u64::from(action.first_page().inode.0)) != main);
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    for page in actions.iter().flat_map(|action| &action.pages) {
        if !seen.insert(*page) {
            continue;
        }
        let InodeId(inode) = page.inode;
        let path = paths.get(&u64::from(inode));
        let path =
            path.with_context(|| format!("a page of inode {inode}, which is no file of the tree, was learned"))?;
        writeln!(text, "{} {}", page.index, path.display())?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use profile::MergeConfig;
    use units::{ImageId, PageId};

    use super::*;

    #[test]
    fn the_program_comes_first_and_no_page_twice() -> anyhow::Result<()> {
        let mut set = ActionSet::new(ImageId([0; 32]));
        let page = |inode, index| PageId::new(InodeId(inode), index);
        // A child ends before its parent.
        set.learn(&[page(7, 0), page(9, 2)], &MergeConfig::default());
        set.learn(&[page(5, 0), page(5, 3), page(9, 2)], &MergeConfig::default());
        let paths = HashMap::from([(5, "/bin/parent".into()), (7, "/bin/child".into()), (9, "/lib/shared".into())]);
        let text = page_lines(&[set], &paths, Some(5))?;
        assert_eq!(text, "0 /bin/parent\n3 /bin/parent\n2 /lib/shared\n0 /bin/child\n");
        Ok(())
    }
}
