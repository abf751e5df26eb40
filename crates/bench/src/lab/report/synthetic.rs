//! Records of an invented lab run, for tests: every experiment, system and program, with numbers of
//! a plausible size.

use std::collections::BTreeMap;

use super::{About, PageLists};
use crate::lab::plan::Entry;
use crate::lab::program::PROGRAMS;
use crate::lab::record::Record;

/// Programs that the longest plan starts in every way.
const PROGRAMS_OF_A_RUN: usize = 9;

/// Links with loss that the invented run has.
const LOSSY: [&str; 5] = ["wifi+0.001%", "wifi+0.01%", "wifi+0.1%", "wifi+1%", "wifi+5%"];

/// Numbers that look random and are the same each time.
struct Noise(u64);

impl Noise {
    /// From 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A run under construction.
struct Maker {
    noise: Noise,
    records: Vec<Record>,
}

/// Time of a program on an idle machine and pages it needs; the size of the program in two numbers.
fn size(program: &str) -> (f64, f64) {
    match program {
        "jvm" => (0.6, 4200.0),
        "python" => (0.034, 830.0),
        "python-imports" => (0.222, 2300.0),
        "python-200" => (0.5, 3900.0),
        "perl" => (0.004, 420.0),
        "openssl" => (0.017, 610.0),
        "gcc" => (0.135, 3100.0),
        "node" => (0.4, 6100.0),
        _ => (0.001, 90.0),
    }
}

/// Seconds a page and seconds a start take on a system, besides computing.
fn cost(system: &str, link: &str) -> (f64, f64) {
    let (page, start) = match link {
        "lan" => (1.0, 0.002),
        "-" => (0.0, 0.0),
        "wan" => (2.5, 0.03),
        _ => (2.0, 0.01),
    };
    let scale = match system {
        "local" => return (5e-6, 0.001),
        "sd:a" => return (260e-6, 0.05),
        "sd:b" => return (390e-6, 0.06),
        "nfs" => 900e-6,
        "runnel:learned" => 105e-6,
        "runnel:once" => 115e-6,
        "runnel:paper" => 330e-6,
        "runnel:none" => 600e-6,
        "squashfs" => 350e-6,
        "erofs" => 400e-6,
        "nydus" => 480e-6,
        other => 700e-6 + 20e-6 * other.len() as f64,
    };
    (page * scale, start)
}

impl Maker {
    fn add(&mut self, line: &str, values: &[(&str, f64)], series: &[(&str, Vec<f64>)]) {
        let entry: Entry = line.parse().expect("an entry of a plan");
        for run in 1..=entry.runs {
            let values =
                values.iter().map(|(name, value)| (name.to_string(), value * (0.98 + 0.04 * self.noise.next())));
            let series = series.iter().map(|(name, values)| (name.to_string(), values.clone()));
            let record = Record { row: entry.row.clone(), run, values: values.collect(), series: series.collect() };
            self.records.push(record);
        }
    }

    fn start(&mut self, experiment: &str, link: &str, system: &str, program: &str) {
        let (warm, pages) = size(program);
        let (page, start) = cost(system, link);
        let loss: f64 = super::measured::loss(link);
        let network = system != "local" && !system.starts_with("sd:");
        let slower = if system.starts_with("runnel") { 1.0 + 0.08 * loss } else { 1.0 + 0.6 * loss };
        let cold = warm + start + pages * page * slower;
        let mut values = vec![("mount", 0.04), ("cold", cold), ("warm", warm), ("status", 0.0), ("busy", warm * 1.4)];
        if network {
            let bytes = if system == "runnel:learned" { 1500.0 } else { 8000.0 };
            let demanded = if system == "runnel:learned" { 0.05 } else { 0.7 };
            values.extend([("rx_bytes", pages * bytes), ("tx_bytes", pages * 40.0), ("requests", pages / 5.0)]);
            values.extend([("server_busy", warm * 0.3), ("mount_rx_bytes", 60_000.0), ("stall", cold - warm)]);
            values.extend([("pages_demanded", pages * demanded), ("pages_pushed", pages * (1.1 - demanded))]);
            values.extend([("cold_apart", cold - warm * 0.3), ("pages_wasted", pages * 0.05)]);
        }
        if experiment == "energy" {
            values.extend([("radio_on_60ms", cold * 0.9), ("radio_on_200ms", cold + 0.2), ("wakeups", 3.0)]);
            values.extend([("packets", pages * 3.0), ("device_busy", warm * 1.1)]);
        }
        self.add(&format!("{experiment} {link} {system} {program} 3"), &values, &[]);
    }

    fn mount(&mut self, link: &str, system: &str, program: &str) {
        let (warm, pages) = size(program);
        let (page, start) = cost(system, link);
        let cold = warm + start + pages * page;
        self.add(&format!("first {link} {system} {program} 1"), &[("cold", 1.2 * cold)], &[]);
        let values =
            [("mount", 0.04), ("first_read", 0.05), ("first_read_rx_bytes", 16_000.0), ("together", cold + 0.05)];
        self.add(&format!("mount {link} {system} {program} 2"), &values, &[]);
    }

    fn touch(&mut self, link: &str, system: &str, program: &str) {
        let (_, pages) = size(program);
        let (page, _) = cost(system, link);
        let latency = |index: usize, noise: &mut Noise| {
            let miss = index.is_multiple_of(9) || noise.next() < 0.1;
            if miss { page * (2.0 + 6.0 * noise.next()) } else { 2e-6 + 1e-6 * noise.next() }
        };
        let series: Vec<f64> = (0..pages as usize).map(|index| latency(index, &mut self.noise)).collect();
        let sum: f64 = series.iter().sum();
        let values = [("mean", sum / pages), ("total", sum)];
        self.add(&format!("touch {link} {system} {program} 2"), &values, &[("latency", series)]);
    }
}

/// Everything a full run measures.
pub fn records() -> Vec<Record> {
    let mut maker = Maker { noise: Noise(7), records: Vec::new() };
    for program in PROGRAMS.iter().take(PROGRAMS_OF_A_RUN).map(|program| program.name) {
        for system in ["local", "sd:a", "sd:b"] {
            maker.start("start", "-", system, program);
            maker.touch("-", system, program);
        }
        for link in ["lan", "wifi", "wan"].into_iter().chain(LOSSY) {
            let all = [
                "nfs",
                "runnel:paper",
                "runnel:learned",
                "runnel:none",
                "runnel:once",
                "squashfs",
                "erofs",
                "nydus",
                "casync",
                "sshfs",
                "httpdirfs",
                "rclone",
            ];
            let systems = if link.contains('+') { &all[..3] } else { &all[..] };
            systems.iter().for_each(|system| maker.start("start", link, system, program));
        }
        for link in ["lan", "wifi"] {
            ["nfs", "runnel:paper", "runnel:learned"].iter().for_each(|system| maker.touch(link, system, program));
            ["nfs", "runnel:learned"].iter().for_each(|system| maker.mount(link, system, program));
        }
        ["nfs", "runnel:learned"].iter().for_each(|system| maker.start("energy", "wifi", system, program));
        let pages = size(program).1;
        for (system, read) in [("local", 2.4), ("sd:a", 2.6)] {
            let values = [("pages_total", pages * 6.0), ("pages_needed", pages), ("pages_read", pages * read)];
            let disk = [("requests", pages / 8.0), ("bytes_per_request", 68_000.0)];
            maker.add(&format!("set - {system} {program} 1"), &[values.as_slice(), &disk].concat(), &[]);
        }
    }
    for system in ["runnel:of-python-nine", "runnel:of-python-decimal", "runnel:updated"] {
        maker.start("start", "wifi", system, "python-decimal");
    }
    for (mode, factor) in [("pool-long", 0.8), ("pool-short", 0.9), ("alloc-long", 0.85), ("alloc-short", 1.0)] {
        for program in ["perl", "python"] {
            let values = [("mean", 0.0041 * factor), ("total", 1.7 * factor)];
            maker.add(&format!("touch wifi runnel:io-{mode} {program} 2"), &values, &[]);
        }
    }
    for (mode, factor) in [("none", 1.0), ("madvise", 0.7), ("nv", 0.4), ("nv-async", 0.2), ("bundle", 0.15)] {
        for program in ["perl", "gcc"] {
            let values = [("cold", 0.3 + 2.0 * factor), ("stall", 2.0 * factor)];
            maker.add(&format!("cache wifi runnel:cache-{mode} {program} 3"), &values, &[]);
        }
    }
    for (link, io) in [("lan", 0.00035), ("wifi", 0.0041)] {
        for (system, middle) in [("nfs", 0.00012), ("runnel:paper", 0.00016), ("runnel:learned", 0.00009)] {
            let values = [("map", 1.5e-6), ("middle", middle), ("io", io), ("total", 1.5e-6 + middle + io)];
            maker.add(&format!("page {link} {system} perl 1"), &values, &[]);
        }
    }
    let card = [("map", 1.5e-6), ("middle", 2e-5), ("io", 0.0009), ("total", 0.00092)];
    maker.add("page - sd:a perl 1", &card, &[]);
    maker.records
}

/// Page lists of some programs: files read in pieces, with jumps between them.
pub fn pages() -> PageLists {
    let mut noise = Noise(3);
    let mut lists = BTreeMap::new();
    for program in ["perl", "python", "gcc"] {
        let mut pages = Vec::new();
        while pages.len() < size(program).1 as usize {
            let file = (noise.next() * noise.next() * 8.0) as u64;
            let first = (noise.next() * 900.0) as u64;
            let count = 1 + (noise.next() * 12.0) as u64;
            pages.extend((first..first + count).map(|page| (format!("/usr/lib/lib{file}.so"), page)));
        }
        lists.insert(program.to_string(), pages);
    }
    lists
}

/// Where it was not measured.
pub fn about() -> About {
    About {
        commit: "0123456789ab".into(),
        cpu: "Invented CPU <4000>".into(),
        cores: 2,
        memory_bytes: 8 << 30,
        date: "2026-11-21 16:50".into(),
        kernel: "6.12.1-amd64".into(),
        rivals: vec!["NFS 4.2 of Linux 6.12.1-amd64".into(), "erofs-utils 1.9".into()],
        binary_bytes: 9_400_000,
        notes: vec!["These records are invented: a sample for tests & eyes.".into()],
    }
}
