use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use super::*;

/// Long enough for a busy machine; reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(20);

fn processes() -> (Processes, Receiver<Token>) {
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let processes = Processes::new(move |token| {
        let sender = sender.lock().expect("unpoisoned");
        // The test may have ended already.
        let _ = sender.send(token);
    });
    (processes, receiver)
}

/// A child that lives until its standard input is closed.
fn child() -> Child {
    Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat starts")
}

fn own_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[test]
fn threads_of_one_process_share_a_token_and_processes_do_not() {
    let (processes, _ended) = processes();
    let mine = processes.token(own_thread());
    let other = thread::scope(|scope| scope.spawn(|| processes.token(own_thread())).join().expect("no panic"));
    assert_eq!(mine, other);
    assert_eq!(processes.token(own_thread()), mine);
    let mut first = child();
    let mut second = child();
    let tokens = [mine, processes.token(first.id()), processes.token(second.id()), processes.token(0)];
    for (at, token) in tokens.iter().enumerate() {
        assert!(!tokens[..at].contains(token), "{tokens:?}");
    }
    assert_eq!(processes.live(), 3);
    for child in [&mut first, &mut second] {
        drop(child.stdin.take());
        child.wait().expect("ends");
    }
}

#[test]
fn the_end_of_a_process_ends_its_token_once() {
    let (processes, ended) = processes();
    let mut child = child();
    let token = processes.token(child.id());
    drop(child.stdin.take());
    child.wait().expect("ends");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(token));
    assert_eq!(processes.live(), 0);
    // A thread id nobody has any more belongs to no process.
    assert_eq!(processes.token(child.id()), processes.token(0));
    drop(processes);
    assert!(ended.recv().is_err(), "ended twice");
}

#[test]
fn processes_without_a_descriptor_are_found_by_the_sweep() {
    let (processes, ended) = processes();
    let mut child = child();
    let token = processes.token(child.id());
    for process in processes.shared.lock().processes.values_mut() {
        process.exit = None;
    }
    processes.shared.wake();
    drop(child.stdin.take());
    child.wait().expect("ends");
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(token));
}

#[test]
fn a_reused_thread_id_gets_a_new_token() {
    let (processes, _ended) = processes();
    let mut child = child();
    let token = processes.token(child.id());
    {
        // As if the id had belonged to an earlier thread and been silent since.
        let mut state = processes.shared.lock();
        let thread = state.threads.get_mut(&child.id()).expect("known");
        thread.ticks -= 1;
        thread.used = Instant::now().checked_sub(IDLE * 2).expect("the machine is up for longer");
        let (start, process) = state.processes.drain().next().expect("one");
        state.processes.insert(Start { ticks: start.ticks - 1, ..start }, process);
    }
    assert_ne!(processes.token(child.id()), token);
    drop(child.stdin.take());
    child.wait().expect("ends");
}

#[test]
fn the_maps_stay_bounded() {
    let (processes, ended) = processes();
    let born = Instant::now();
    {
        let mut state = processes.shared.lock();
        for process in 0..PROCESSES_MAX as u32 {
            // Ids above the kernel's limit, which no process has; descriptors of ourselves, which
            // never fire.
            let start = Start { process: u32::MAX - process, ticks: 1 };
            let token = Token(u128::from(process));
            let own = Pid::from_raw(std::process::id() as i32).expect("not 0");
            let exit =
                (process < 4).then(|| Arc::new(rustix::process::pidfd_open(own, PidfdFlags::empty()).expect("pidfd")));
            state.processes.insert(start, Process { token, exit, born: born + Duration::from_nanos(process.into()) });
            state.threads.insert(u32::MAX - process, Thread { token, start, ticks: 1, used: born });
        }
        assert_eq!(state.forget_oldest(), Some(Token(0)));
        assert_eq!((state.processes.len(), state.threads.len()), (PROCESSES_MAX - 1, PROCESSES_MAX - 1));
    }
    processes.token(own_thread());
    assert!(processes.live() <= PROCESSES_MAX);
    assert!(processes.shared.lock().threads.len() <= THREADS_MAX);
    // Those without a descriptor exist nowhere, so the sweep ends them all.
    processes.shared.wake();
    for _ in 4..PROCESSES_MAX {
        ended.recv_timeout(PATIENCE).expect("swept");
    }
}

#[test]
fn start_times_survive_odd_program_names() {
    assert!(start_ticks(std::process::id()).is_some_and(|ticks| ticks > 0));
    assert_eq!(start_ticks(u32::MAX), None);
    assert_eq!(thread_group(own_thread()), Some(std::process::id()));
}
