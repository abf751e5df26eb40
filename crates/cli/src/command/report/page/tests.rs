//! Pages of small plans.

use profile::plan::{AnalyseConfig, BurstConfig, Files, Identity, analyse};
use trace::{Event, Header, How, LOCAL, Source, Tail, Trace};
use units::{InodeId, PageId, Token};

use super::*;

struct Machine;

impl Files for Machine {
    fn identity(&self, _: &[u8]) -> Option<Identity> {
        Some(Identity { inode: 7, size: 1 << 20, mtime_ns: 0, build_id: Vec::new() })
    }

    fn byte(&self, _: &[u8], _: u64) -> Option<u8> {
        Some(0x55)
    }
}

/// A program that reads 100 pages, computes 2 s, reads 100 more.
fn run() -> Run {
    let token = Token(1);
    let mut events = vec![
        Event::Start { token, at: Moment(0), name: b"/bin/<app>".to_vec() },
        Event::File { inode: InodeId(1), size: 1 << 20, path: b"bin/<app>".to_vec() },
    ];
    for index in 0..200 {
        let at = Moment(if index < 100 { 0 } else { 2_000_000 } + u64::from(index) * 1000);
        events.push(Event::Touch { token, at, page: PageId::new(InodeId(1), index), how: How::Local });
    }
    events.push(Event::Code { token, at: Moment(500_000), inode: InodeId(1), offset: 4096 });
    let header = Header { image: LOCAL, source: Source::Perf };
    Run::from_trace(&Trace { header, events, tail: Tail::Whole }).unwrap()
}

#[test]
fn a_page_shows_bursts_breakpoints_and_leads_and_takes_nothing_from_outside() {
    let runs = [run(), run()];
    let config = AnalyseConfig { auto: true, burst: BurstConfig::default(), ..AnalyseConfig::default() };
    let analysis = analyse(&runs, &Machine, &config).unwrap();
    let symbol = |_: &PlanFile, offset: u64| (offset == 4096).then(|| "load<T>".to_string());
    let input =
        Input { plan: &analysis.plan, learned: Some((&runs, &analysis)), speed: Speed::default(), symbol: &symbol };
    let html = page(&input);
    for expected in
        ["bin/&lt;app&gt;+0x1000 (load&lt;T&gt;)", "recorded by perf", "1.60 s", "group 1", "Run 2", "410 kB"]
    {
        assert!(html.contains(expected), "{expected} is not in {html}");
    }
    assert!(!html.contains("<app>") && !html.contains("<T>") && !html.contains("NaN"));
    assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<script"));
    let alone = page(&Input { learned: None, ..input });
    assert!(alone.contains("traces show more") && alone.contains("load&lt;T&gt;"));
}

#[test]
fn a_plan_of_nothing_has_a_page() {
    let plan = LaunchPlan { program: b"/bin/true".to_vec(), runs: 1, ..LaunchPlan::default() };
    let html = page(&Input { plan: &plan, learned: None, speed: Speed::default(), symbol: &|_, _| None });
    assert!(html.contains("Nothing was read") && html.ends_with("</html>\n"));
}

#[test]
fn groups_of_one_trigger_are_fetched_one_after_the_other() {
    let group = |trigger| Group { trigger, opens: vec![0; 10], ..Group::default() };
    let groups = vec![group(Trigger::Launch), group(Trigger::With(0)), group(Trigger::With(0))];
    let plan = LaunchPlan { groups, ..LaunchPlan::default() };
    let speed = Speed { bytes_per_second: 1e6, access: 0.5 };
    assert_eq!(fetched(&Input { plan: &plan, learned: None, speed, symbol: &|_, _| None }), [5.0, 10.0, 15.0]);
}
