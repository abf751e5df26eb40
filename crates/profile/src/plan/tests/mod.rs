//! Tests of plans. A learning run is written as a script, a plan is compared as its dump.

mod analyse;
mod bursts;
mod file;
mod orders;
mod properties;

use std::collections::BTreeMap;

use trace::{Event, Found, Header, How, LOCAL, Source, Tail, Trace};
use units::{InodeId, Moment, PageId, Token};

use super::*;

/// Bytes of the build id that every file of the tests has.
const BUILD_ID: [u8; 2] = [0xb1, 0xd0];

/// A machine on which every file is as long as the map says. Its inode is 1000 less the length of
/// its path.
struct Machine(BTreeMap<Vec<u8>, u64>);

impl Files for Machine {
    fn identity(&self, path: &[u8]) -> Option<Identity> {
        let size = *self.0.get(path)?;
        let inode = 1000 - path.len() as u64;
        Some(Identity { inode, size, mtime_ns: 5, build_id: BUILD_ID.to_vec() })
    }

    fn byte(&self, path: &[u8], offset: u64) -> Option<u8> {
        (offset < *self.0.get(path)?).then_some(offset as u8)
    }
}

/// The trace that a script tells. A line is `MILLISECONDS WHAT TOKEN PATH ...`:
///
/// - `0 start 1 bin/app`, `9 end 1`
/// - `5 read 1 bin/app 0..40 2`: a page every 2 ms; without the last number all at once
/// - `5 find 1 etc/conf`, `5 list 1 etc`, `5 miss 1 etc/other`: look-ups that find a file, a
///   directory, nothing
/// - `5 code 1 bin/app 4096`
///
/// Files have `sizes[path]` bytes, 4 MiB if that is not there.
fn script(text: &str, sizes: &BTreeMap<Vec<u8>, u64>) -> Trace {
    let mut inodes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut events = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let millis: u64 = words[0].parse().unwrap();
        let token = Token(words[2].parse().unwrap());
        let at = Moment(millis * 1000);
        let path = words.get(3).copied().unwrap_or_default();
        let mut inode = || {
            let next = inodes.len() as u32 + 1;
            let inode = *inodes.entry(path).or_insert(next);
            if inode == next {
                let size = sizes.get(path.as_bytes()).copied().unwrap_or(4 << 20);
                events.push(Event::File { inode: InodeId(inode), size, path: path.into() });
            }
            InodeId(inode)
        };
        match words[1] {
            "start" => events.push(Event::Start { token, at, name: format!("/{path}").into_bytes() }),
            "end" => events.push(Event::End { token, at }),
            "read" => {
                let inode = inode();
                let (from, to) = words[4].split_once("..").unwrap();
                let step: u64 = words.get(5).map_or(0, |step| step.parse().unwrap());
                for (count, index) in (from.parse().unwrap()..to.parse().unwrap()).enumerate() {
                    let at = Moment((millis + step * count as u64) * 1000);
                    let page = PageId::new(inode, index);
                    events.push(Event::Touch { token, at, page, how: How::Local });
                }
            }
            "code" => {
                let inode = inode();
                events.push(Event::Code { token, at, inode, offset: words[4].parse().unwrap() });
            }
            what => {
                let found = match what {
                    "find" => Found::File,
                    "list" => Found::Directory,
                    "miss" => Found::Nothing,
                    other => panic!("{other}"),
                };
                events.push(Event::Lookup { token, at, found, path: path.into() });
            }
        }
    }
    Trace { header: Header { image: LOCAL, source: Source::Perf }, events, tail: Tail::Whole }
}

fn sizes() -> BTreeMap<Vec<u8>, u64> {
    let paths = ["bin/app", "bin/tool", "lib/libc.so.6", "lib/liba.so", "share/a", "share/b", "share/c", "etc/conf"];
    paths.iter().map(|path| (path.as_bytes().to_vec(), 4 << 20)).collect()
}

fn run_of(text: &str) -> Run {
    Run::from_trace(&script(text, &sizes())).unwrap()
}

/// A threshold that sees idle periods of a second, for bursts of a page a millisecond.
fn config() -> AnalyseConfig {
    let burst = BurstConfig { threshold: std::time::Duration::from_millis(500), ..BurstConfig::default() };
    AnalyseConfig { burst, ..AnalyseConfig::default() }
}

/// Analyses the scripts; checks what holds of every plan; gives the dump without the lines of
/// files.
fn plan_of(scripts: &[&str], machine: &Machine, config: &AnalyseConfig) -> (Analysis, String) {
    let runs: Vec<Run> = scripts.iter().map(|script| run_of(script)).collect();
    let analysis = analyse(&runs, machine, config).unwrap();
    assert_eq!(analysis, analyse(&runs, machine, config).unwrap(), "an analysis is a pure function");
    let plan = &analysis.plan;
    assert_eq!(&decode(&encode(plan).unwrap(), &Limits::default()).unwrap(), plan);
    let mut text = String::new();
    dump(plan, &|_, _| None, &mut text).unwrap();
    let lines: Vec<&str> = text.lines().skip(1).filter(|line| !line.starts_with("file ")).collect();
    (analysis.clone(), lines.join("\n"))
}

/// Whether the scripts give the plan `expected`: its groups, one line each for what is in them.
#[track_caller]
fn check(scripts: &[&str], expected: &str) {
    let (_, found) = plan_of(scripts, &Machine(sizes()), &config());
    let trim = |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(trim(&found), trim(expected), "\n{found}");
}
