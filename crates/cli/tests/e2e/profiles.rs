//! Flow graphs: from text, from traces, shown, drawn, edited.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use trace::{Event, Header, How, LOCAL, Source, Writer};
use units::{InodeId, Moment, PageId, Token};

use crate::support::*;

const TEXT: &str = "flow 1\nsize 500000\nblock 4096\nupdates live\nstart -> 0 x9\nseq 0..15 x9\n15 -> 40 x7\n15 -> 60 x2\n\
                    seq 40..43 x7\nused 80..82\nstage \"intro\" 0..15 share 80%\nstage \"later\" 40..70 rate 16000\n";

/// A trace of runs that read pages of one data file.
fn record(at: &Path, runs: &[&[u32]]) {
    let mut writer = Writer::new(&Header { image: LOCAL, source: Source::Perf });
    let mut push = |event| writer.push(&event).unwrap();
    for (number, run) in runs.iter().enumerate() {
        let (token, at) = (Token(number as u128 + 1), Moment(number as u64));
        push(Event::Start { token, at, name: b"/usr/bin/game".to_vec() });
        if number == 0 {
            push(Event::File { inode: InodeId(1), size: 40_000, path: b"usr/share/game/map.dat".to_vec() });
        }
        for index in *run {
            push(Event::Touch { token, at, page: PageId::new(InodeId(1), *index), how: How::Local });
        }
        push(Event::End { token, at });
    }
    writer.finish().unwrap();
    fs::write(at, writer.take()).unwrap();
}

#[test]
fn a_flow_graph_goes_from_text_to_file_and_back_and_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::write(at("game.txt"), TEXT).unwrap();
    ok(&["profile", "import", &at("game.txt"), "-o", &at("game.flow")]);
    fails(&["profile", "import", &at("game.txt"), "-o", &at("game.flow")], 2, "--force replaces it");
    assert_eq!(ok(&["profile", "export", &at("game.flow"), "--text"]), TEXT);
    // Into a store, where a server finds it as the profile of this file.
    ok(&["profile", "import", &at("game.txt"), "--volume", &at(""), "data", "maps/one"]);
    let kept: Vec<_> = fs::read_dir(at("volumes/data")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(fs::read(&kept[0]).unwrap(), fs::read(at("game.flow")).unwrap());
    fails(&["profile", "import", &at("game.txt"), "--volume", &at(""), "../data", "f"], 2, "cannot be the name");
    assert_eq!(ok(&["dump", &at("game.flow")]), TEXT);
    ok(&["profile", "export", &at("game.flow"), "--text", "-o", &at("again.txt")]);
    assert_eq!(fs::read_to_string(at("again.txt")).unwrap(), TEXT);
    let shown = ok(&["profile", "show", &at("game.flow")]);
    assert!(shown.contains("order   0..15 40..43 60 80..82"), "{shown}");
    assert!(shown.contains("\"intro\": 16 of 16 blocks are used, 80 % of the link"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&ok(&["profile", "show", &at("game.flow"), "--json"])).unwrap();
    assert_eq!((&json["used"], &json["stages"][1]["bytes_per_second"]), (&24.into(), &16_000.into()));
    assert!(ok(&["profile", "show", &at("game.flow"), "--dot"]).starts_with("digraph flow {"));
    assert!(ok(&["profile", "show", &at("game.flow"), "--svg"]).contains("</svg>"));
    fails(&["profile", "show", &at("game.flow"), "--svg", "--dot"], 2, "cannot be used with");
    // Mistakes have a place; files of other kinds say what they are.
    fs::write(at("bad.txt"), "flow 1\nseq 9..3\n").unwrap();
    fails(
        &["profile", "import", &at("bad.txt"), "-o", &at("bad.flow")],
        3,
        "bad.txt: line 2, column 5: the range 9..3 goes down",
    );
    assert!(!Path::new(&at("bad.flow")).exists());
    fails(&["profile", "show", &at("game.txt")], 3, "`runnel profile import` makes a graph of it");
    fails(&["profile", "import", &at("game.flow"), "-o", &at("x.flow")], 3, "a flow graph already");
    fails(&["profile", "show", &at("none.flow")], 4, "none.flow");
    let mut bytes = fs::read(at("game.flow")).unwrap();
    bytes[60] ^= 1;
    fs::write(at("damaged.flow"), bytes).unwrap();
    fails(&["profile", "show", &at("damaged.flow")], 3, "flow graph file corrupt");
    fails(&["dump", &at("damaged.flow")], 3, "flow graph file corrupt");
}

#[test]
fn a_flow_graph_is_learned_from_traces() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    record(Path::new(&at("one.trace")), &[&[4, 0, 9], &[4, 0, 1]]);
    record(Path::new(&at("two.trace")), &[&[4, 0, 1], &[2]]);
    let (one, two, output) = (at("one.trace"), at("two.trace"), at("map.flow"));
    ok(&["profile", "learn", &one, &two, "--file", "/usr/share/game/map.dat", "-o", &output]);
    let text = ok(&["profile", "export", &output]);
    let lines = "flow 1\nsize 40000\nblock 4096\nupdates live\nstart -> 4 x3\n0 -> 1 x2\n0 -> 9\n1 -> 2\n4 -> 0 x3\n";
    assert_eq!(text, lines);
    ok(&["profile", "learn", &one, "--file", "usr/share/game/map.dat", "--block", "16384", "-o", &output, "--force"]);
    assert!(ok(&["profile", "show", &output]).contains("order   1 0 2"));
    let message =
        fails(&["profile", "learn", &one, "--file", "/srv/map.dat", "-o", &at("x.flow")], 4, "no run in these traces");
    assert!(message.contains("but usr/share/game/map.dat"), "{message}");
    fails(
        &["profile", "learn", &one, "--file", "map.dat", "--block", "1000", "-o", &at("x.flow")],
        2,
        "a power of two",
    );
}

#[test]
fn a_flow_graph_is_edited_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let texts = folder.path().join("texts");
    fs::create_dir(&texts).unwrap();
    fs::write(at("game.txt"), TEXT).unwrap();
    ok(&["profile", "import", &at("game.txt"), "-o", &at("game.flow")]);
    let edit = |script: &str| {
        fs::write(at("editor"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(at("editor"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = runnel();
        command.args(["profile", "edit", &at("game.flow")]).env("TMPDIR", &texts).env_remove("VISUAL");
        let output = command.env("EDITOR", format!("{} --wait", at("editor"))).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let kept = || fs::read_dir(&texts).unwrap().count();
    let before = fs::read(at("game.flow")).unwrap();
    assert_eq!(edit("test \"$1\" = --wait"), (Some(0), "nothing changed\n".to_string()));
    assert_eq!((fs::read(at("game.flow")).unwrap(), kept()), (before.clone(), 0));
    let (code, message) = edit("sed -i 's/seq 40..43 x7/seq 40..43 x8/' \"$2\"");
    assert_eq!((code, kept()), (Some(0), 0), "{message}");
    assert!(ok(&["profile", "export", &at("game.flow")]).contains("seq 40..43 x8"));
    // A mistake: the graph stays, and so does the text.
    let saved = fs::read(at("game.flow")).unwrap();
    let (code, message) = edit("echo 'seq 3' >> \"$2\"; echo 'go on' >> \"$2\"");
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains("line 14, column 1: no line begins with `go`"), "{message}");
    assert!(message.contains("your text is kept in"), "{message}");
    assert_eq!((fs::read(at("game.flow")).unwrap(), kept()), (saved.clone(), 1));
    let (code, message) = edit("exit 7");
    assert!(code == Some(1) && message.contains("set $EDITOR"), "{message}");
    assert_eq!(fs::read(at("game.flow")).unwrap(), saved);
    assert_eq!(kept(), 1, "a text that was not changed is not kept");
}
