//! One guest: QEMU with a clock that counts instructions, its console, and a watchdog.
//!
//! With `-icount shift=0,sleep=off` an instruction takes a nanosecond of the guest's clock and idle
//! time is skipped, so that what is measured depends on the work done and on the modelled link, not
//! on the speed or load of the host. Lines of the console that begin with [`LINE_MARK`] are events,
//! the rest is the log. [`super::job`] starts guests one after the other until a slice of the plan
//! is done.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kernel::console_lines;

use super::record::{Event, LINE_MARK};
use super::world::World;
use crate::interrupt;
use crate::process::find_program;

/// Memory of a guest, MiB, besides what the kernel needs to know of the disks: enough for the page
/// caches of device and server, and for what both write to memory.
const MEMORY_MIB: u64 = 1536;

/// Bytes of a disk in the address space for each byte that the kernel keeps about it.
const DISK_BYTES_PER_BYTE: u64 = 64;

/// Time of the host without a line on the console after which a guest counts as hung. The longest
/// row between two lines, a compiler over a modem with losses, takes about a minute; on a host that
/// has much else to do, ten times as long.
const SILENCE_LIMIT: Duration = Duration::from_secs(900);

/// How often the wait for the console looks for an interrupt.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Lines of the log that tell why a guest ended.
const TAIL_LINES: usize = 20;

/// Longest line that is taken from a console. A series of the latencies of ten thousand pages is a
/// tenth of it.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What the kernel is told. Mitigations off: the guest's clock counts instructions, so a mitigation
/// is a pure distortion.
const COMMAND_LINE: &str =
    "console=ttyS0 quiet mitigations=off random.trust_cpu=on audit=0 selinux=0 apparmor=0 nokaslr panic=-1";

/// Takes the events of a guest; an error ends the guest.
pub type OnEvent<'a> = dyn FnMut(Event) -> anyhow::Result<()> + 'a;

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It tried every row and powered off.
    Done,
    /// It ended or hung before; why, with the end of its log.
    Died(String),
}

/// Kills the guest when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a guest on `plan` and hands its events to `on_event` until it ends. `folder` holds what
/// the guest reads from the host, and `console.log`.
pub fn run(world: &World, plan: &str, folder: &Path, on_event: &mut OnEvent<'_>) -> anyhow::Result<End> {
    let share = folder.join("share");
    fs::create_dir_all(&share).with_context(|| format!("cannot make {}", share.display()))?;
    for (binary, name) in [(&world.binaries.runnel, "runnel"), (&world.binaries.bench, "runnel-bench")] {
        fs::copy(binary, share.join(name)).with_context(|| format!("cannot copy {name} for the guest"))?;
    }
    fs::write(share.join("plan"), plan).context("cannot write the plan for the guest")?;
    let log_path = folder.join("console.log");
    let mut log = File::options().create(true).append(true).open(&log_path);
    let log = log.as_mut().map_err(|error| anyhow::anyhow!("cannot write {}: {error}", log_path.display()))?;

    let mut command = command(world, &share)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?).process_group(0);
    let mut running = Running(command.spawn().context("cannot start qemu-system-x86_64")?);
    let console = running.0.stdout.take().context("the guest has a console")?;
    let lines = console_lines(console, LINE_BYTES_MAX).context("cannot start the thread of a console")?;
    let reason = listen(&lines, log, on_event)?;
    let Some(reason) = reason else { return Ok(End::Done) };
    drop(running);
    Ok(End::Died(format!("{reason}; the end of {}:\n{}", log_path.display(), tail(&log_path))))
}

/// Handles lines until the guest says that it is done; else returns why it will not.
fn listen(lines: &Receiver<Vec<u8>>, log: &mut File, on_event: &mut OnEvent<'_>) -> anyhow::Result<Option<String>> {
    let mut heard = Instant::now();
    loop {
        interrupt::check()?;
        match lines.recv_timeout(LOOK_INTERVAL) {
            Ok(line) => {
                heard = Instant::now();
                let text = String::from_utf8_lossy(&line);
                match event(&text) {
                    Some(Ok(Event::Done)) => {
                        on_event(Event::Done)?;
                        return Ok(None);
                    }
                    Some(Ok(event)) => on_event(event)?,
                    // A line that the kernel wrote into: its row will lack a run, which the caller
                    // sees.
                    Some(Err(_)) | None => writeln!(log, "{}", text.trim_end()).context("cannot write the log")?,
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(Some("the guest ended too early".to_string())),
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= SILENCE_LIMIT => {
                return Ok(Some(format!("the guest said nothing for {SILENCE_LIMIT:?} and was killed")));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// The event of a console line, wherever on the line it begins: the kernel may have left something
/// before it.
fn event(line: &str) -> Option<serde_json::Result<Event>> {
    let at = line.find(LINE_MARK)?;
    Some(serde_json::from_str(line[at + LINE_MARK.len()..].trim()))
}

fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// The QEMU command of a guest.
fn command(world: &World, share: &Path) -> anyhow::Result<Command> {
    let qemu = find_program("qemu-system-x86_64");
    let qemu = qemu.context("qemu-system-x86_64 is missing; apt-get install qemu-system-x86")?;
    let disks = [&world.content, &world.guest].map(PathBuf::as_path);
    let sizes = disks.map(|path| fs::metadata(path).with_context(|| format!("cannot find {}", path.display())));
    let [content, guest] = sizes;
    let sizes = [content?.len(), guest?.len()];
    ensure!(disks.iter().all(|path| !path.to_string_lossy().contains(',')), "QEMU takes no commas in paths");
    let memory = MEMORY_MIB + (((sizes[0] + sizes[1]) / DISK_BYTES_PER_BYTE) >> 20);
    let address_space = (memory << 20) + sizes[0] + sizes[1] + (1 << 30);

    let mut command = Command::new(qemu);
    command.args(["-M", "q35,nvdimm=on", "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]);
    // Without the string instructions that QEMU emulates slowly, and counts as one instruction
    // however long they are.
    command.args(["-cpu", "max,-erms,-fsrm", "-smp", "1", "-m"]);
    command.arg(format!("{memory},slots=4,maxmem={}M", (address_space >> 20).next_multiple_of(1024)));
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"]);
    command.arg("-kernel").arg(&world.kernel.image).arg("-initrd").arg(&world.kernel.initramfs);
    command.args(["-append", COMMAND_LINE]);
    for (index, (path, size)) in disks.iter().zip(sizes).enumerate() {
        // Not shared: what the guest writes is gone with it, and several guests use the same files.
        let object = format!("memory-backend-file,id=m{index},mem-path={},size={size},share=off", path.display());
        command.arg("-object").arg(object);
        command.arg("-device").arg(format!("nvdimm,id=nv{index},memdev=m{index}"));
    }
    let share = share.display();
    command.arg("-fsdev").arg(format!("local,id=host,path={share},security_model=none,readonly=on"));
    command.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_behind_what_the_kernel_wrote() {
        let line = "[  1.5] veth: link up@lab {\"event\":\"up\",\"kernel\":\"6.12\"}\r\n";
        assert_eq!(event(line).and_then(Result::ok), Some(Event::Up { kernel: "6.12".into() }));
        assert!(event("[  1.5] veth: link up\n").is_none());
        assert!(event("@lab {\"event\":\"up\",\"ker[ 1.5]nel\"\n").is_some_and(|event| event.is_err()));
    }

    #[test]
    fn a_console_is_listened_to_until_done_or_its_end() -> anyhow::Result<()> {
        let mut log = tempfile::tempfile()?;
        let mut events = Vec::new();
        let up = "@lab {\"event\":\"up\",\"kernel\":\"6.12\"}\n";
        let text = format!("booting\n{up}@lab {{\"event\":\"done\"}}\nnobody reads this\n");
        let mut hear = |text: String, log: &mut File| {
            listen(&console_lines(std::io::Cursor::new(text), LINE_BYTES_MAX)?, log, &mut |event| {
                events.push(event);
                Ok(())
            })
        };
        assert_eq!(hear(text, &mut log)?, None);
        let reason = hear(up.to_string(), &mut log)?;
        assert_eq!(events.len(), 3);
        assert!(reason.is_some_and(|reason| reason.contains("too early")));
        std::io::Seek::rewind(&mut log)?;
        let mut written = String::new();
        std::io::Read::read_to_string(&mut log, &mut written)?;
        assert_eq!(written, "booting\n", "events are not logged");
        Ok(())
    }

    #[test]
    fn the_log_ends_with_its_last_lines() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("log");
        fs::write(&path, (0..100).map(|line| format!("{line}\n")).collect::<String>())?;
        let tail = tail(&path);
        assert!(tail.starts_with("80\n") && tail.ends_with("99"), "{tail}");
        Ok(())
    }
}
