//! A process that commits on the real disk is killed; what it had acknowledged is there.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use units::{Rng, SplitMix64};

use super::*;

/// Where the child finds the folder.
const FOLDER: &str = "RUNNEL_VOLUME_KILL_FOLDER";

/// Writers in the child.
const WRITERS: u64 = 3;

/// What writer `w` does in round `n`: a file that comes under one name and goes on under another,
/// and a line in a log that is long enough to cross blocks.
fn round(w: u64, n: u64) -> Transaction {
    let (new, last) = (format!("{w}/new"), format!("{w}/{n}"));
    let line = line(w, n);
    transaction(vec![
        create(&new),
        write(&new, None, 0, line.as_bytes()),
        rename(&new, &last),
        Operation::Append { path: path(&format!("{w}/log")), base: None, bytes: line.into_bytes() },
    ])
}

fn line(w: u64, n: u64) -> String {
    format!("{w} {n} {}\n", "x".repeat((n % 50) as usize * 40))
}

/// The child; as a test of its own it does nothing.
#[test]
fn kill_child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let volume = Volume::open(Path::new(&folder), None, SMALL).unwrap();
    std::thread::scope(|scope| {
        for w in 0..WRITERS {
            let volume = &volume;
            scope.spawn(move || {
                let made = Operation::MakeFolder { path: path(&w.to_string()), mode: 0o755, owner: None };
                volume.commit(transaction(vec![made, create(&format!("{w}/log"))])).unwrap();
                // Ends by being killed, or when nobody listens.
                for n in 0.. {
                    volume.commit(round(w, n)).unwrap();
                    if writeln!(std::io::stdout().lock(), "\nack {w} {n}").is_err() {
                        break;
                    }
                }
            });
        }
    });
}

#[test]
fn sim_a_killed_server_finds_what_it_acknowledged() {
    let mut rng = SplitMix64(11);
    let mut recovered = 0;
    for _ in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::kill::kill_child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = [None; WRITERS as usize];
        let mut left = 1 + rng.below(300);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in &mut lines {
            let line = line.unwrap();
            let mut words = line.split(' ');
            if words.next() == Some("ack") {
                let w: usize = words.next().unwrap().parse().unwrap();
                acknowledged[w] = Some(words.next().unwrap().parse::<u64>().unwrap());
                left -= 1;
                if left == 0 {
                    break;
                }
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had printed besides.
        for line in lines.map_while(Result::ok) {
            if let Some((w, n)) = line.strip_prefix("ack ").and_then(|line| line.split_once(' ')) {
                // The last line may be cut.
                if let (Ok(w), Ok(n)) = (w.parse::<usize>(), n.parse::<u64>()) {
                    acknowledged[w] = acknowledged[w].max(Some(n));
                }
            }
        }
        let volume = Volume::open(folder.path(), None, SMALL).unwrap();
        // None if it was killed just after the journal had been emptied.
        recovered += volume.recovered().groups;
        for (w, last) in acknowledged.into_iter().enumerate() {
            check(&volume, w as u64, last);
        }
    }
    assert!(recovered > 0);
}

/// All rounds up to `last` are there, perhaps one more, and no part of another.
fn check(volume: &Volume, w: u64, last: Option<u64>) {
    let Ok((_, log)) = content(volume, &path(&format!("{w}/log"))) else {
        assert_eq!(last, None);
        return;
    };
    let rounds = log.iter().filter(|byte| **byte == b'\n').count() as u64;
    let promised = last.map_or(0, |last| last + 1);
    assert!(rounds == promised || rounds == promised + 1, "writer {w}: {rounds} rounds, {promised} acknowledged");
    let expected: String = (0..rounds).map(|n| line(w, n)).collect();
    assert_eq!(log, expected.as_bytes());
    for n in 0..rounds {
        assert_eq!(content(volume, &path(&format!("{w}/{n}"))).unwrap().1, line(w, n).as_bytes());
    }
    let listed = volume.list(&path(&w.to_string()), b"", 4096).unwrap().entries.len() as u64;
    assert_eq!(listed, rounds + 1);
}
