//! The worker on real files.

use super::*;

#[test]
fn all_pages_of_a_group_are_asked_for_on_both_kinds_of_disk() {
    let (_folder, plan) = tree(&[3, 100, 1]);
    for disk in [DiskKind::Rotating, DiskKind::Other] {
        let recorded = Arc::new(RecordedHints { takes: "", ..RecordedHints::default() });
        let fetched = fetch(&plan, disk, u64::MAX, recorded.clone());
        assert_eq!((fetched.groups, fetched.bytes, fetched.stale, fetched.left_out), (1, 104 * 4096, 0, 0), "{disk:?}");
        let mut hints: Vec<_> = recorded.hints.lock().unwrap().iter().flat_map(|(_, pages)| pages.clone()).collect();
        hints.sort_by_key(|pages| pages.end);
        assert_eq!(hints, [0..1, 0..3, 0..100], "{disk:?}");
    }
}

#[test]
fn a_changed_file_drops_out_and_the_rest_stays() {
    let (folder, plan) = tree(&[3, 5, 7]);
    fs::write(folder.path().join("file1"), b"another one").unwrap();
    fs::remove_file(folder.path().join("file2")).unwrap();
    let fetched = fetch(&plan, DiskKind::Rotating, u64::MAX, Arc::new(NoHints));
    assert_eq!((fetched.bytes, fetched.stale), (3 * 4096, 2));
    let fit = fit(&plan);
    assert_eq!((fit.same, fit.changed, fit.gone), (1, 1, 1));
}

#[test]
fn a_file_of_equal_length_but_another_time_has_changed() {
    let (folder, mut plan) = tree(&[3]);
    let path = folder.path().join("file0");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(fit(&plan).changed, 1);
    // The same bytes by another inode, known by the build id.
    let copy = folder.path().join("copy");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let learned = identity(&copy).unwrap();
    let is_elf_with_id = !learned.build_id.is_empty();
    let again = folder.path().join("again");
    fs::copy(&copy, &again).unwrap();
    plan.files[0] = PlanFile { path: again.as_os_str().as_bytes()[1..].to_vec(), identity: Some(learned) };
    assert_eq!(fit(&plan).same, usize::from(is_elf_with_id));
}

#[test]
fn the_budget_is_kept_and_what_is_left_out_is_counted() {
    let (_folder, plan) = tree(&[10, 10, 10]);
    for disk in [DiskKind::Rotating, DiskKind::Other] {
        let fetched = fetch(&plan, disk, 20 * 4096 + 5, Arc::new(NoHints));
        assert_eq!((fetched.bytes, fetched.left_out), (20 * 4096, 10 * 4096), "{disk:?}");
    }
}

#[test]
fn directories_and_missing_paths_are_looked_at() {
    let (folder, mut plan) = tree(&[1]);
    for name in ["", "not/there"] {
        let path = folder.path().join(name);
        plan.files.push(PlanFile { path: path.as_os_str().as_bytes()[1..].to_vec(), identity: None });
        plan.groups[0].opens.push(plan.files.len() as u32 - 1);
    }
    plan.files[1].path.pop_if(|last| *last == b'/');
    assert_eq!(fetch(&plan, DiskKind::Rotating, u64::MAX, Arc::new(NoHints)).opens, 3);
    // Elsewhere a file with extents is opened when they are fetched.
    assert_eq!(fetch(&plan, DiskKind::Other, u64::MAX, Arc::new(NoHints)).opens, 2);
}

#[test]
fn a_pipe_or_a_loop_of_links_in_a_plan_does_no_harm() {
    let (folder, mut plan) = tree(&[1, 1]);
    let pipe = folder.path().join("file0");
    fs::remove_file(&pipe).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let path = folder.path().join("file1");
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    plan.groups.push(Group { opens: vec![7, u32::MAX], ..Group::default() });
    plan.groups[1].extents.push(GroupExtent { file: 9, page: 0, pages: 1 });
    let fetched = fetch(&plan, DiskKind::Rotating, u64::MAX, Arc::new(NoHints));
    assert_eq!((fetched.bytes, fetched.stale, fetched.groups), (0, 2, 2));
}

#[test]
fn whoever_holds_the_program_hears_when_all_is_opened() {
    let (_folder, plan) = tree(&[1, 2]);
    let settings = Settings { disk: DiskKind::Rotating, budget_bytes: u64::MAX, window_bytes: 1 };
    let prefetcher = Prefetcher::start(Arc::new(plan), settings, Arc::new(NoHints)).unwrap();
    let (sender, opened) = std::sync::mpsc::channel();
    prefetcher.jobs().send(Job { group: 0, opened: Some(sender) }).unwrap();
    // Nothing is ever sent: the end of the sender is the news.
    assert!(opened.recv_timeout(std::time::Duration::from_secs(60)).is_err());
    assert_eq!(prefetcher.finish().opens, 2);
}

#[test]
fn a_file_that_cannot_tell_does_not_make_the_others_cold() {
    let (_folder, mut plan) = tree(&[40, 40]);
    let before = warmth(&plan, &plan.groups[0]);
    // No page of it is in the page cache, and the kernel refuses to say so.
    plan.files.push(PlanFile { path: b"proc/self/status".to_vec(), identity: None });
    let extent = GroupExtent { file: plan.files.len() as u32 - 1, page: 0, pages: 1 };
    plan.groups[0].extents.insert(0, extent);
    let after = warmth(&plan, &plan.groups[0]);
    assert_eq!((after.warm > 0, after.cold), (before.warm > 0, before.cold));
    plan.groups[0].extents = vec![extent];
    assert!(!warmth(&plan, &plan.groups[0]).is_warm(), "nobody can say");
}

#[test]
fn regress_cold_files_are_cold_however_fast_the_disk_is() {
    let (folder, plan) = tree(&[40, 40]);
    let files = ["file0", "file1"].map(|name| fs::File::open(folder.path().join(name)).unwrap());
    for _ in 0..300 {
        for file in &files {
            file.sync_all().unwrap();
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        if files.iter().any(|file| !probe::residency::resident(file).unwrap().is_empty()) {
            return eprintln!("skipped: files here (a tmpfs?) cannot be made cold");
        }
        let found = warmth(&plan, &plan.groups[0]);
        assert!(found.warm == 0 && found.cold >= 3, "{found:?}");
    }
}

#[test]
fn what_was_just_written_is_warm() {
    let (_folder, plan) = tree(&[40, 40]);
    let found = warmth(&plan, &plan.groups[0]);
    // A file system that cannot say (some overlays) counts as cold.
    assert!(found.is_warm() || found.warm == 0, "{found:?}");
    assert!(Warmth::default().is_warm(), "nothing to fetch");
    for (warm, cold, expected) in [(10, 0, true), (26, 6, true), (25, 7, false), (0, 3, false), (4, 1, false)] {
        assert_eq!(Warmth { warm, cold }.is_warm(), expected, "{warm} {cold}");
    }
}
