//! The plan file: what is written comes back, what breaks a rule is refused with its place, no
//! bytes make the reader panic.

use units::{Rng, SplitMix64};

use super::super::order;
use super::*;

fn identity(inode: u64, size: u64) -> Option<Identity> {
    Some(Identity { inode, size, mtime_ns: 1_700_000_000_123_456_789, build_id: vec![0xab; 20] })
}

/// A plan with every kind of record.
fn sample() -> LaunchPlan {
    let file = |path: &[u8], identity| PlanFile { path: path.to_vec(), identity };
    let files = vec![
        file(b"usr/bin/app", identity(70_000, 40_960)),
        file(b"usr/lib/libx.so.1", identity(9, 4097)),
        file(b"usr/lib", None),
        file(b"usr/lib/missing.so", None),
        file(b"usr/share/\xffdata", Some(Identity { inode: 1, size: u64::MAX, mtime_ns: -1, build_id: vec![] })),
    ];
    let extent = |file, page, pages| GroupExtent { file, page, pages };
    let breakpoint = Breakpoint { file: 1, offset: 4096, process: 0, byte: 0x55, at: Moment(3_000_001) };
    let groups = vec![
        Group {
            trigger: Trigger::Launch,
            library: None,
            at: Moment(0),
            opens: vec![3, 2, 0, 1],
            extents: vec![extent(0, 2, 4), extent(1, 0, 2), extent(0, 0, 1)],
        },
        Group {
            trigger: Trigger::Breakpoint(breakpoint),
            library: None,
            at: Moment(5_000_000),
            opens: vec![4],
            extents: vec![extent(4, u32::MAX - 1, 1), extent(0, 9, 1)],
        },
        Group {
            trigger: Trigger::With(1),
            library: None,
            at: Moment(9_000_000),
            opens: vec![],
            extents: vec![extent(0, 6, 3)],
        },
    ];
    LaunchPlan { program: b"/usr/bin/app".to_vec(), runs: 2, files, groups }
}

/// The same with libraries.
fn sample_of_version_2() -> LaunchPlan {
    let mut plan = sample();
    plan.groups[2].library = Some(Library { file: 1, at: Moment(8_000_000) });
    plan
}

#[test]
fn a_plan_comes_back_as_written() {
    let empty = LaunchPlan { program: b"/bin/true".to_vec(), runs: 1, ..LaunchPlan::default() };
    for plan in [sample(), sample_of_version_2(), empty] {
        assert_eq!(decode(&encode(&plan).unwrap(), &Limits::default()).unwrap(), plan);
    }
}

#[test]
fn golden_dump_and_bytes_of_version_1() {
    let plan = sample();
    let mut text = String::new();
    let symbol = |file: &PlanFile, offset| {
        assert_eq!((&file.path[..], offset), (&b"usr/lib/libx.so.1"[..], 4096));
        Some("x_start+0x10".to_string())
    };
    dump(&plan, &symbol, &mut text).unwrap();
    assert_eq!(text, include_str!("../../../testdata/sample-plan.dump"));
    let stored = include_bytes!("../../../testdata/sample-v1.plan");
    assert_eq!(decode(stored, &Limits::default()).unwrap(), plan);
    assert_eq!(encode(&plan).unwrap(), stored);
}

#[test]
fn golden_dump_and_bytes_of_version_2() {
    let plan = sample_of_version_2();
    let mut text = String::new();
    dump(&plan, &|_, _| None, &mut text).unwrap();
    assert_eq!(text, include_str!("../../../testdata/sample-plan-v2.dump"));
    assert_eq!(encode(&plan).unwrap(), include_bytes!("../../../testdata/sample-v2.plan"));
    assert_eq!([0, 1, 2].map(|group| plan.library_leader(group)), [0, 0, 2]);
    assert_eq!(sample().library_leader(2), 0);
    // Without a library a plan has one encoding only.
    let mut bytes = encode(&LaunchPlan { program: b"/bin/true".to_vec(), ..LaunchPlan::default() }).unwrap();
    bytes[8] = 2;
    let error = decode(&rehash(bytes), &Limits::default()).unwrap_err();
    assert!(matches!(error, PlanError::Value { offset: 8, field: "version", found: 2, .. }), "{error}");
}

#[test]
fn the_last_page_of_a_file_counts_as_long_as_it_is() {
    let plan = sample();
    let bytes: Vec<u64> = plan.groups.iter().map(|group| plan.bytes(group)).collect();
    assert_eq!(bytes, [5 * 4096 + 4097, 2 * 4096, 3 * 4096]);
    assert_eq!([0, 1, 2, 3].map(|group| plan.lead(group).as_micros()), [0, 1_999_999, 5_999_999, 0]);
}

/// `bytes` with a length and a hash that fit, so that tests reach what lies behind them.
fn rehash(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 64 {
        let end = bytes.len() - 32;
        bytes[24..32].copy_from_slice(&(end as u64 - 32).to_le_bytes());
        let hash = blake3::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(hash.as_bytes());
    }
    bytes
}

#[test]
fn errors_name_what_is_wrong_and_where() {
    let good = encode(&sample()).unwrap();
    let length = good.len() as u64;
    let read = |bytes: &[u8]| decode(bytes, &Limits::default()).unwrap_err();
    let with = |offset: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[offset] = byte;
        bytes
    };
    assert_eq!(read(b""), PlanError::Length { found: 0, expected: 64 });
    assert_eq!(read(&good[..50]), PlanError::Length { found: 50, expected: 64 });
    assert_eq!(read(&good[..good.len() - 1]), PlanError::Length { found: length - 1, expected: length });
    assert!(matches!(read(&with(0, 0)), PlanError::Magic { .. }));
    assert_eq!(read(&with(8, 7)), PlanError::Version { found: 7, expected: 2 });
    assert!(matches!(read(&with(40, 0xee)), PlanError::Hash { .. }));
    assert!(matches!(read(&with(good.len() - 1, 0)), PlanError::Hash { .. }));
    assert!(matches!(read(&rehash(with(10, 1))), PlanError::Value { offset: 10, field: "reserved", .. }));
    assert!(matches!(read(&rehash(with(20, 2))), PlanError::Value { field: "trailing bytes", .. }));
    let absolute = PlanError::Path { offset: 32, fault: "a program without an absolute path" };
    assert_eq!(read(&rehash(with(33, b'u'))), absolute);
    let limit = |limits: Limits| match decode(&good, &limits).unwrap_err() {
        PlanError::Limit { what, .. } => what,
        other => panic!("{other}"),
    };
    let limits = Limits::default();
    assert_eq!(limit(Limits { files_max: 4, ..limits }), "files");
    assert_eq!(limit(Limits { path_bytes_max: 50, ..limits }), "bytes of paths");
    assert_eq!(limit(Limits { groups_max: 2, ..limits }), "groups");
    assert_eq!(limit(Limits { opens_max: 4, ..limits }), "opens");
    assert_eq!(limit(Limits { extents_max: 5, ..limits }), "extents");
}

/// What is wrong with the sample after a change.
fn refused(change: impl FnOnce(&mut LaunchPlan)) -> String {
    let mut plan = sample();
    change(&mut plan);
    let error = encode(&plan).unwrap_err().to_string();
    error.split_once(": ").map_or(error.clone(), |(_, reason)| reason.to_string())
}

#[test]
fn a_plan_that_breaks_a_rule_is_not_written() {
    let breakpoint = |plan: &mut LaunchPlan, change: fn(&mut Breakpoint)| match &mut plan.groups[1].trigger {
        Trigger::Breakpoint(breakpoint) => change(breakpoint),
        other => panic!("{other:?}"),
    };
    let inside = "an extent has at least one page and lies inside its file";
    let launch = "the first group, and no other, is that of the launch";
    let earlier = "it is a group before this one that has a trigger of its own";
    let known = "it is the position of a file whose identity is known";
    let file = "it is the position of a file of the plan";
    let cases: Vec<(String, &str)> = vec![
        (refused(|plan| plan.program.clear()), "a program without an absolute path"),
        (refused(|plan| plan.program = b"/a/../b".to_vec()), "a path with a part . or .."),
        (refused(|plan| plan.files[2].path = b"/usr/lib".to_vec()), "a path with an empty part"),
        (refused(|plan| plan.files[3].path = b"usr/bin/app".to_vec()), "a path that an earlier file has"),
        (refused(|plan| plan.groups[0].opens.push(5)), file),
        (refused(|plan| plan.groups[0].extents[0].file = u32::MAX), file),
        (refused(|plan| plan.groups[0].extents[0].pages = 0), inside),
        (refused(|plan| plan.groups[0].extents[0].pages = u32::MAX), inside),
        (refused(|plan| plan.groups[0].extents[1].pages = 3), inside),
        (refused(|plan| plan.groups[0].extents[1].file = 2), inside),
        (refused(|plan| plan.groups[2].extents[0].pages = 4), "page 9 of file 0 is in two extents"),
        (refused(|plan| plan.groups[0].trigger = Trigger::With(0)), launch),
        (refused(|plan| plan.groups[1].trigger = Trigger::Launch), launch),
        (refused(|plan| plan.groups[2].trigger = Trigger::With(2)), earlier),
        (refused(|plan| plan.groups[1].trigger = Trigger::With(u32::MAX)), earlier),
        (refused(|plan| plan.groups.push(Group { trigger: Trigger::With(2), ..plan.groups[2].clone() })), earlier),
        (refused(|plan| plan.groups[2].at = Moment(4_999_999)), "groups are in the order of their times"),
        (refused(|plan| breakpoint(plan, |at| at.offset = 4097)), "it lies inside its file"),
        (refused(|plan| breakpoint(plan, |at| at.file = 2)), known),
        (refused(|plan| breakpoint(plan, |at| at.process = 99)), known),
        (
            refused(|plan| plan.groups[0].library = Some(Library { file: 1, at: Moment(1) })),
            "the group of the launch has none",
        ),
        (refused(|plan| plan.groups[2].library = Some(Library { file: 2, at: Moment(1) })), known),
        (refused(|plan| plan.groups[2].library = Some(Library { file: 5, at: Moment(1) })), known),
    ];
    for (found, expected) in cases {
        assert!(found.ends_with(expected), "{found:?} is not {expected:?}");
    }
    let long = refused(|plan| plan.files[1].identity.as_mut().unwrap().build_id = vec![0; 33]);
    assert!(long.contains("build id is 33"), "{long}");
}

#[test]
fn a_plan_over_the_written_limits_is_refused_and_one_over_the_accepted_ones_costs_nothing() {
    let mut plan = sample();
    plan.groups[0].opens = vec![0; format::WRITTEN_OPENS_MAX + 1];
    assert!(matches!(encode(&plan), Err(PlanError::Limit { what: "opens", .. })));
    // Counts far beyond what the file holds: refused before anything is reserved for them.
    let mut bytes = encode(&sample()).unwrap();
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(decode(&rehash(bytes), &Limits::default()), Err(PlanError::Limit { what: "files", .. })));
}

fn read_small(bytes: &[u8]) -> Result<LaunchPlan, PlanError> {
    let limits = Limits { files_max: 100, path_bytes_max: 10_000, groups_max: 100, opens_max: 100, extents_max: 100 };
    decode(bytes, &limits)
}

/// The invariant: no bytes make the reader panic, and what it accepts encodes to the very same
/// bytes and can be used.
fn fuzz_one(bytes: &[u8], read: impl Fn(&[u8]) -> Result<LaunchPlan, PlanError>) -> Result<bool, String> {
    let Ok(plan) = read(bytes) else { return Ok(false) };
    let mut text = String::new();
    dump(&plan, &|_, _| None, &mut text).map_err(|error| error.to_string())?;
    for group in &plan.groups {
        order::windows(&group.extents, 1 << 40);
        order::opens_by_inode(&plan, &group.opens);
    }
    match encode(&plan) {
        Ok(again) if again == bytes => Ok(true),
        other => Err(format!("accepted, but encoded otherwise ({other:02x?}): {bytes:02x?}")),
    }
}

#[test]
fn fuzz_decode() {
    let good = [sample(), sample_of_version_2()].map(|plan| encode(&plan).unwrap());
    let mut rng = SplitMix64(7);
    let mut accepted = 0;
    for round in 0..60_000 {
        let mut bytes = good[round % 2].clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(5) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, rng.next_u64() as u8),
                2 => bytes[at] = rng.next_u64() as u8,
                _ => bytes[at] ^= 1 << rng.below(8),
            }
        }
        // Most of them with a hash that fits: only so do the deeper checks come to light.
        if round % 8 > 1 {
            bytes = rehash(bytes);
        }
        accepted += usize::from(fuzz_one(&bytes, read_small).unwrap());
    }
    // Among forged files some must be accepted (a changed inode is no error), or nothing was
    // reached.
    assert!(accepted > 2000, "only {accepted} of the forged files got past the checks");
}

#[test]
fn fuzz_canary() {
    let good = encode(&sample()).unwrap();
    assert_eq!(fuzz_one(&good, read_small), Ok(true));
    // A reader that loses something must be found out.
    let careless = |bytes: &[u8]| {
        let mut plan = read_small(bytes)?;
        plan.groups[0].opens.pop();
        Ok(plan)
    };
    assert!(fuzz_one(&good, careless).is_err(), "the fuzzer is blind");
    // A path whose common part is written out once more would be a second encoding of the same
    // plan: it is refused.
    let place = good.windows(5).position(|window| window == b"lib/l").unwrap();
    assert_eq!(good[place - 2..place], [4, 13], "4 bytes shared with usr/bin/app, 13 of its own");
    let mut bytes = good.clone();
    bytes.splice(place - 2..place, [3, 14, b'/']);
    assert_eq!(fuzz_one(&rehash(bytes), read_small), Ok(false));
}
