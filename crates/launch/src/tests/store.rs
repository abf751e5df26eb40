//! Plans and histories in a folder.

use super::*;

#[test]
fn plans_and_books_are_kept_listed_and_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let store = PlanStore::open(Some(&folder.path().join("new/plans"))).unwrap();
    let sh = program("sh");
    assert!(store.list().unwrap().is_empty() && store.load(&sh).unwrap().is_none() && !store.forget(&sh).unwrap());
    let (_tree, mut plan) = tree(&[3]);
    plan.program = sh.real.as_os_str().as_bytes().to_vec();
    store.save(&sh, &plan).unwrap();
    let (found, mut history) = store.load(&sh).unwrap().unwrap();
    assert_eq!((found, history.title.as_str()), (plan.clone(), sh.title().as_str()));
    history.enter(Launch { mode: Mode::With, launch_us: 5, bytes: 6 });
    store.save_history(&sh, &history).unwrap();
    assert_eq!(store.load(&sh).unwrap().unwrap().1, history);
    // A new plan is judged anew.
    store.save(&sh, &plan).unwrap();
    assert_eq!(store.load(&sh).unwrap().unwrap().1.recent, []);
    assert_eq!(store.list().unwrap().len(), 1);
    assert!(store.forget(&sh).unwrap());
    assert_eq!(fs::read_dir(folder.path().join("new/plans")).unwrap().count(), 0, "nothing stays");
}

#[test]
fn what_killed_processes_left_is_found_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = PlanStore::open(Some(folder.path())).unwrap();
    // No process has a number as large as that.
    let dead = folder.path().join("a.trace.4294967295.3.part");
    let own = folder.path().join(format!("a.plan.{}.0.part", std::process::id()));
    for path in [&dead, &own, &folder.path().join("x.part"), &folder.path().join("a.trace")] {
        fs::write(path, b"half").unwrap();
    }
    assert_eq!(store.leftovers().unwrap(), [dead]);
}

#[test]
fn damaged_plans_are_errors_and_damaged_books_are_empty() {
    let folder = tempfile::tempdir().unwrap();
    let store = PlanStore::open(Some(folder.path())).unwrap();
    let (sh, env) = (program("sh"), program("env"));
    let (_tree, mut plan) = tree(&[3]);
    plan.program = sh.real.as_os_str().as_bytes().to_vec();
    let path = store.save(&sh, &plan).unwrap();
    fs::write(path.with_extension("json"), b"{\"launches\": -1}").unwrap();
    assert_eq!(store.load(&sh).unwrap().unwrap().1, History::default());
    // Another program's plan under this one's name.
    fs::copy(&path, store.plan_path(&env)).unwrap();
    assert!(store.load(&env).unwrap().is_none());
    let good = fs::read(&path).unwrap();
    for bytes in [&b""[..], b"RNL", &good[..good.len() - 1]] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(store.load(&sh), Err(LaunchError::Plan { .. })));
        assert!(store.list().unwrap().iter().any(|entry| entry.plan.is_err()));
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(store.load(&sh), Err(LaunchError::Io { .. })));
}

#[test]
fn files_are_known_by_what_they_are_and_directories_are_none() {
    use profile::plan::{Files, Identity};
    let files = learn::LocalFiles;
    let folder = tempfile::tempdir().unwrap();
    let named = |name: &str| folder.path().join(name).as_os_str().as_bytes()[1..].to_vec();
    fs::write(folder.path().join("a"), b"xyz").unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let identity = files.identity(&named("a")).unwrap();
    assert_eq!((identity.size, identity.build_id.len()), (3, 0));
    assert_eq!((files.identity(&named("sub")), files.identity(&named("none"))), (None, None));
    assert_eq!([2, 3].map(|offset| files.byte(&named("a"), offset)), [Some(b'z'), None]);
    assert_eq!(files.byte(&named("sub"), 0), None);
    let own = std::env::current_exe().unwrap();
    let own = own.as_os_str().as_bytes()[1..].to_vec();
    let file = PlanFile { identity: files.identity(&own), path: own };
    assert_eq!(files.symbol(&file, 0), None, "the header is no function");
    let other = Identity { size: 1, ..file.identity.clone().unwrap() };
    assert_eq!(files.symbol(&PlanFile { identity: Some(other), ..file }, 0x10000), None);
}
