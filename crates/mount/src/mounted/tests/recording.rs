//! What a recorder is told of a real mount.

use std::ops::Range;

use client::NO_TOKEN;

use super::*;
use crate::record::{Answer, Recorder};

/// The calls of a recorder, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Heard {
    Start(Token, Vec<u8>),
    Touch(Token, InodeId, Range<u32>, Answer),
    End(Token),
}

#[derive(Debug, Default)]
struct Ear {
    heard: Mutex<Vec<Heard>>,
    images: Mutex<Vec<units::ImageId>>,
}

impl Ear {
    fn hear(&self, heard: Heard) {
        self.heard.lock().expect("unpoisoned").push(heard);
    }

    fn all(&self) -> Vec<Heard> {
        self.heard.lock().expect("unpoisoned").clone()
    }
}

impl Recorder for Ear {
    fn begin(&self, metadata: &Arc<Metadata>) {
        self.images.lock().expect("unpoisoned").push(metadata.id());
    }

    fn start(&self, token: Token, name: Vec<u8>) {
        self.hear(Heard::Start(token, name));
    }

    fn touch(&self, token: Token, inode: InodeId, pages: Range<u32>, how: Answer) {
        self.hear(Heard::Touch(token, inode, pages, how));
    }

    fn end(&self, token: Token) {
        self.hear(Heard::End(token));
    }
}

#[test]
fn fuse_a_recorder_gets_every_first_touch_and_nothing_else() {
    need_fuse!();
    let ear = Arc::new(Ear::default());
    let mut script = Node::file(b"script", b"#!/bin/sh\nexit 0\n");
    script.permissions = 0o755;
    let nodes = [Node::file(b"big", &pattern(200 * PAGE_BYTES + 5, 9)), script];
    let options = Options { control: false, recorder: Some(ear.clone()), ..Options::default() };
    let mount = mount_with(&nodes, options);
    let (big, script) = (mount.source.inode("/big"), mount.source.inode("/script"));
    assert_eq!(*ear.images.lock().expect("unpoisoned"), [mount.source.metadata.id()]);

    let file = fs::File::open(mount.at("big")).expect("opens");
    let mut page = vec![0; PAGE_BYTES];
    for index in [7, 3, 7, 4] {
        file.read_exact_at(&mut page, index * PAGE_BYTES as u64).expect("read");
    }
    // One call over several pages, two of which are there, and the end of the file, which is half a
    // page.
    file.read_exact_at(&mut vec![0; 8 * PAGE_BYTES], 2 * PAGE_BYTES as u64).expect("read");
    assert_eq!(file.read_at(&mut page, 200 * PAGE_BYTES as u64).expect("read"), 5);
    let copied = Command::new("dd")
        .args(["bs=4096", "skip=50", "count=2", "of=/dev/null", "status=none"])
        .arg(format!("if={}", mount.at("big").display()))
        .status()
        .expect("dd starts");
    assert!(copied.success());
    assert!(Command::new(mount.at("script")).status().expect("sh starts").success());
    drop(file);
    mount.mounted.unmount().expect("unmounts");

    let heard = ear.all();
    let touched: Vec<(InodeId, u32)> = heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Touch(_, inode, pages, Answer::AtOnce) => Some(pages.clone().map(|page| (*inode, page))),
            Heard::Touch(.., Answer::Later) => panic!("the source answers at once"),
            _ => None,
        })
        .flatten()
        .collect();
    let expected = [7, 3, 4, 2, 5, 6, 8, 9, 200, 50, 51].map(|page| (big, page));
    assert_eq!(touched[..11], expected);
    assert_eq!(touched[11..], [(script, 0)]);

    let started: Vec<(Token, Vec<u8>)> = heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Start(token, name) => Some((*token, name.clone())),
            _ => None,
        })
        .collect();
    let [this, dd, shell] = &started[..] else { panic!("{started:?}") };
    let own = fs::read_link("/proc/self/exe").expect("readable");
    assert_eq!(this.1, own.as_os_str().as_bytes());
    assert!(dd.1.ends_with(b"/dd") || dd.1.ends_with(b"/coreutils") || dd.1.ends_with(b"/busybox"), "{started:?}");
    assert_eq!(shell.1, b"/script", "a process that becomes a script of the image has its name");
    assert!(this.0 != dd.0 && dd.0 != shell.0 && this.0 != NO_TOKEN);
    // A touch belongs to who started last here, since they ran one after the other.
    let mut current = NO_TOKEN;
    for event in &heard {
        match event {
            Heard::Start(token, _) => current = *token,
            Heard::Touch(token, ..) => assert_eq!(*token, current),
            Heard::End(token) => assert!(started.iter().any(|(known, _)| known == token)),
        }
    }
}

#[test]
fn fuse_a_late_answer_is_told_from_one_at_once() {
    need_fuse!();
    let ear = Arc::new(Ear::default());
    let options = Options { control: false, recorder: Some(ear.clone()), ..Options::default() };
    let mount = mount_with(&[Node::file(b"a", &pattern(10, 1))], options);
    let waits = mount.source.stall();
    let path = mount.at("a");
    let reader = thread::spawn(move || fs::read(path));
    waits.recv().expect("the READ arrives");
    for done in mount.source.waiting.lock().expect("unpoisoned").drain(..) {
        done(Ok(&pattern(10, 1)));
    }
    assert_eq!(reader.join().expect("no panic").expect("read"), pattern(10, 1));
    mount.mounted.unmount().expect("unmounts");
    let touches: Vec<Heard> = ear.all().into_iter().filter(|heard| matches!(heard, Heard::Touch(..))).collect();
    assert!(matches!(&touches[..], [Heard::Touch(_, _, pages, Answer::Later)] if *pages == (0..1)), "{touches:?}");
}
