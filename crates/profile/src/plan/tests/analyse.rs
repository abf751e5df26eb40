//! From scripts to plans.

use super::*;

/// A program that loads at its start, computes for two seconds, loads, computes, and loads again.
const THREE_BURSTS: &str = "
    0 start 1 bin/app
    0 code 1 bin/app 64
    0 read 1 bin/app 0..40 1
    10 find 1 etc/conf
    11 miss 1 etc/other
    12 list 1 share
    100 code 1 lib/libc.so.6 8192
    2000 code 1 bin/app 4096
    2100 code 1 bin/app 8192
    2200 read 1 share/a 10..60 1
    2500 code 1 bin/app 12288
    4500 read 1 share/b 0..64 1
    4500 read 1 share/a 50..70 1
    5000 end 1
";

#[test]
fn three_bursts_and_the_first_address_after_each() {
    check(
        &[THREE_BURSTS],
        "
        group 0 at 0.000000 launch lead 0.000000 opens 4 extents 1 bytes 163840
          open bin/app
          open etc/conf
          open etc/other
          open share
          read bin/app 0+40
        group 1 at 2.200000 breakpoint lib/libc.so.6+0x2000 byte 00 process bin/app hit 0.100000 library lib/libc.so.6 loaded 0.100000 lead 2.100000 opens 1 extents 1 bytes 204800
          open share/a
          read share/a 10+50
        group 2 at 4.500000 breakpoint bin/app+0x3000 byte 00 process bin/app hit 2.500000 lead 2.000000 opens 1 extents 2 bytes 303104
          open share/b
          read share/b 0+64
          read share/a 60+10
        ",
    );
}

#[test]
fn nothing_read_is_an_empty_plan_and_one_touch_a_launch_group() {
    check(&["0 start 1 bin/app\n10 end 1"], "");
    check(
        &["0 start 1 bin/app\n7 read 1 share/a 9..10"],
        "
        group 0 at 0.007000 launch lead 0.007000 opens 1 extents 1 bytes 4096
          open share/a
          read share/a 9+1
        ",
    );
    check(
        &["0 start 1 bin/app\n7 miss 1 etc/other"],
        "group 0 at 0.007000 launch lead 0.007000 opens 1 extents 0 bytes 0\nopen etc/other",
    );
    assert_eq!(analyse(&[], &Machine(sizes()), &config()), Err(RunError::NoRuns));
}

#[test]
fn what_is_read_in_an_idle_period_is_fetched_with_the_burst_before() {
    check(
        &["
        0 start 1 bin/app
        0 read 1 bin/app 0..40 1
        1000 find 1 etc/conf
        1500 read 1 share/c 7..9
        3000 read 1 share/a 0..40 1
        "],
        "
        group 0 at 0.000000 launch lead 0.000000 opens 3 extents 2 bytes 172032
          open bin/app
          open etc/conf
          open share/c
          read bin/app 0+40
          read share/c 7+2
        group 1 at 3.000000 with 0 lead 3.000000 opens 1 extents 1 bytes 163840
          open share/a
          read share/a 0+40
        ",
    );
}

/// The triggers of the groups after the first, and their leads in milliseconds.
fn triggers(scripts: &[&str]) -> Vec<String> {
    triggers_on(scripts, &Machine(sizes()))
}

fn triggers_on(scripts: &[&str], machine: &Machine) -> Vec<String> {
    let plan = plan_of(scripts, machine, &config()).0.plan;
    let name = |file: u32| plan.files[file as usize].path.escape_ascii().to_string();
    let groups = plan.groups.iter().enumerate().skip(1).map(|(number, group)| {
        let trigger = match &group.trigger {
            Trigger::Breakpoint(at) => format!("{}+{} in {}", name(at.file), at.offset, name(at.process)),
            other => format!("{other:?}"),
        };
        format!("{trigger} {}", plan.lead(number).as_millis())
    });
    groups.collect()
}

/// A launch burst, an idle period from 0.04 to 2 s with `code` in it, a burst.
fn with_code(code: &str) -> String {
    format!("0 start 1 bin/app\n0 read 1 bin/app 0..40 1\n{code}\n2000 read 1 share/a 0..40 1\n2500 code 1 bin/app 99")
}

#[test]
fn the_earliest_unique_address_wins() {
    let cases = [
        // Before the end of the burst before, and from the first read on, is too early and too
        // late.
        ("20 code 1 bin/app 64\n38 code 1 bin/app 65\n2000 code 1 bin/app 66", "With(0) 2000"),
        ("39 code 1 bin/app 65\n40 code 1 bin/app 66", "bin/app+65 in bin/app 1961"),
        ("900 code 1 lib/liba.so 5\n800 code 1 lib/libc.so.6 4\n700 code 1 bin/app 3", "bin/app+3 in bin/app 1300"),
        // A tie: the program's own file, then libraries, then the C library; then the name, then
        // the offset.
        (
            "800 code 1 lib/libc.so.6 1\n800 code 1 lib/liba.so 9\n800 code 1 bin/app 9\n800 code 1 bin/app 8",
            "bin/app+8 in bin/app 1200",
        ),
        ("800 code 1 lib/libc.so.6 1\n800 code 1 lib/liba.so 9", "lib/liba.so+9 in bin/app 1200"),
        // Run again later, or before, or by a process of the same executable, it is not unique.
        ("800 code 1 bin/app 8\n900 code 1 bin/app 9\n2100 code 1 bin/app 8", "bin/app+9 in bin/app 1100"),
        ("10 code 1 bin/app 8\n800 code 1 bin/app 8", "With(0) 2000"),
        (
            "800 code 1 bin/app 8\n801 start 2 bin/app\n900 code 2 bin/app 8\n901 code 2 bin/app 9",
            "bin/app+9 in bin/app 1099",
        ),
        ("700 start 2 bin/app\n701 start 3 bin/app\n900 code 2 bin/app 8\n901 code 3 bin/app 8", "With(0) 2000"),
        // In a process of another executable the same place is another place.
        ("800 code 1 lib/liba.so 8\n801 start 2 bin/tool\n900 code 2 lib/liba.so 8", "lib/liba.so+8 in bin/app 1200"),
        // A child may be the one that tells.
        ("700 start 2 bin/tool\n800 code 2 bin/tool 8\n810 end 2", "bin/tool+8 in bin/tool 1200"),
        // exec: the same process, another image.
        ("700 end 1\n700 start 1 bin/tool\n800 code 1 lib/libc.so.6 7", "lib/libc.so.6+7 in bin/tool 1200"),
    ];
    for (code, expected) in cases {
        assert_eq!(triggers(&[&with_code(code)]), [expected], "{code}");
    }
}

#[test]
fn a_group_without_an_address_goes_with_the_nearest_that_has_one() {
    let run = "
        0 start 1 bin/app
        0 read 1 bin/app 0..40 1
        1000 code 1 bin/app 8
        2000 read 1 share/a 0..40 1
        4000 read 1 share/b 0..40 1
        6000 read 1 share/c 0..40 1
    ";
    assert_eq!(triggers(&[run]), ["bin/app+8 in bin/app 1000", "With(1) 3000", "With(1) 5000"]);
}

#[test]
fn a_second_run_confirms_an_address_or_not() {
    let first = with_code("700 code 1 bin/app 7\n800 code 1 bin/app 8\n900 code 1 bin/app 9");
    let cases = [
        (vec!["800 code 1 bin/app 8\n850 code 1 bin/app 9"], "bin/app+8 in bin/app 1200"),
        (vec![""], "With(0) 2000"),
        (vec!["800 code 1 bin/app 8\n2100 code 1 bin/app 8\n850 code 1 bin/app 9"], "bin/app+9 in bin/app 1100"),
        (vec!["20 code 1 bin/app 8"], "With(0) 2000"),
        // Half of the others is enough, as long as none contradicts.
        (vec!["1990 code 1 bin/app 7", ""], "bin/app+7 in bin/app 1300"),
        (vec!["1990 code 1 bin/app 7", "", ""], "With(0) 2000"),
        (vec!["1990 code 1 bin/app 7", "2200 code 1 bin/app 7"], "With(0) 2000"),
    ];
    for (others, expected) in cases {
        let others: Vec<String> = others.into_iter().map(with_code).collect();
        let mut scripts = vec![first.as_str()];
        scripts.extend(others.iter().map(String::as_str));
        assert_eq!(triggers(&scripts), [expected], "{others:?}");
    }
}

/// The libraries of the groups after the first, and when they are loaded, in milliseconds.
fn libraries(scripts: &[&str]) -> Vec<String> {
    let plan = plan_of(scripts, &Machine(sizes()), &config()).0.plan;
    let groups = plan.groups.iter().skip(1).map(|group| match &group.library {
        Some(at) => format!("{} {}", plan.files[at.file as usize].path.escape_ascii(), at.at.0 / 1000),
        None => "none".to_string(),
    });
    groups.collect()
}

#[test]
fn a_library_that_is_new_in_the_idle_period_tells_too() {
    let load = "800 find 1 lib/liba.so\n801 read 1 lib/liba.so 0..2\n802 code 1 lib/liba.so 64";
    let cases = [
        (load.to_string(), "lib/liba.so 800"),
        // By a child too; the earliest one; the C library's last.
        (load.replace("find 1", "start 2 bin/tool\n800 find 2"), "lib/liba.so 800"),
        (format!("{load}\n700 code 1 lib/libc.so.6 5"), "lib/libc.so.6 700"),
        (format!("{load}\n800 code 1 lib/libc.so.6 5"), "lib/liba.so 800"),
        // Read as data, never run: nothing loads it. A program that starts loads itself, and is no
        // library.
        (load.replace("code 1 lib/liba.so", "code 1 bin/app"), "none"),
        ("800 start 2 lib/liba.so\n800 code 2 lib/liba.so 5".to_string(), "none"),
        ("800 code 1 share/b 5".to_string(), "none"),
        // Loaded before, if only by name; or with the burst itself.
        (format!("5 find 1 lib/liba.so\n{load}"), "none"),
        ("2000 find 1 lib/liba.so\n2001 code 1 lib/liba.so 5".to_string(), "none"),
        // Looked for in vain is not loaded; then its first touch tells, as a run holds one look-up
        // of each path.
        (format!("5 miss 1 lib/liba.so\n{load}"), "lib/liba.so 801"),
    ];
    for (code, expected) in &cases {
        assert_eq!(libraries(&[&with_code(code)]), [*expected], "{code}");
    }
    // A burst that loads libraries: the last one of it tells of the next burst, and none of itself.
    let burst = "0 start 1 bin/app\n0 read 1 bin/app 0..40 1\n2000 find 1 lib/liba.so\n2000 read 1 lib/liba.so 0..40 1
        2005 code 1 lib/liba.so 64\n2020 code 1 lib/libc.so.6 5\n4000 read 1 share/a 0..40 1";
    assert_eq!(libraries(&[burst, burst]), ["none", "lib/libc.so.6 2020"]);
    // A second run confirms it or not.
    let first = with_code(load);
    for (other, expected) in [
        (load, "lib/liba.so 800"),
        ("", "none"),
        ("10 code 1 lib/liba.so 5", "none"),
        ("2200 code 1 lib/liba.so 5", "none"),
    ] {
        assert_eq!(libraries(&[&first, &with_code(other)]), [expected], "{other}");
    }
}

#[test]
fn bursts_correspond_by_their_pages_and_not_by_their_times() {
    // The second run is ten times slower, has a burst of its own before, and its last two bursts
    // are far apart.
    let second = "
        0 start 1 bin/app
        0 read 1 bin/app 0..40 10
        2000 code 1 bin/app 12288
        3000 read 1 lib/liba.so 0..40 1
        9000 code 1 bin/app 8192
        11000 read 1 share/a 10..60 1
        50000 code 1 bin/app 12288
        51000 read 1 share/b 0..60 1
    ";
    assert_eq!(triggers(&[THREE_BURSTS, second]), ["bin/app+8192 in bin/app 100", "With(1) 2400"]);
    // Before a burst that only the second run has, code is still in the idle period that
    // corresponds.
    let early = second.replace("9000 code", "2500 code");
    assert_eq!(triggers(&[THREE_BURSTS, &early]), ["bin/app+8192 in bin/app 100", "With(1) 2400"]);
    let (analysis, text) = plan_of(&[THREE_BURSTS, second], &Machine(sizes()), &config());
    assert!(!text.contains("liba") && !text.contains("etc/"), "only one run read it:\n{text}");
    assert!(text.contains("read share/b 0+60"), "{text}");
    // share/a 60..70, share/b 60..64, liba 0..40 and its open, three look-ups.
    assert_eq!(analysis.report.rare, 10 + 4 + 41 + 3);
}

#[test]
fn a_run_that_was_ended_early_does_not_make_the_groups() {
    let short = "0 start 1 bin/app\n0 read 1 bin/app 0..40 1\n100 end 1";
    let (analysis, _) = plan_of(&[short, THREE_BURSTS, THREE_BURSTS], &Machine(sizes()), &config());
    assert_eq!((analysis.reference, analysis.plan.groups.len()), (1, 3));
    // Of the two others one confirms each address.
    assert_eq!(analysis.report.breakpoints, 2);
    let (alone, _) = plan_of(&[short, THREE_BURSTS], &Machine(sizes()), &config());
    assert_eq!((alone.reference, alone.plan.groups.len()), (0, 1));
}

#[test]
fn a_burst_that_only_one_run_had_makes_no_group() {
    let with_help = format!("{THREE_BURSTS}\n6000 start 1 bin/app\n7000 read 1 share/c 0..100 1");
    for scripts in [[with_help.as_str(), THREE_BURSTS], [THREE_BURSTS, with_help.as_str()]] {
        assert_eq!(plan_of(&scripts, &Machine(sizes()), &config()).0.plan.groups.len(), 3);
    }
    let (two, _) = plan_of(&[&with_help, THREE_BURSTS], &Machine(sizes()), &AnalyseConfig { runs_min: 1, ..config() });
    assert_eq!(two.plan.groups.len(), 4);
}

#[test]
fn files_that_are_gone_or_changed_drop_out_and_the_rest_stays() {
    let mut machine = Machine(sizes());
    machine.0.remove(b"lib/libc.so.6".as_slice());
    machine.0.insert(b"share/a".to_vec(), 5);
    let (analysis, text) = plan_of(&[THREE_BURSTS], &machine, &config());
    assert_eq!((analysis.report.files_gone, analysis.report.files_changed), (1, 1));
    assert!(!text.contains("libc") && !text.contains("share/a"), "{text}");
    assert_eq!(triggers_on(&[THREE_BURSTS], &machine), ["bin/app+12288 in bin/app 2000"]);
    // Without its executable a process has no breakpoints.
    machine.0.remove(b"bin/app".as_slice());
    assert_eq!(triggers_on(&[THREE_BURSTS], &machine), ["With(0) 4500"]);
    assert_eq!(plan_of(&[THREE_BURSTS], &Machine(BTreeMap::new()), &config()).0.report.files_gone, 5);
}

#[test]
fn a_byte_that_cannot_be_read_gets_no_breakpoint() {
    struct Unreadable(Machine);
    impl Files for Unreadable {
        fn identity(&self, path: &[u8]) -> Option<Identity> {
            self.0.identity(path)
        }
        fn byte(&self, path: &[u8], offset: u64) -> Option<u8> {
            self.0.byte(path, offset).filter(|_| offset != 8192)
        }
    }
    let plan = analyse(&[run_of(THREE_BURSTS)], &Unreadable(Machine(sizes())), &config()).unwrap().plan;
    let Trigger::Breakpoint(breakpoint) = &plan.groups[1].trigger else { panic!() };
    assert_eq!((breakpoint.offset, breakpoint.byte), (4096, 0), "the next one after libc at 8192");
}

#[test]
fn small_holes_are_closed_while_they_are_few() {
    let read = |pages: &[&str]| {
        let lines = pages.iter().map(|pages| format!("0 read 1 share/a {pages}\n"));
        let run = format!("0 start 1 bin/app\n{}", lines.collect::<String>());
        let config = AnalyseConfig { over_fetch_percent_max: 20, ..config() };
        let (analysis, text) = plan_of(&[&run], &Machine(sizes()), &config);
        let extents: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("  read share/a ")).collect();
        (extents.join(" "), analysis.report.pages_hole)
    };
    assert_eq!(read(&["0..10", "11..20", "24..30"]), ("0+30".into(), 5));
    assert_eq!(read(&["0..10", "15..40"]), ("0+10 15+25".into(), 0), "5 pages are too many");
    assert_eq!(read(&["0..4", "5..9"]), ("0+9".into(), 1));
    // The small ones first: of 10 touched pages 2 may be in holes.
    assert_eq!(read(&["0..4", "6..8", "9..11", "12..14"]), ("0+4 6+8".into(), 2));
    assert_eq!(read(&["0..1", "2..3"]), ("0+1 2+1".into(), 0));
    // First-touch order: what was touched first comes first, with all that it is joined with.
    assert_eq!(read(&["100..110", "5..8", "110..112", "0..5"]), ("100+12 0+8".into(), 0));
}

#[test]
fn a_page_of_another_group_is_no_hole() {
    let run = "
        0 start 1 bin/app
        0 read 1 share/a 0..20
        0 read 1 share/a 21..60
        0 read 1 lib/liba.so 0..40 1
        3000 read 1 share/a 20..21
        3000 read 1 share/b 0..40 1
    ";
    let (_, text) = plan_of(&[run], &Machine(sizes()), &config());
    assert!(text.contains("read share/a 0+20\n") && text.contains("read share/a 21+39"), "{text}");
    assert!(text.contains("read share/a 20+1"), "{text}");
}

#[test]
fn opens_count_once_and_files_that_came_later_are_files() {
    let run = "
        0 start 1 bin/app
        0 miss 1 share/a
        1 miss 1 share/none
        2 find 1 share/gone
        3 miss 1 share/none
        10 read 1 share/a 0..40 1
        3000 list 1 share
        3000 read 1 share/b 0..40 1
        3001 find 1 share/a
    ";
    let (analysis, text) = plan_of(&[run], &Machine(sizes()), &config());
    let opens: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("open ") || line.starts_with("group"))
        .map(|line| line.trim().split(" lead").next().unwrap())
        .collect();
    assert_eq!(
        opens,
        [
            "group 0 at 0.000000 launch",
            "open share/a",
            "open share/none",
            "group 1 at 3.000000 with 0",
            "open share",
            "open share/b"
        ]
    );
    let identity = |path: &[u8]| analysis.plan.files.iter().find(|file| file.path == path).unwrap().identity.clone();
    assert!(identity(b"share/a").is_some() && identity(b"share/none").is_none() && identity(b"share").is_none());
    assert_eq!(analysis.report.files_gone, 1);
}

#[test]
fn traces_that_are_no_learning_runs_are_refused() {
    let good = script(THREE_BURSTS, &sizes());
    let image = units::ImageId([9; 32]);
    let of_image = Trace { header: Header { image, ..good.header }, ..good.clone() };
    let error = Run::from_trace(&of_image).unwrap_err();
    assert_eq!(error, RunError::Image { image });
    assert!(error.to_string().ends_with("such a trace is for `pack --trace`"), "{error}");
    let with = |events: Vec<Event>| Run::from_trace(&Trace { events, ..good.clone() });
    assert_eq!(with(vec![]), Err(RunError::NoProgram));
    let start = |name: &[u8]| Event::Start { token: Token(1), at: Moment(7), name: name.to_vec() };
    assert_eq!(with(vec![start(b"")]), Err(RunError::NoProgram));
    assert!(matches!(with(vec![start(b"/")]), Err(RunError::Program { .. })));
    let touch = Event::Touch { token: Token(1), at: Moment(9), page: PageId::new(InodeId(5), 0), how: How::Local };
    assert_eq!(with(vec![start(b"/bin/app"), touch]), Err(RunError::Unnamed { inode: InodeId(5) }));
    let other = run_of("0 start 1 bin/tool");
    let error = analyse(&[run_of(THREE_BURSTS), other], &Machine(sizes()), &config()).unwrap_err();
    assert_eq!(error.to_string(), "the runs are of different programs: /bin/tool and /bin/app");
}

#[test]
fn a_run_is_sorted_begins_at_zero_and_leaves_out_what_lies_behind_the_end() {
    let small = BTreeMap::from([(b"share/a".to_vec(), 8193)]);
    let trace =
        script("5000 start 1 bin/app\n5200 read 1 share/a 0..9\n5100 read 1 bin/app 0..2\n4000 miss 1 x", &small);
    let run = Run::from_trace(&trace).unwrap();
    let touches: Vec<(u64, u32)> = run.touches.iter().map(|touch| (touch.at.0, touch.page)).collect();
    assert_eq!(touches, [(100_000, 0), (100_000, 1), (200_000, 0), (200_000, 1), (200_000, 2)]);
    assert_eq!((run.beyond, run.lookups[0].at, run.ended), (6, Moment(0), Moment(200_000)));
    // Residency knows no times: all of it is one group.
    let mut trace = script(THREE_BURSTS, &sizes());
    trace.header.source = Source::Residency;
    let plan = analyse(&[Run::from_trace(&trace).unwrap()], &Machine(sizes()), &config()).unwrap().plan;
    assert_eq!(plan.groups.len(), 1);
}
