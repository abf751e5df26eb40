//! What holds of every plan.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A step of a program: what it does, in which process, to which file, and how long after the step
/// before, in milliseconds.
type Step = (u8, u32, usize, u64, u32);

const PATHS: [&str; 6] = ["bin/app", "bin/tool", "lib/libc.so.6", "share/a", "share/b", "share/c"];

fn text(steps: &[Step]) -> String {
    let mut lines = vec!["0 start 1 bin/app".to_string(), "0 start 2 bin/tool".to_string()];
    let mut now = 0;
    for (what, token, file, wait, place) in steps {
        // Some waits are idle periods.
        now += if wait % 23 == 0 { 1500 } else { wait % 20 };
        let (token, path) = (token % 2 + 1, PATHS[file % PATHS.len()]);
        lines.push(match what % 8 {
            0 => format!("{now} code {token} {path} {}", place % 50 * 4096),
            1 => format!("{now} find {token} {path}"),
            2 => format!("{now} miss {token} {path}.{place}"),
            _ => format!("{now} read {token} {path} {}..{}", place % 900, place % 900 + 1 + place % 17),
        });
    }
    lines.join("\n")
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((any::<u8>(), any::<u32>(), any::<usize>(), any::<u64>(), any::<u32>()), 0..150)
}

fn pages(run: &Run) -> BTreeSet<(Vec<u8>, u32)> {
    run.touches.iter().map(|touch| (run.files[touch.file as usize].path.clone(), touch.page)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn prop_every_page_of_two_runs_is_in_one_group_and_few_others_are(
        base in any_steps(),
        others in prop::collection::vec((any_steps(), 0..150usize), 0..3),
        auto in any::<bool>(),
    ) {
        let mut runs = vec![run_of(&text(&base))];
        for (tail, keep) in &others {
            // The same program up to a point, then another one.
            let steps = [&base[..(*keep).min(base.len())], tail].concat();
            runs.push(run_of(&text(&steps)));
        }
        let config = AnalyseConfig { auto, ..config() };
        let analysis = analyse(&runs, &Machine(sizes()), &config).unwrap();
        prop_assert_eq!(&analysis, &analyse(&runs, &Machine(sizes()), &config).unwrap());
        let plan = &analysis.plan;
        prop_assert_eq!(&decode(&encode(plan).unwrap(), &Limits::WRITTEN).unwrap(), plan);

        let mut touched: BTreeMap<(Vec<u8>, u32), usize> = BTreeMap::new();
        for page in runs.iter().flat_map(|run| pages(run).into_iter()) {
            *touched.entry(page).or_default() += 1;
        }
        let wanted = runs.len().min(2);
        let mut planned: BTreeMap<(Vec<u8>, u32), usize> = BTreeMap::new();
        for extent in plan.groups.iter().flat_map(|group| &group.extents) {
            for page in extent.page..extent.end() {
                *planned.entry((plan.files[extent.file as usize].path.clone(), page)).or_default() += 1;
            }
        }
        prop_assert!(planned.values().all(|groups| *groups == 1));
        let mut useful = 0;
        for (page, _) in touched.iter().filter(|(_, runs)| **runs >= wanted) {
            prop_assert!(planned.contains_key(page), "{:?} is in no group", page);
            useful += 1;
        }
        let over = planned.len() - useful;
        prop_assert!(over * 100 <= useful * 20, "{} pages of {} that nobody needs", over, planned.len());
        prop_assert_eq!((over as u64, useful as u64), (analysis.report.pages_hole, analysis.report.pages_touched));

        for (number, group) in plan.groups.iter().enumerate().skip(1) {
            prop_assert!(!group.opens.is_empty() || !group.extents.is_empty());
            if let Trigger::Breakpoint(breakpoint) = &group.trigger {
                prop_assert!(breakpoint.at < group.at && plan.groups[number - 1].at <= breakpoint.at);
            }
            if let Some(library) = &group.library {
                prop_assert!(library.at < group.at && plan.groups[number - 1].at <= library.at);
            }
        }
    }

    #[test]
    fn prop_orders_lose_and_add_no_page(
        extents in prop::collection::vec((0..4u32, 0..300u32, 1..20u32), 0..40),
        window in 0..100u64,
        scatter in any::<u64>(),
    ) {
        let extents: Vec<GroupExtent> =
            extents.into_iter().map(|(file, page, pages)| GroupExtent { file, page, pages }).collect();
        let list = |extents: &[GroupExtent]| {
            let mut pages: Vec<(u32, u32)> = extents
                .iter()
                .flat_map(|extent| (extent.page..extent.end()).map(|page| (extent.file, page)))
                .collect();
            pages.sort_unstable();
            pages
        };
        let place = |file: u32, offset: u64| {
            let hash = (offset / 4096 / 7 + u64::from(file) * 31).wrapping_mul(scatter | 1);
            let known = !hash.is_multiple_of(5);
            known.then_some(order::Physical { offset: hash % 1_000_000, bytes: hash % 70_000 })
        };
        let windows = order::windows(&extents, window * 4096);
        let physical = order::physical(&extents, place);
        prop_assert_eq!(list(&windows), list(&extents));
        prop_assert_eq!(list(&physical), list(&extents));
        prop_assert!(windows.len() <= extents.len() + list(&extents).len());
    }
}
