//! A wrapper, its program and their group, as processes.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use host::signals::Signals;
use nix::sys::signal::{Signal, raise};

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("wrapper") => wrapper(),
        Some("reader") => reader(),
        _ => {
            signals_are_read_and_not_delivered();
            each_signal_reaches_the_program_once();
        }
    }
}

/// Starts this program again, in a process group of its own.
fn start(role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.arg(role).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started")
}

/// Tells each signal that it gets, by number and code; SIGTERM ends it, and so does the end of
/// standard input.
const PROGRAM: &str = r#"
import os, signal, sys, threading
wanted = {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGALRM, signal.SIGCONT, signal.SIGRTMIN + 3}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(9)), daemon=True).start()
print("ready", flush=True)
while True:
    got = signal.sigwaitinfo(wanted)
    print(got.si_signo, got.si_code, flush=True)
    if got.si_signo == signal.SIGTERM: os._exit(3)
"#;

fn wrapper() {
    let passing = Signals::of_wrapper().expect("blocked").pass_on().expect("passing");
    let mut child = Command::new("python3").args(["-c", PROGRAM]).spawn().expect("started");
    passing.to().send(child.id()).expect("passing");
    let status = child.wait().expect("waited");
    passing.stop().expect("stopped").restore();
    println!("exit {}", status.code().expect("a code"));
}

fn each_signal_reaches_the_program_once() {
    if Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: no python3");
        return;
    }
    let mut wrapper = start("wrapper");
    let pid = wrapper.id() as i32;
    let mut lines = BufReader::new(wrapper.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("told").expect("text");
    assert_eq!(next(), "ready");
    let real_time = libc::SIGRTMIN() + 3;
    let kill = |to: i32, signal: i32| {
        // SAFETY: sends a signal, by numbers only.
        assert_eq!(unsafe { libc::kill(to, signal) }, 0);
    };
    // To all of the group: the program gets it by itself, and what it gets next is another one.
    for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGALRM, libc::SIGCONT] {
        kill(-pid, signal);
        assert_eq!(next(), format!("{signal} 0"));
        kill(pid, real_time);
        assert_eq!(next(), format!("{real_time} 0"));
    }
    // To the wrapper alone: passed on.
    for signal in [libc::SIGUSR1, libc::SIGINT, libc::SIGALRM, libc::SIGCONT] {
        kill(pid, signal);
        assert_eq!(next(), format!("{signal} 0"));
    }
    // A queued one comes as one.
    let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(7) };
    // SAFETY: sends a signal with a number.
    assert_eq!(unsafe { libc::sigqueue(pid, real_time, value) }, 0);
    assert_eq!(next(), format!("{real_time} {}", libc::SI_QUEUE));
    kill(pid, libc::SIGTERM);
    assert_eq!(next(), "15 0");
    assert_eq!(next(), "exit 3");
    assert!(wrapper.wait().expect("waited").success());
}

fn reader() {
    let signals = Signals::block([libc::SIGUSR2]).expect("blocked");
    assert_eq!(signals.next().expect("readable"), None);
    raise(Signal::SIGUSR2).expect("raised");
    assert_eq!(signals.next().expect("readable"), Some(libc::SIGUSR2));
    raise(Signal::SIGUSR2).expect("raised");
    // What is not read does not end us either.
    signals.restore();
    let wrapper = Signals::of_wrapper().expect("blocked");
    let limit = rustix::process::Rlimit { current: Some(0), maximum: None };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).expect("set");
    let mut file = tempfile::tempfile().expect("made");
    assert_eq!(file.write(b"x").expect_err("a limit").kind(), std::io::ErrorKind::FileTooLarge);
    assert!(!wrapper.mask_before().contains(Signal::SIGXFSZ));
}

fn signals_are_read_and_not_delivered() {
    assert!(start("reader").wait().expect("waited").success());
}
