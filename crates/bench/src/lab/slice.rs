//! Cuts a plan into slices for guests that run side by side, by an estimate of what each row costs the host.

use super::plan::{Entry, Row};

/// Seconds of the host that a start of a program takes by itself in a guest, roughly, and for each of its megabytes over
/// a network. Only proportions matter.
const PROGRAM_SECONDS: [(&str, f64); 9] = [
    ("jvm", 9.0),
    ("python", 1.2),
    ("python-imports", 3.5),
    ("python-200", 6.0),
    ("perl", 0.8),
    ("openssl", 1.0),
    ("gcc", 4.0),
    ("node", 8.0),
    ("busybox", 0.4),
];

/// Seconds for a program that is not in the table.
const OTHER_SECONDS: f64 = 4.0;

/// Seconds of a row besides its runs: starting and stopping servers.
const ROW_SECONDS: f64 = 1.0;

/// Estimated seconds of the host for `entry`.
pub fn cost(entry: &Entry) -> f64 {
    let Row { experiment, system, program, mode, .. } = &entry.row;
    let known = PROGRAM_SECONDS.iter().find(|(name, _)| name == program);
    let program = known.map_or(OTHER_SECONDS, |(_, seconds)| *seconds);
    // Cold and warm; more for those that decompress or that go through a daemon.
    let system = match system.as_str() {
        "local" | "sd" => 1.0,
        "nfs" => 1.7,
        "runnel" => 2.0,
        _ => 2.5,
    };
    let experiment = match experiment.as_str() {
        "touch" => 1.5,
        "page" => 2.0,
        _ => 1.0,
    };
    // A first start is made to learn from.
    let learning = if mode == "once" { program * 2.0 + 5.0 } else { 0.0 };
    ROW_SECONDS + learning + f64::from(entry.runs) * program * system * experiment
}

/// Cuts `entries` into at most `count` slices of whole rows with about the same cost; rows keep their order.
pub fn slices(entries: &[Entry], count: usize) -> Vec<Vec<Entry>> {
    let mut order: Vec<(usize, f64)> = entries.iter().map(cost).enumerate().collect();
    // Dearest first, each to whoever has least so far.
    order.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
    let mut slices: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); count.max(1)];
    for (index, cost) in order {
        let least = slices.iter_mut().min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some(slice) = least {
            slice.0 += cost;
            slice.1.push(index);
        }
    }
    let whole = |(_, mut indices): (f64, Vec<usize>)| {
        indices.sort_unstable();
        indices.into_iter().map(|index| entries[index].clone()).collect::<Vec<_>>()
    };
    slices.into_iter().map(whole).filter(|slice| !slice.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::plan;

    #[test]
    fn slices_are_balanced_whole_and_in_order() -> anyhow::Result<()> {
        let text: String = ["jvm", "perl", "gcc", "python", "node", "busybox"]
            .iter()
            .flat_map(|program| ["nfs", "runnel:learned"].map(|system| format!("start wifi {system} {program} 3\n")))
            .collect();
        let entries = plan::parse(&text)?;
        let slices = slices(&entries, 2);
        assert_eq!(slices.len(), 2);
        let costs: Vec<f64> = slices.iter().map(|slice| slice.iter().map(cost).sum()).collect();
        assert!((costs[0] - costs[1]).abs() < 0.1 * (costs[0] + costs[1]), "{costs:?}");
        let position = |entry: &Entry| entries.iter().position(|other| other == entry);
        for slice in &slices {
            assert!(slice.is_sorted_by_key(position));
        }
        assert_eq!(slices.iter().map(Vec::len).sum::<usize>(), entries.len());
        Ok(())
    }

    #[test]
    fn there_are_no_empty_slices() -> anyhow::Result<()> {
        let entries = plan::parse("start - local perl 1\n")?;
        assert_eq!(slices(&entries, 4).len(), 1);
        assert!(slices(&[], 4).is_empty());
        Ok(())
    }
}
