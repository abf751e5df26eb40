use super::*;

fn state_in(folder: &Path) -> (State, PathBuf) {
    let path = folder.join("state.json");
    // A process that does not exist.
    (State { pid: u32::MAX, ticks: 1, config: folder.join("r.toml"), ..State::default() }, path)
}

#[test]
fn a_state_survives_its_file_and_a_damaged_one_is_none() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (mut state, path) = state_in(folder.path());
    state.placeholders.push(folder.path().join("x"));
    state.save(&path).expect("saved");
    let read = State::load(&path).expect("read");
    assert_eq!((read.pid, &read.placeholders), (state.pid, &state.placeholders));
    fs::write(&path, b"{").expect("write");
    assert!(State::load(&path).is_none());
}

#[test]
fn only_a_process_with_the_same_start_is_alive() {
    let own = std::process::id();
    let ticks = process::start_ticks(own).expect("own start");
    let mut state = State { pid: own, ticks, ..State::default() };
    assert!(state.is_alive());
    state.ticks += 1;
    assert!(!state.is_alive());
    let mut child = std::process::Command::new("true").spawn().expect("true starts");
    let pid = child.id();
    let exit = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("pidfd");
    rustix::event::poll(&mut [PollFd::new(&exit, PollFlags::IN)], None).expect("ends");
    let zombie = State { pid, ticks: process::start_ticks(pid).expect("zombies have one"), ..State::default() };
    assert!(!zombie.is_alive());
    child.wait().expect("waited");
}

#[test]
fn undoing_removes_placeholders_but_nothing_that_got_contents() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (state, path) = state_in(folder.path());
    let mut active = Active { file: state.config.clone(), path: path.clone(), state, images: Vec::new() };
    let (deep, kept) = (folder.path().join("a/b/tool"), folder.path().join("c/dir"));
    active.make_placeholder(&deep, false).expect("made");
    active.make_placeholder(&kept, true).expect("made");
    active.make_placeholder(&deep, false).expect("is there");
    assert!(deep.is_file() && kept.is_dir());
    assert_eq!(active.state.placeholders.len(), 5);
    fs::write(kept.join("work"), b"precious").expect("write");
    State::load(&path).expect("saved").undo(&path).expect("undone");
    assert!(!folder.path().join("a").exists());
    assert!(kept.join("work").exists());
    assert!(!path.exists());
}

#[test]
fn a_dangling_link_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("tempdir");
    let (state, path) = state_in(folder.path());
    let mut active = Active { file: state.config.clone(), path, state, images: Vec::new() };
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("symlink");
    assert!(matches!(active.make_placeholder(&link, false), Err(MountError::Step { .. })));
    assert!(active.state.placeholders.is_empty());
}

#[test]
fn stopping_what_is_not_active_says_so() {
    let folder = tempfile::tempdir().expect("tempdir");
    let file = folder.path().join("r.toml");
    fs::write(&file, b"").expect("write");
    assert!(matches!(stop(&file), Err(MountError::Redirect { .. })));
    assert!(matches!(stop(&folder.path().join("none")), Err(MountError::Step { .. })));
}
