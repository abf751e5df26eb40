//! The command that says whether a new version works.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use units::ImageId;

/// How often it is looked whether it has ended, and whether somebody wants it to end.
const STEP: Duration = Duration::from_millis(20);

/// A variable of its environment.
pub type Variable = (&'static str, OsString);

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Good,
    /// It does not, and this is why.
    Bad(String),
    /// It was stopped before it said anything.
    Stopped,
}

/// A thread that starts health commands: with the priority of programs, which a process that was
/// made idle cannot give back. Made before that.
pub struct Checker {
    images: Sender<ImageId>,
    answers: Receiver<io::Result<Health>>,
}

impl Checker {
    /// Runs `command` with the shell and these variables. It fails after `limit`, and ends when
    /// `is_stopped` says so.
    pub fn start(
        command: &str,
        environment: Vec<Variable>,
        limit: Duration,
        is_stopped: impl Fn() -> bool + Send + 'static,
    ) -> Checker {
        let (images, wanted) = channel();
        let (answer, answers) = channel();
        let command = command.to_string();
        // It ends with the process.
        std::thread::spawn(move || {
            for image in wanted {
                let _ = answer.send(check(&command, &environment, image, limit, &is_stopped));
            }
        });
        Checker { images, answers }
    }

    /// Checks a version.
    ///
    /// # Errors
    /// The shell cannot be started.
    pub fn check(&self, image: ImageId) -> io::Result<Health> {
        let gone = || io::Error::other("the thread that checks has ended");
        self.images.send(image).map_err(|_| gone())?;
        self.answers.recv().map_err(|_| gone())?
    }
}

fn check(
    command: &str,
    environment: &[Variable],
    image: ImageId,
    limit: Duration,
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<Health> {
    let group = Group::start()?;
    let mut child = Command::new("sh")
        .args(["-c", command])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("RUNNEL_IMAGE", image.to_string())
        .stdin(Stdio::null())
        // Standard output is for the result.
        .stdout(io::stderr())
        // All that it starts ends with it.
        .process_group(group.leader.id() as i32)
        .spawn()?;
    // Without it, there is no end that a clock can tell.
    let until = Instant::now().checked_add(limit);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let outcome = match until.is_some_and(|until| Instant::now() >= until) {
            _ if is_stopped() => Health::Stopped,
            true => Health::Bad(format!("the health command did not end in {} s", limit.as_secs())),
            false => {
                // No descriptor that old kernels have tells its end.
                std::thread::sleep(STEP);
                continue;
            }
        };
        let _ = kill_process_group(Pid::from_child(&group.leader), Signal::KILL);
        child.wait()?;
        return Ok(outcome);
    };
    Ok(match status.success() {
        true => Health::Good,
        false => Health::Bad(format!("the health command failed: {status}")),
    })
}

/// The process group of a health command. Its leader ends all of it when this process is killed.
struct Group {
    leader: Child,
}

impl Group {
    fn start() -> io::Result<Group> {
        // Its input ends with this process, the only one that has the other side.
        let watch = ["-c", "read -r line; kill -KILL 0"];
        let mut leader = Command::new("sh");
        leader.args(watch).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Group { leader: leader.spawn()? })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // By itself: what a command leaves behind that succeeded, as a service, runs on.
        let _ = self.leader.kill();
        let _ = self.leader.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(command: &str, limit: Duration, is_stopped: bool) -> Health {
        let name = ("RUNNEL_NAME", "runnel://h/a b$(exit 3)".into());
        let checker = Checker::start(command, vec![name], limit, move || is_stopped);
        checker.check(ImageId([0xab; 32])).expect("there is a shell")
    }

    #[test]
    fn a_version_works_if_its_command_succeeds_in_time() {
        let long = Duration::from_secs(600);
        assert_eq!(health("test \"$RUNNEL_NAME\" = 'runnel://h/a b$(exit 3)'", long, false), Health::Good);
        assert_eq!(health(&format!("test $RUNNEL_IMAGE = {}", "ab".repeat(32)), long, false), Health::Good);
        let Health::Bad(why) = health("exit 3", long, false) else { panic!("it failed") };
        assert!(why.contains('3'), "{why}");
        let Health::Bad(why) = health("kill -9 $$", long, false) else { panic!("it failed") };
        assert!(why.contains("signal: 9"), "{why}");
        // What it starts in the background ends as well: else the pipe of its output stays open.
        let Health::Bad(why) = health("sleep 600 & sleep 600", Duration::ZERO, false) else { panic!("it is late") };
        assert!(why.contains("did not end"), "{why}");
        assert_eq!(health("sleep 600", long, true), Health::Stopped);
        // Longer than a clock goes.
        assert_eq!(health("true", Duration::from_secs(u64::MAX), false), Health::Good);
    }
}
