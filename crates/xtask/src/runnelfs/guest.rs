//! What runs in the guest, as its first program: mounts every image, compares it with the source,
//! then mutants of some. It says on the console what it found.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::OFlags;
use rustix::system::{RebootCommand, delete_module, finit_module, reboot};
use serde::{Deserialize, Serialize};

use super::faults;
use super::manifest::{Entry, Order, difference, read};
use super::meter::{self, Measured};
use super::mutate::{self, Kind};

/// How lines begin that the host looks for.
pub const MARK: &str = "@runnelfs ";

/// The manifest of the images in its folder.
pub const MANIFEST: &str = "manifest.json";

/// Where images are mounted.
pub const TARGET: &str = "/mnt";

/// An image that holds another one, the name of that, and where the outer one is mounted.
pub const NESTED: &str = "nested.rnl";
pub const INNER: &str = "inner.rnl";
pub const OUTER: &str = "/outer";

/// Where mutants are written.
const MUTANT: &str = "/tmp/mutant.rnl";

/// Features of an image (docs/formats/image.md).
const FEATURE_DICTIONARIES: u8 = 2;
const FEATURE_DEFLATE: u8 = 16;

/// Threads that read an image at the same time.
const READERS: usize = 4;

/// What the host wants.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Modules in the order in which they are loaded.
    pub modules: Vec<String>,
    /// Images, each in a folder with the manifest of its tree.
    pub images: Vec<String>,
    /// Images that must be refused, each with the error and a part of what the kernel says.
    pub refused: Vec<(String, i32, String)>,
    /// Those of which mutants are made, all in one folder.
    pub bases: Vec<String>,
    /// Mutants of all of them together.
    pub mutants: u64,
    /// The first mutant's number.
    pub seed: u64,
    /// Images that are measured; then nothing else is done.
    pub measured: Vec<Measured>,
}

/// Runs the plan and powers off.
pub fn run() -> anyhow::Result<()> {
    if let Err(error) = work() {
        println!("{MARK}FAIL {error:#}");
    }
    rustix::fs::sync();
    reboot(RebootCommand::PowerOff)?;
    Ok(())
}

fn work() -> anyhow::Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")] {
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>).with_context(|| target.to_string())?;
    }
    let plan: Plan = serde_json::from_slice(&fs::read("/plan.json")?)?;
    for module in &plan.modules {
        let file = File::open(Path::new("/modules").join(module))?;
        finit_module(&file, c"", 0).with_context(|| format!("cannot load {module}"))?;
    }
    if !plan.measured.is_empty() {
        meter::run(&plan.measured)?;
        println!("{MARK}done");
        return Ok(());
    }
    for image in &plan.images {
        report(image, whole(&Path::new("/").join(image)));
    }
    for (image, error, words) in &plan.refused {
        report(image, refused(&Path::new("/").join(image), nix::Error::from_raw(*error), words));
    }
    let first = Path::new("/").join(&plan.images[0]);
    report("hashes in other ways", hashes(&plan, &first));
    report("a device", device(&source_of(&first)?));
    report("options", options(&first));
    report("an image in an image", nested(&source_of(&first)?));
    report_if_any("allocations", faults::allocations(&plan));
    mutants(&plan)?;
    report_if_any("lost memory", faults::leaks());
    println!("{MARK}done");
    Ok(())
}

/// The manifest of the tree of an image.
fn source_of(image: &Path) -> anyhow::Result<Vec<Entry>> {
    Ok(serde_json::from_slice(&fs::read(image.with_file_name(MANIFEST))?)?)
}

fn report(name: &str, result: anyhow::Result<String>) {
    match result {
        Ok(text) => println!("{MARK}ok {name}: {text}"),
        Err(error) => println!("{MARK}FAIL {name}: {error:#}"),
    }
}

/// Of what not every kernel can do.
fn report_if_any(name: &str, result: anyhow::Result<Option<String>>) {
    if let Some(result) = result.transpose() {
        report(name, result);
    }
}

/// A mount that ends with it, at this path.
pub struct Mount(&'static str);

impl Mount {
    pub fn new(image: &Path, options: &str) -> Result<Mount, nix::Error> {
        Mount::on(TARGET, image, options)
    }

    fn on(target: &'static str, image: &Path, options: &str) -> Result<Mount, nix::Error> {
        let options = CString::new(options).unwrap_or_default();
        mount(Some(image), target, Some("runnelfs"), MsFlags::empty(), Some(options.as_c_str()))?;
        Ok(Mount(target))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = umount2(self.0, MntFlags::empty()) {
            println!("{MARK}FAIL cannot unmount: {error}");
        }
    }
}

pub fn forget_pages() -> anyhow::Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot empty the page cache")
}

/// Compares what is mounted with the source.
fn compare(source: &[Entry], order: Order) -> anyhow::Result<()> {
    let found = read(Path::new(TARGET), order).context("cannot read it")?;
    match difference(source, &found, false) {
        None => Ok(()),
        Some(text) => bail!("{text}"),
    }
}

/// Mounts an image and reads it forward, backward, and with several threads; or sees that it is
/// refused if it uses what this kernel or the module lacks.
fn whole(image: &Path) -> anyhow::Result<String> {
    let source = &source_of(image)?;
    let features = fs::read(image)?[12];
    let old = !kernel_is_at_least(6, 12)?;
    if features & FEATURE_DEFLATE != 0 || (old && features & FEATURE_DICTIONARIES != 0) {
        return match Mount::new(image, "") {
            Err(nix::Error::EOPNOTSUPP) => Ok(format!("refused as it must be, features {features}")),
            Err(error) => bail!("refused with {error}"),
            Ok(_) => bail!("it was mounted in spite of its features {features}"),
        };
    }
    let _mount = Mount::new(image, "").context("cannot mount it")?;
    for order in [Order::Forward, Order::Backward] {
        compare(source, order).with_context(|| format!("{order:?}"))?;
        forget_pages()?;
    }
    compare_with_others(source)?;
    Ok(format!("{} paths are as in the source, features {features}", source.len()))
}

/// Compares what is mounted with the source, from several threads at once.
fn compare_with_others(source: &[Entry]) -> anyhow::Result<()> {
    let orders = [Order::Forward, Order::Backward].into_iter().cycle().take(READERS);
    thread::scope(|scope| {
        let readers: Vec<_> = orders.map(|order| scope.spawn(move || compare(source, order))).collect();
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().unwrap_or_else(|_| bail!("a reader panicked")).context("with others"))
    })
}

/// An image that lies in another one, of small blocks: whoever decodes for the inner mount waits
/// for the outer one.
fn nested(source: &[Entry]) -> anyhow::Result<String> {
    let _outer = Mount::on(OUTER, &Path::new("/").join(NESTED), "").context("cannot mount the outer one")?;
    let _inner = Mount::new(&Path::new(OUTER).join(INNER), "").context("cannot mount the inner one")?;
    compare_with_others(source)?;
    Ok(format!("{} paths are as in the source", source.len()))
}

/// A mount of an image that was written wrongly, or not to its end, fails as it should, and leaves
/// one line in the kernel's log.
fn refused(image: &Path, expected: nix::Error, words: &str) -> anyhow::Result<String> {
    let mut log = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/dev/kmsg")?;
    log.seek(SeekFrom::End(0))?;
    match Mount::new(image, "") {
        Err(error) if error == expected => {}
        Err(error) => bail!("refused with {error} instead of {expected}"),
        Ok(_) => bail!("it was mounted"),
    }
    let (mut said, mut record) = (Vec::new(), [0; 8192]);
    // A read gives one record, and an error at the end.
    while let Ok(length) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..length]).into_owned();
        said.extend(text.split_once("runnelfs: ").map(|(_, line)| line.trim_end().to_string()));
    }
    ensure!(said.len() == 1 && said[0].contains(words), "the kernel says {said:?}, not {words:?} alone");
    Ok(format!("refused with {expected}: {}", said[0]))
}

fn kernel_is_at_least(major: u32, minor: u32) -> anyhow::Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    Ok((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor))
}

/// The module mounts an image and reads it with each number of chunks that it hashes side by side.
fn hashes(plan: &Plan, image: &Path) -> anyhow::Result<String> {
    let name = plan.modules.last().context("there is no module")?;
    let used = || fs::read_to_string("/sys/module/runnelfs/parameters/hash_lanes");
    let mut ways = vec![used()?.trim().to_string()];
    let most: u32 = ways[0].parse()?;
    ensure!(most >= 4, "the processor has vectors, and they are not used");
    for lanes in [4, 1, 8] {
        let lanes = most.min(lanes);
        delete_module(c"runnelfs", 0).context("cannot unload the module")?;
        let wanted = CString::new(format!("hash_lanes={lanes}"))?;
        finit_module(&File::open(Path::new("/modules").join(name))?, &wanted, 0)?;
        ensure!(used()?.trim() == lanes.to_string(), "{} instead of {lanes} side by side", used()?.trim());
        let _mount = Mount::new(image, "").context("cannot mount it")?;
        compare(&source_of(image)?, Order::Forward).with_context(|| format!("{lanes} side by side"))?;
        ways.push(lanes.to_string());
    }
    Ok(format!("{} side by side", ways.join(", ")))
}

/// The first disk holds an image.
fn device(source: &[Entry]) -> anyhow::Result<String> {
    let _mount = Mount::new(Path::new("/dev/vda"), "").context("cannot mount /dev/vda")?;
    compare(source, Order::Forward)?;
    Ok("it is as in the source".to_string())
}

/// Options of mounts, and what a mount says about itself.
fn options(image: &Path) -> anyhow::Result<String> {
    let id = blake3::hash(&fs::read(image)?[..4096]).to_hex().to_string();
    let other = format!("{}{}", if id.starts_with('0') { '1' } else { '0' }, &id[1..]);
    for wrong in [format!("id={other}"), "id=12".to_string(), "nonsense".to_string()] {
        ensure!(Mount::new(image, &wrong).is_err(), "it was mounted with {wrong}");
    }
    for (given, shown) in [(String::new(), false), (format!("id={id}"), true)] {
        let _mount = Mount::new(image, &given).with_context(|| format!("with {given:?}"))?;
        let mounts = fs::read_to_string("/proc/mounts")?;
        let line = mounts.lines().find(|line| line.contains(TARGET)).context("it is not listed")?;
        ensure!(line.contains("ro,") && line.contains(&format!("id={id}")) == shown, "{line}");
    }
    let _mount = Mount::new(image, &format!("id={id}")).context("with its id")?;
    let remounted = mount(None::<&str>, TARGET, None::<&str>, MsFlags::MS_REMOUNT, None::<&str>);
    ensure!(remounted == Err(nix::Error::EROFS), "remounting for writing gave {remounted:?}");
    ensure!(fs::write(Path::new(TARGET).join("new"), "").is_err(), "it was written to");
    let space = rustix::fs::statfs(TARGET)?;
    ensure!(space.f_namelen == 255 && space.f_files > 1, "statfs says {space:?}");
    Ok("as documented".to_string())
}

/// Mounts mutants and reads all that can be read.
fn mutants(plan: &Plan) -> anyhow::Result<()> {
    let paths = plan.bases.iter().map(|name| Path::new("/").join(name));
    let bases: Vec<_> = paths.map(|path| fs::read(&path).map(|bytes| (path, bytes))).collect::<Result<_, _>>()?;
    let (first, _) = bases.first().context("there is no image to make mutants of")?;
    let source = source_of(first)?;
    let mut counts: BTreeMap<String, [u32; 2]> = BTreeMap::new();
    for seed in plan.seed..plan.seed + plan.mutants {
        let (path, bytes) = &bases[(seed % bases.len() as u64) as usize];
        let (kind, mutant) = mutate::mutant(bytes, seed);
        fs::write(MUTANT, mutant)?;
        let what = || format!("mutant {seed} of {}, {kind:?}", path.display());
        // Known to the host when the kernel dies.
        fs::write("/dev/kmsg", format!("<6>{}", what()))?;
        match Mount::new(Path::new(MUTANT), "") {
            Err(_) => counts.entry(format!("{kind:?}")).or_default()[1] += 1,
            Ok(_mount) => {
                counts.entry(format!("{kind:?}")).or_default()[0] += 1;
                if let Err(error) = read_mutant(&source, kind) {
                    println!("{MARK}FAIL {}: {error:#}", what());
                }
            }
        }
        if seed % 100 == 99 {
            forget_pages()?;
        }
    }
    println!("{MARK}ok mutants, mounted and refused: {counts:?}");
    Ok(())
}

fn read_mutant(source: &[Entry], kind: Kind) -> anyhow::Result<()> {
    let found = match (read(Path::new(TARGET), Order::Forward), kind.is_noticed()) {
        (Ok(found), true) => found,
        (Err(error), true) => return Err(error).context("cannot read it"),
        // Another image with right hashes: what it holds is its own.
        (_, false) => return Ok(()),
    };
    difference(source, &found, true).map_or(Ok(()), |text| bail!("{text}"))
}
