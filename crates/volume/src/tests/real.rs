//! The same on the disk of this machine.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use units::{Rng, SplitMix64};

use super::model::{Model, Node, random, walk};
use super::*;

/// What lies in a folder, by the standard library and the attributes as docs/formats/volume.md has
/// them.
fn plain(folder: &Path) -> Model {
    let mut model = Model::default();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let at = entry.unwrap().path();
            let name = at.strip_prefix(folder).unwrap().to_str().unwrap().as_bytes().to_vec();
            if name == OWN_FOLDER {
                continue;
            }
            let meta = fs::symlink_metadata(&at).unwrap();
            let mtime_ns = meta.mtime() * 1_000_000_000 + meta.mtime_nsec();
            let (kind, bytes) = match meta.file_type() {
                kind if kind.is_dir() => (Kind::Folder, Vec::new()),
                kind if kind.is_symlink() => {
                    (Kind::Symlink, fs::read_link(&at).unwrap().into_os_string().into_encoded_bytes())
                }
                _ => (Kind::File, fs::read(&at).unwrap()),
            };
            assert_eq!(meta.mode() & 0o6000, 0, "{at:?}");
            let mut node = Node {
                kind,
                mode: (meta.permissions().mode() & 0o7777) as u16,
                owner: Owner { uid: meta.uid(), gid: meta.gid() },
                rdev: 0,
                mtime_ns: if kind == Kind::Folder { 0 } else { mtime_ns },
                atime_ns: Some(meta.atime() * 1_000_000_000 + meta.atime_nsec()).filter(|atime| *atime >= 1 << 61),
                bytes,
                xattrs: attributes(&at, kind),
            };
            let mut value = [0; 16];
            if kind != Kind::Symlink && rustix::fs::getxattr(&at, "user.runnel.inode", &mut value) == Ok(16) {
                use Kind::*;
                let number = |at: usize| u32::from_le_bytes(value[at..at + 4].try_into().unwrap());
                node.kind = [File, Folder, Symlink, Fifo, Socket, CharDevice, BlockDevice][usize::from(value[1])];
                node.mode = u16::from_le_bytes([value[2], value[3]]);
                node.owner = Owner { uid: number(4), gid: number(8) };
                node.rdev = number(12);
            }
            if kind == Kind::Folder {
                open.push(at);
            }
            model.insert_as(&name, node, (meta.nlink() > 1 && kind != Kind::Folder).then_some(meta.ino()));
        }
    }
    model
}

/// Those that random transactions set, as the system has them.
fn attributes(at: &Path, kind: Kind) -> Xattrs {
    let found = ["user.a", "user.b"].into_iter().filter(|_| kind != Kind::Symlink).filter_map(|name| {
        let mut value = vec![0; 1024];
        let bytes = rustix::fs::getxattr(at, name, &mut value[..]).ok()?;
        value.truncate(bytes);
        Some((name.as_bytes().to_vec(), value))
    });
    found.collect()
}

#[test]
fn ref_random_transactions_leave_what_the_model_says() {
    for (seed, apart) in [(1, false), (2, true)] {
        let mut rng = SplitMix64(seed);
        let (folder, journal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let reopen = || Volume::open(folder.path(), apart.then_some(journal.path()), SMALL).unwrap();
        let mut volume = reopen();
        let owner = fs::metadata(folder.path()).unwrap();
        let mut model = Model::default();
        model.owner = Owner { uid: owner.uid(), gid: owner.gid() };
        for round in 0..300 {
            let mut transaction = random(&mut rng);
            for operation in &mut transaction.operations {
                // What only root may write to is no affair of the model.
                if let Operation::Create { mode, .. } = operation {
                    *mode |= 0o200;
                }
            }
            let expected = model.commit(&transaction).is_ok();
            let result = volume.commit(transaction.clone());
            assert_eq!(result.is_ok(), expected, "seed {seed}: {result:?} of {transaction:?}");
            if round % 20 == 0 {
                assert_eq!(plain(folder.path()), model, "seed {seed}, round {round}");
                let (shown, versions) = walk(&volume);
                assert_eq!(shown, model);
                if rng.below(2) == 0 {
                    drop(volume);
                    volume = reopen();
                    assert_eq!(walk(&volume).1, versions);
                }
            }
        }
        assert_eq!(plain(folder.path()), model);
    }
}

/// With and without openat2, which sandboxes may forbid.
#[test]
fn nothing_leads_out_of_the_folder() {
    let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink(outside.path(), folder.path().join("way")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
    let fifo = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for walk in [false, true] {
        let tree = RealDisk::open(folder.path()).unwrap();
        let own = tree.folder(OWN_FOLDER, true).unwrap();
        tree.set_walk(walk);
        let volume = Volume::on(Arc::new(tree), Some(Arc::new(own)), SMALL).unwrap();
        for at in ["way/secret", "file/x"] {
            assert!(matches!(volume.stat(&path(at)), Err(VolumeError::NotFolder { .. })), "{at}");
            let written = volume.commit(transaction(vec![write(at, None, 0, b"x")]));
            assert!(matches!(written, Err(VolumeError::NotFolder { .. })), "{at}");
        }
        assert!(matches!(volume.read(&path("file"), None, 0, 1), Err(VolumeError::NotFile { .. })));
        assert!(matches!(volume.stat(&path("pipe")), Err(VolumeError::Special { .. })));
        let written = volume.commit(transaction(vec![write("pipe", None, 0, b"x")]));
        assert!(matches!(written, Err(VolumeError::Special { .. })));
        let names: Vec<_> = volume.list(&VolumePath::top(), b"", 10).unwrap().entries;
        assert_eq!(names.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), [&b"file"[..], b"way"]);
        // A hard link is its file, wherever its other name lies.
        let linked = folder.path().join(format!("linked{walk}"));
        fs::hard_link(outside.path().join("secret"), &linked).unwrap();
        let name = linked.file_name().unwrap().to_str().unwrap();
        assert_eq!(content(&volume, &path(name)).unwrap().1, b"secret");
        let written = volume.commit(transaction(vec![write(name, None, 0, b"x")]));
        assert!(written.is_ok());
        assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"xecret");
        volume.commit(transaction(vec![unlink(name)])).unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
    }
}

#[test]
fn a_sparse_file_of_4_gib_costs_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let volume = Volume::open(folder.path(), None, Options { journal_bytes: 1 << 20, ..Options::default() }).unwrap();
    let end = (4u64 << 30) - 100;
    volume.commit(transaction(vec![create("f"), write("f", None, end, &[9; 100])])).unwrap();
    let last = (4u64 << 30) / 4096 - 1;
    assert_eq!(volume.stat(&path("f")).unwrap().size, 4 << 30);
    let block = volume.read(&path("f"), None, last, 1).unwrap().bytes;
    assert!(block[..3996].iter().all(|byte| *byte == 0) && block[3996..] == [9; 100]);
    let table = volume.block_table(&path("f"), None, 0, (last + 1) as u32).unwrap();
    let present = table.present.iter().filter(|present| **present).count();
    let taken = fs::metadata(folder.path().join("f")).unwrap().blocks() * 512;
    assert!(table.present[last as usize] && present as u64 * 4096 <= taken && taken < 1 << 20, "{present} {taken}");
}

#[test]
fn changes_behind_the_back_are_seen_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Volume::open(folder.path(), None, SMALL).unwrap();
    let volume = open();
    let file = folder.path().join("f");
    let seen = volume.commit(transaction(vec![create("f"), write("f", None, 0, b"ours")])).unwrap().versions[1];
    fs::write(&file, "theirs").unwrap();
    let refused = volume.commit(transaction(vec![write("f", Some(seen), 0, b"x")]));
    assert!(matches!(refused, Err(VolumeError::Conflict { .. })));
    let changed = volume.stat(&path("f")).unwrap().seen;
    assert!(changed.version > seen.version && changed.file == seen.file);
    drop(volume);
    // An editor's way: another file in its place. The name is the same, the file is not.
    fs::write(folder.path().join("new"), "theirs").unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    let volume = open();
    let refused = volume.commit(transaction(vec![write("f", Some(changed), 0, b"x")]));
    assert!(matches!(refused, Err(VolumeError::Conflict { .. })));
    assert_eq!(content(&volume, &path("f")).unwrap().1, b"theirs");
}
