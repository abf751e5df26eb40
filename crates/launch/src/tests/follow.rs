//! Whether the children of a launched program are traced.

use std::os::unix::fs::FileExt;

use profile::plan::{Breakpoint, Trigger};
use units::Moment;

use super::*;

/// Launches a shell whose child tells who traces it, with a breakpoint that nobody comes to in
/// processes of `process`.
fn tracer_of_child(process: &str) -> Option<String> {
    let (folder, mut plan) = tree(&[1]);
    // Code of a program that is not run here.
    let (code, offset) = (Path::new("/bin/ls").canonicalize().unwrap(), 0x4000);
    let mut byte = [0];
    fs::File::open(&code).unwrap().read_exact_at(&mut byte, offset).unwrap();
    let files = [code, Path::new(process).canonicalize().unwrap()];
    plan.files.extend(
        files.iter().map(|path| PlanFile { path: path.as_os_str().as_bytes()[1..].to_vec(), identity: identity(path) }),
    );
    let breakpoint = Breakpoint { file: 1, offset, byte: byte[0], process: 2, at: Moment(1) };
    plan.groups.push(Group { trigger: Trigger::Breakpoint(breakpoint), ..Group::default() });
    let told = folder.path().join("told");
    let script = format!("(exec grep TracerPid /proc/self/status) > {}; true", told.display());
    let command: Vec<OsString> = ["/bin/sh", "-c", &script].map(OsString::from).to_vec();
    let request = Request {
        program: Program::find(&command).unwrap(),
        command,
        store: None,
        plan: Some(plan),
        disk: Some(DiskKind::Other),
        budget_bytes: None,
        always: true,
        breakpoints: true,
        // Any library does: nobody is killed here.
        auditor: None,
        preload: Some("libc.so.6".into()),
        hints: Arc::new(NoHints),
    };
    let outcome = launch(&request, decide(&request)).unwrap();
    match outcome.traced {
        Some(Ok(_)) => Some(fs::read_to_string(told).unwrap().split_whitespace().last().unwrap().to_string()),
        other => {
            eprintln!("skipped: {other:?} {:?}", outcome.notes);
            None
        }
    }
}

#[test]
fn ptrace_children_are_followed_only_if_a_site_lies_in_another_program() {
    if let Some(tracer) = tracer_of_child("/bin/sh") {
        assert_eq!(tracer, "0", "a child may be a debugger");
    }
    if let Some(tracer) = tracer_of_child("/bin/grep") {
        assert_ne!(tracer, "0", "its breakpoint could be there");
    }
}
