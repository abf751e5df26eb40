//! The table alone: what stays, what goes, and that no server can make it loop.

use units::{Rng, SplitMix64};

use super::*;
use crate::volume::record::Record;

fn info(file: u64, kind: FileKind) -> FileInfo {
    FileInfo { seen: Seen { file, version: 1 }, kind, ..FileInfo::default() }
}

fn file(id: u64) -> FileInfo {
    info(id, FileKind::File)
}

fn folder(id: u64) -> FileInfo {
    info(id, FileKind::Folder)
}

#[test]
fn numbers_are_ids_and_paths_follow_renames() {
    let mut inodes = Inodes::new();
    let a = inodes.found(TOP, b"a", &folder(5));
    let b = inodes.found(a.0, b"b", &folder(6));
    let c = inodes.found(b.0, b"c", &file(7));
    assert_eq!([a.0, b.0, c.0], [5, 6, 7]);
    assert_eq!(inodes.path(c), Ok(b"a/b/c".to_vec()));
    assert_eq!(inodes.path(INodeNo(TOP)), Ok(vec![]));
    assert_eq!(inodes.path_in(INodeNo(TOP), b"x"), Ok(b"x".to_vec()));
    inodes.renamed((a.0, b"b"), (TOP, b"d"));
    assert_eq!(inodes.path(c), Ok(b"d/c".to_vec()));
    assert_eq!(inodes.folder_of(b), INodeNo(TOP));
    // Somebody else renamed the file: it is found under another name.
    assert_eq!(inodes.found(a.0, b"e", &file(7)), c);
    assert_eq!(inodes.path(c), Ok(b"a/e".to_vec()));
}

#[test]
fn a_file_made_here_keeps_its_number_when_it_gets_an_id() {
    let mut inodes = Inodes::new();
    let made = inodes.found(TOP, b"new", &file(0));
    assert!(made.0 > PROVISIONAL);
    assert_eq!(inodes.found(TOP, b"new", &file(9)), made);
    assert!(inodes.is_same(made, &file(9)) && !inodes.is_same(made, &file(8)));
    assert_eq!(inodes.peek(TOP, b"new", &file(9)), made);
    let other = inodes.found(TOP, b"other", &file(0));
    assert_ne!(other, made);
    assert!(inodes.is_same(other, &file(11)), "its id is learned");
    assert!(!inodes.is_same(other, &file(12)));
    inodes.forget(made, 2);
    assert_eq!(inodes.found(TOP, b"new", &file(9)), INodeNo(9), "once forgotten, it goes by its id");
}

#[test]
fn a_replaced_file_is_known_while_it_is_open() {
    let mut inodes = Inodes::new();
    let (old, new) = (inodes.found(TOP, b"f", &file(5)), inodes.found(TOP, b"f.tmp", &file(6)));
    inodes.opened(old, Handle(1), false);
    inodes.renamed((TOP, b"f.tmp"), (TOP, b"f"));
    assert_eq!(inodes.path(new), Ok(b"f".to_vec()));
    assert_eq!(inodes.path(old), Err(Nameless));
    inodes.forget(old, 1);
    assert_eq!(inodes.handle(old), Some(Handle(1)));
    inodes.closed(old, Handle(1));
    assert_eq!((inodes.len(), inodes.handle(old)), (2, None));
    inodes.removed(TOP, b"f");
    inodes.forget(new, 1);
    assert_eq!(inodes.len(), 1);
}

#[test]
fn a_replaced_file_of_another_device_is_another_file() {
    let mut inodes = Inodes::new();
    let old = inodes.found(TOP, b"f", &file(5));
    assert!(!inodes.is_same(old, &file(6)));
    let new = inodes.found(TOP, b"f", &file(6));
    assert_ne!(old, new);
    assert_eq!((inodes.path(old), inodes.path(new)), (Err(Nameless), Ok(b"f".to_vec())));
    // What has the id of a file but is a folder cannot have its number.
    let strange = inodes.found(TOP, b"g", &folder(6));
    assert!(strange.0 > PROVISIONAL);
}

#[test]
fn folders_stay_while_something_in_them_is_known() {
    let mut inodes = Inodes::new();
    let a = inodes.found(TOP, b"a", &folder(5));
    let b = inodes.found(a.0, b"b", &file(6));
    inodes.forget(a, 1);
    assert_eq!(inodes.path(b), Ok(b"a/b".to_vec()));
    inodes.forget(b, 1);
    assert_eq!(inodes.len(), 1);
    inodes.forget(INodeNo(TOP), 1 << 40);
    assert_eq!(inodes.path(INodeNo(TOP)), Ok(vec![]), "the top folder stays");
}

#[test]
fn what_the_kernel_was_told_is_remembered() {
    let mut inodes = Inodes::new();
    let a = inodes.found(TOP, b"a", &file(5));
    let mut now = file(5);
    assert!(!inodes.differs(a, &now));
    now.size = 10;
    assert!(inodes.differs(a, &now));
    inodes.tell(a, &now);
    assert!(!inodes.differs(a, &now));
    assert!(inodes.differs(INodeNo(77), &now), "of what is not known nothing was told");
}

#[test]
fn a_server_that_names_a_folder_inside_itself_makes_no_loop() {
    let mut inodes = Inodes::new();
    let a = inodes.found(TOP, b"a", &folder(5));
    let b = inodes.found(a.0, b"b", &folder(6));
    assert_eq!(inodes.found(b.0, b"c", &folder(5)), a);
    assert_eq!((inodes.path(a), inodes.path(b)), (Err(Nameless), Err(Nameless)));
    assert_eq!(inodes.found(a.0, b"self", &folder(5)), a);
    assert_eq!(inodes.path(a), Err(Nameless));
    inodes.found(TOP, b"a", &folder(5));
    assert_eq!(inodes.path(b), Ok(b"a/b".to_vec()), "found where it was, it has its path again");
    // Nor is anything but the top folder the top folder.
    assert_ne!(inodes.found(TOP, b"top", &folder(TOP)), INodeNo(TOP));
}

/// The table that the next daemon makes of the records.
fn resumed(records: &[u8]) -> Inodes {
    let mut inodes = Inodes::new();
    let taken = crate::volume::record::decode(records, |record| match record {
        Record::Next(next) => inodes.replay_next(next),
        Record::Inode { number, node } => inodes.replay(number, node),
        other => panic!("{other:?} is none of an inode"),
    });
    taken.expect("records");
    inodes.resume();
    inodes
}

fn assert_same(resumed: &Inodes, inodes: &Inodes) {
    assert_eq!((&resumed.by_file, &resumed.by_name), (&inodes.by_file, &inodes.by_name));
    assert_eq!((resumed.next, resumed.nodes.len()), (inodes.next, inodes.nodes.len()));
    for (number, node) in &inodes.nodes {
        let told = (node.told, number != &TOP);
        let expected =
            Node { told: None, is_doubtful: told.1, names: node.names.clone(), handles: node.handles.clone(), ..*node };
        assert_eq!(format!("{:?}", resumed.nodes[number]), format!("{expected:?}"));
    }
}

/// Random calls as a hostile server and a kernel could cause them: nothing panics, the next daemon
/// finds the same at any time, and when the kernel has forgotten everything, so has the table.
#[test]
fn prop_nothing_is_kept_that_the_kernel_forgot() {
    for seed in 0..200 {
        let mut rng = SplitMix64(seed);
        let mut draw = |below: u64| rng.next_u64() % below;
        let (mut inodes, mut told, mut open) = (Inodes::new(), HashMap::<u64, u64>::new(), Vec::new());
        let begin = Record::Begin { version: crate::volume::record::VERSION };
        let mut journal = crate::volume::record::encode(&[begin]);
        for step in 0..300 {
            let numbers: Vec<u64> = told.keys().copied().chain([TOP]).collect();
            let mut pick = || numbers[draw(numbers.len() as u64) as usize];
            let (one, other) = (pick(), pick());
            let names = [b"a", b"b", b"c"];
            let (name, to) = (names[draw(3) as usize], names[draw(3) as usize]);
            match draw(7) {
                0..=2 => {
                    let id = if draw(3) == 0 { 0 } else { draw(8) };
                    let found = if draw(2) == 0 { file(id) } else { folder(id) };
                    let number = inodes.found(one, name, &found);
                    *told.entry(number.0).or_default() += 1;
                }
                3 => inodes.removed(one, name),
                4 => inodes.renamed((one, name), (other, to)),
                5 if told.contains_key(&one) => {
                    inodes.opened(INodeNo(one), Handle(step), step % 2 == 0);
                    open.push((one, Handle(step)));
                }
                _ => {
                    if let Some(count) = told.remove(&one) {
                        inodes.forget(INodeNo(one), count);
                    }
                }
            }
            let mut records = Vec::new();
            inodes.take_changes(&mut records);
            journal.extend(crate::volume::record::encode(&records));
            if step % 97 == 0 {
                // All that is true takes the place of what was added.
                records = vec![Record::Begin { version: crate::volume::record::VERSION }];
                inodes.all(&mut records);
                journal = crate::volume::record::encode(&records);
            }
            if step % 10 == 0 {
                assert_same(&resumed(&journal), &inodes);
            }
            // Whatever it says, it ends.
            let _ = inodes.path(INodeNo(one));
        }
        open.iter().for_each(|(number, handle)| inodes.closed(INodeNo(*number), *handle));
        told.iter().for_each(|(number, count)| inodes.forget(INodeNo(*number), *count));
        assert_eq!(inodes.len(), 1, "seed {seed}: nodes are left: {:?}", inodes.nodes);
        assert!(inodes.by_file.is_empty() && inodes.by_name.is_empty(), "seed {seed}: names are left");
    }
}

#[test]
fn a_file_with_several_names_goes_by_any_that_is_left() {
    let mut inodes = Inodes::new();
    let linked = FileInfo { links: 3, ..file(7) };
    let folder = inodes.found(TOP, b"d", &folder(5));
    let number = inodes.found(TOP, b"a", &linked);
    assert_eq!((inodes.found(folder.0, b"b", &linked), inodes.path(number)), (number, Ok(b"d/b".to_vec())));
    inodes.removed(folder.0, b"b");
    assert_eq!(inodes.path(number), Ok(b"a".to_vec()));
    inodes.found(folder.0, b"c", &linked);
    inodes.renamed((TOP, b"a"), (TOP, b"e"));
    assert_eq!(inodes.path(number), Ok(b"e".to_vec()));
    inodes.removed(TOP, b"e");
    assert_eq!(inodes.path(number), Ok(b"d/c".to_vec()));
    // However many names there are, few are remembered, and none after the kernel forgot the file.
    for name in 0..100u32 {
        inodes.found(folder.0, &name.to_le_bytes(), &linked);
    }
    assert!(inodes.nodes[&7].names.len() <= NAMES_MAX && inodes.nodes[&5].children as usize <= NAMES_MAX);
    inodes.forget(number, 103);
    assert_eq!((inodes.len(), inodes.nodes[&5].children), (2, 0));
    assert!(inodes.by_name.len() == 1 && inodes.by_file.len() == 1);
}
