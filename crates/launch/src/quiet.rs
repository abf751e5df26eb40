//! When a launch is over: the program has ended, or is at rest.
//!
//! A program is at rest when the processes of its tree use the processor for under a twentieth of
//! [`REST`] and none of them waits for a disk. /proc has both numbers, for programs of other users
//! too. The launch ends where the rest began. Launches with and without a prefetch are compared by
//! this time, so it need not be exact, only the same for both.

use std::collections::HashMap;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a program must rest.
const REST: Duration = Duration::from_secs(1);

/// Time between two looks: coarse enough to cost nothing (some 50 us each).
const LOOK: Duration = Duration::from_millis(100);

/// A launch that is not over by then counts as long.
const LONGEST: Duration = Duration::from_secs(60);

/// Waits until the tree below `root` rests or `ended` says something; how long that took since
/// `began`.
pub(crate) fn wait(root: u32, began: Instant, ended: &Receiver<()>) -> Duration {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    let rest_ticks = (REST.as_millis() as u64 * ticks_per_second / 1000 / 20).max(1);
    let mut busy_until = Instant::now();
    let mut ticks_before = 0;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return began.elapsed(),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = Instant::now();
        let tree = tree(root, &processes());
        if tree.ticks.saturating_sub(ticks_before) >= rest_ticks || tree.waits_for_disk {
            ticks_before = tree.ticks;
            busy_until = now;
        } else if now.duration_since(busy_until) >= REST {
            return busy_until.duration_since(began);
        }
        if began.elapsed() >= LONGEST {
            return LONGEST;
        }
    }
}

/// What /proc says of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    state: u8,
    /// Processor time of it and of the children it waited for, clock ticks.
    ticks: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tree {
    ticks: u64,
    waits_for_disk: bool,
}

fn processes() -> Vec<Process> {
    let Ok(names) = fs::read_dir("/proc") else { return Vec::new() };
    let ids = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)).collect()
}

/// Parses a line of /proc/PID/stat (proc_pid_stat(5)). The name stands in brackets and may hold
/// anything.
fn parse(line: &str) -> Option<Process> {
    let (id, rest) = line.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(Process {
        id: id.parse().ok()?,
        parent: fields.get(1)?.parse().ok()?,
        state: *fields.first()?.as_bytes().first()?,
        ticks: (11..=14).filter_map(number).fold(0, u64::saturating_add),
    })
}

fn tree(root: u32, processes: &[Process]) -> Tree {
    let parents: HashMap<u32, u32> = processes.iter().map(|process| (process.id, process.parent)).collect();
    let is_below = |mut id: u32| {
        // A tree of processes is not deeper than their number, even if /proc changed while it was
        // read.
        for _ in 0..=processes.len() {
            if id == root {
                return true;
            }
            match parents.get(&id) {
                Some(parent) if *parent != id => id = *parent,
                _ => return false,
            }
        }
        false
    };
    processes.iter().filter(|process| is_below(process.id)).fold(Tree::default(), |tree, process| Tree {
        ticks: tree.ticks.saturating_add(process.ticks),
        waits_for_disk: tree.waits_for_disk || process.state == b'D',
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_proc_is_parsed_whatever_the_name_is() {
        let line = "12 (a) D 1 (b) S 7 12 12 0 -1 4194560 90 0 0 0 10 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(parse(line), Some(Process { id: 12, parent: 7, state: b'S', ticks: 37 }));
        for bad in ["", "12", "12 (a", "x (a) S 1", "12 (a) "] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_tree_is_a_process_and_all_below_it() {
        let process = |id, parent, state, ticks| Process { id, parent, state, ticks };
        let all =
            [process(1, 0, b'S', 1), process(5, 1, b'S', 10), process(6, 5, b'R', 100), process(7, 6, b'D', 1000)];
        assert_eq!(tree(5, &all), Tree { ticks: 1110, waits_for_disk: true });
        assert_eq!(tree(5, &all[..3]), Tree { ticks: 110, waits_for_disk: false });
        assert_eq!(tree(9, &all), Tree::default());
        let circle = [process(8, 9, b'R', 1), process(9, 8, b'R', 1)];
        assert_eq!(tree(5, &circle), Tree::default());
    }
}
