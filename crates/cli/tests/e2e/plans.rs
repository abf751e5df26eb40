//! dump and report of launch plans and of the traces that they are made from.

use std::fs;
use std::path::Path;

use trace::{Event, Header, How, LOCAL, Source, Writer};
use units::{ImageId, InodeId, Moment, PageId, Token};

use crate::support::*;

const PLAN: &[u8] = include_bytes!("../../../profile/testdata/sample-v1.plan");

/// A trace of this very program: it reads 64 pages, waits 2 s, reads 64 more.
fn record(at: &Path, image: ImageId) {
    let program = std::env::current_exe().unwrap();
    let path = program.to_str().unwrap().strip_prefix('/').unwrap().as_bytes().to_vec();
    let size = fs::metadata(&program).unwrap().len();
    let token = Token(1);
    let mut writer = Writer::new(&Header { image, source: Source::Perf });
    let mut push = |event| writer.push(&event).unwrap();
    push(Event::Start { token, at: Moment(10), name: program.to_str().unwrap().as_bytes().to_vec() });
    push(Event::File { inode: InodeId(1), size, path });
    for index in 0..128u32 {
        let at = Moment(if index < 64 { 10 } else { 2_000_000 } + u64::from(index) * 100);
        push(Event::Touch { token, at, page: PageId::new(InodeId(1), index), how: How::Local });
    }
    push(Event::Code { token, at: Moment(500_000), inode: InodeId(1), offset: 4096 });
    writer.finish().unwrap();
    fs::write(at, writer.take()).unwrap();
}

#[test]
fn a_plan_is_shown_as_text_and_as_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("app.plan"), PLAN).unwrap();
    let text = ok(&["dump".as_ref(), at("app.plan").as_os_str()]);
    assert!(text.starts_with("plan version 1 program /usr/bin/app runs 2 files 5 groups 3"), "{text}");
    assert!(text.contains("group 2 at 9.000000 with 1 lead"), "{text}");
    ok(&["report".as_ref(), at("app.plan").as_os_str(), "-o".as_ref(), at("plan.html").as_os_str()]);
    let html = fs::read_to_string(at("plan.html")).unwrap();
    assert!(html.contains("Launch plan of /usr/bin/app") && html.contains("usr/lib/libx.so.1+0x1000"), "{html}");

    record(&at("one.trace"), LOCAL);
    record(&at("two.trace"), LOCAL);
    let traces = [at("one.trace"), at("two.trace")];
    let page = at("traces.html");
    let arguments = [
        "report".as_ref(),
        traces[0].as_os_str(),
        traces[1].as_os_str(),
        "--auto".as_ref(),
        "-o".as_ref(),
        page.as_os_str(),
    ];
    ok(&arguments);
    let html = fs::read_to_string(at("traces.html")).unwrap();
    assert!(html.contains("+0x1000") && html.contains("Run 2, recorded by perf: it confirms them"), "{html}");
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut bytes = PLAN.to_vec();
    bytes[50] ^= 1;
    fs::write(at("damaged.plan"), &bytes).unwrap();
    fs::write(at("cut.plan"), &PLAN[..40]).unwrap();
    fs::write(at("good.plan"), PLAN).unwrap();
    record(&at("image.trace"), ImageId([7; 32]));
    let out = at("x.html");
    for (name, code, what) in [
        ("damaged.plan", 3, "plan file corrupt"),
        ("cut.plan", 3, "plan file has 40 bytes"),
        ("image.trace", 1, "such a trace is for `pack --trace`"),
        ("none.plan", 4, "none.plan"),
    ] {
        fails(&["report".as_ref(), at(name).as_os_str(), "-o".as_ref(), out.as_os_str()], code, what);
    }
    fails(&["dump".as_ref(), at("damaged.plan").as_os_str()], 3, "plan file corrupt");
    let good = at("good.plan");
    fails(
        &["report".as_ref(), good.as_os_str(), good.as_os_str(), "-o".as_ref(), out.as_os_str()],
        2,
        "one plan, or traces",
    );
    fails(
        &[
            "report".as_ref(),
            good.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
            "--burst-threshold".as_ref(),
            "nan".as_ref(),
        ],
        2,
        "--burst-threshold",
    );
    assert!(!out.exists(), "nothing is written for what is refused");
}
