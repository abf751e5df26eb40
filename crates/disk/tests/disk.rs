//! An emulated disk with a small ext4 on it. Needs root, /dev/fuse and loop devices; says so where
//! they are absent.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use disk::{Counters, Disk, Model, format, missing, private_mounts};

const PAGE: usize = 4096;
const FILE_PAGES: usize = 2048;

/// Bytes that differ from page to page.
fn content() -> Vec<u8> {
    let page = |index: usize| (0..PAGE).map(move |byte| (index.wrapping_mul(31) ^ byte ^ (byte >> 5)) as u8);
    (0..FILE_PAGES).flat_map(page).collect()
}

/// Runs `check` with a disk of the model `name` in mounts of its own, in a thread of its own.
fn with_disk(name: &str, check: impl FnOnce(&mut Disk) + Send + 'static) {
    if let Some(reason) = missing() {
        eprintln!("skipped: {reason}");
        return;
    }
    let model = *Model::named(name).expect("a model");
    let work = move || {
        private_mounts().expect("mounts of its own");
        let folder = tempfile::tempdir().expect("folder");
        let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
        fs::create_dir_all(tree.join("sub")).expect("tree");
        fs::write(tree.join("sub/file"), content()).expect("file");
        fs::write(tree.join("small"), "a small file\n").expect("file");
        format(&tree, &image, 64 << 20).expect("ext4");
        let mut disk = Disk::attach(&image, &model, folder.path()).expect("disk");
        check(&mut disk);
        let name = disk.device().file_name().expect("name").to_owned();
        drop(disk);
        // Somebody else may have it by now.
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let still = fs::read_to_string(backing).unwrap_or_default();
        assert!(!still.contains(&*folder.path().to_string_lossy()), "the loop device was left: {still}");
    };
    std::thread::spawn(work).join().expect("the check");
}

/// What reading these pages of the file cold costs the disk.
fn cost(disk: &mut Disk, pages: impl Iterator<Item = usize>) -> Counters {
    disk.mount_cold().expect("mount");
    let file = File::open(disk.root().join("sub/file")).expect("open");
    let before = disk.counters();
    let mut page = [0; PAGE];
    for index in pages {
        file.read_exact_at(&mut page, (index * PAGE) as u64).expect("read");
    }
    disk.counters().since(&before)
}

#[test]
fn fuse_a_file_is_read_back_byte_for_byte_and_only_when_cold_from_the_disk() {
    with_disk("sata", |disk| {
        let expected = content();
        let read = |path: &Path| fs::read(path.join("sub/file")).expect("read");
        disk.mount_cold().expect("mount");
        let fresh = disk.counters();
        assert!(read(disk.root()) == expected, "the bytes differ");
        let cold = disk.counters();
        assert!(cold.since(&fresh).bytes >= expected.len() as u64, "{cold:?}");
        assert!(read(disk.root()) == expected, "the bytes differ");
        assert_eq!(disk.counters(), cold, "warm: nothing comes from the disk");
        disk.mount_cold().expect("mount again");
        let before = disk.counters();
        assert!(read(disk.root()) == expected, "the bytes differ");
        assert!(disk.counters().since(&before).bytes >= expected.len() as u64, "cold again");
        assert_eq!(fs::read_to_string(disk.root().join("small")).expect("read"), "a small file\n");
    });
}

#[test]
fn fuse_scattered_reads_cost_the_model_more_than_sequential_ones() {
    with_disk("hdd", |disk| {
        let sequential = cost(disk, 0..FILE_PAGES);
        // Every sixteenth page, from both ends in turn.
        let count = FILE_PAGES / 16;
        let place = move |index: usize| if index.is_multiple_of(2) { index / 2 } else { count - 1 - index / 2 };
        let scattered = cost(disk, (0..count).map(move |index| place(index) * 16));
        assert!(scattered.seeks > sequential.seeks * 4, "{scattered:?}, sequential {sequential:?}");
        assert!(scattered.busy > sequential.busy * 4, "{scattered:?}, sequential {sequential:?}");
        assert!(sequential.bytes >= (FILE_PAGES * PAGE) as u64 && sequential.requests < count as u64, "{sequential:?}");
    });
}

#[test]
fn fuse_settings_follow_the_model() {
    with_disk("hdd", |disk| {
        let device = disk.device().file_name().expect("name").to_owned();
        let setting = move |name: &str| {
            let path = Path::new("/sys/block").join(&device).join("queue").join(name);
            fs::read_to_string(path).expect("setting").trim().to_string()
        };
        assert_eq!((setting("rotational").as_str(), setting("read_ahead_kb").as_str()), ("1", "128"));
        disk.change(Model::named("net").expect("a model"), 512).expect("change");
        assert_eq!((setting("rotational").as_str(), setting("read_ahead_kb").as_str()), ("0", "512"));
    });
}
