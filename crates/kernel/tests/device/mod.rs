//! The test device: what is in its initial file system, on its disks, and which system calls its
//! programs make.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use kernel::{Calls, Initramfs, Policy, Processor};
use pack::LocalRoot;
use syscalls::analysis::{self, Subject, analyse};

/// What is asked by its name on the command line, so that the analysis cannot see it: these calls
/// must not count. Places of our static binary that are not resolved: musl makes a change of user
/// on all threads by number, and a lock of a file is in a function of many ways.
const POLICY: &str = r#"
[[site]]
object = "calls"
function = "syscall"
calls = []

[[site]]
object = "runnel"
calls = ["flock", "setuid", "setgid", "setreuid", "setregid", "setresuid", "setresgid"]
"#;

/// Our static binary, for a mount of an image by FUSE; `./x dist x86_64` makes one.
const STATIC_BINARY: &str = "RUNNEL_STATIC_BINARY";

const CROSS_COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Files of a device in a folder of this machine.
pub struct Device {
    work: PathBuf,
    /// The initial file system.
    root: PathBuf,
    /// What is on the second disk, if programs are started from there; else some files.
    image: Option<PathBuf>,
    processor: Processor,
}

/// Runs a program that must succeed.
pub fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Device {
    /// The web server, in `work/device`.
    pub fn web(work: &Path) -> Self {
        let device = Self::server(work, work.join("device"), Processor::X86_64, Path::new("/bin/busybox"), "gcc");
        let file = |path: &str, contents: &[u8]| write(&device.root.join(path), contents);
        match std::env::var_os(STATIC_BINARY).map(PathBuf::from) {
            Some(binary) => {
                file("bin/runnel", &fs::read(&binary).unwrap());
                let (tree, image) = (device.root.join("www"), device.root.join("app.rnl"));
                run(Command::new(&binary).arg("pack").arg(tree).arg("-o").arg(image));
            }
            None => eprintln!("skipped: FUSE: {STATIC_BINARY} names no static runnel"),
        }
        device
    }

    /// Whether this machine can make a device for AArch64; with a note if not.
    pub fn has_virt() -> bool {
        let found = [CROSS_COMPILER, "qemu-system-aarch64"].map(|tool| Command::new(tool).arg("--version").output());
        let has = found.iter().all(Result::is_ok);
        if !has {
            eprintln!("skipped: no {CROSS_COMPILER} or no qemu-system-aarch64; ./x test --kernel installs both");
        }
        has
    }

    /// The same for AArch64, in `work/virt`.
    pub fn virt(work: &Path) -> Self {
        let busybox = foreign_package(&work.join("virt.apt"), "arm64", "busybox-static").join("bin/busybox");
        Self::server(work, work.join("virt"), Processor::Aarch64, &busybox, CROSS_COMPILER)
    }

    fn server(work: &Path, root: PathBuf, processor: Processor, busybox: &Path, compiler: &str) -> Self {
        let here = here();
        let root = initial(root, busybox, &["www/cgi-bin", "etc"], "init");
        let file = |path: &str, contents: &[u8]| write(&root.join(path), contents);
        for program in ["calls", "work", "kexec"] {
            let source = here.join(format!("{program}.c"));
            run(Command::new(compiler).args(["-static", "-O1", "-pthread", "-o"]).arg(root.join(program)).arg(source));
        }
        // Other things that it may do instead, by `rdinit=`.
        for script in ["frozen", "pressure", "restart"] {
            file(script, &fs::read(here.join(format!("{script}.init"))).unwrap());
        }
        file("service", kernel::reference::WEB_SERVICE.as_bytes());
        file("www/index.html", b"hello\n");
        file("www/cgi-bin/hello", b"#!/bin/sh\necho Content-type: text/plain\necho\necho hello $QUERY_STRING\n");
        file("etc/passwd", b"root::0:0::/:/bin/sh\nnobody::65534:65534::/:/bin/sh\n");
        let blob: Vec<u8> = (0..40_000u32).flat_map(|index| index.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        file("www/blob", &blob);
        Self { work: work.to_path_buf(), root, image: None, processor }
    }

    /// Python on a read-only image, in `work/python`.
    pub fn python(work: &Path) -> Self {
        let root = initial(work.join("python/initial"), Path::new("/bin/busybox"), &[], "python.init");
        let image = work.join("python/image");
        fresh(&image);
        for name in ["usr/bin", "usr/lib/x86_64-linux-gnu", "lib64", "data", "dev", "proc", "tmp"] {
            fs::create_dir_all(image.join(name)).unwrap();
        }
        symlink("usr/lib", image.join("lib")).unwrap();
        let (program, modules) = ("/usr/bin/python3.11", "/usr/lib/python3.11");
        run(Command::new("cp").arg(program).arg(image.join("usr/bin")));
        run(Command::new("cp").args(["-r", modules]).arg(image.join("usr/lib")));
        for spare in ["test", "idlelib", "lib2to3", "ensurepip", "config-3.11-x86_64-linux-gnu"] {
            let spare = image.join("usr/lib/python3.11").join(spare);
            if spare.exists() {
                fs::remove_dir_all(spare).unwrap();
            }
        }
        let extensions = fs::read_dir(Path::new(modules).join("lib-dynload")).unwrap();
        let objects = extensions.map(|entry| entry.unwrap().path()).chain([PathBuf::from(program)]);
        let needed: BTreeSet<PathBuf> = objects.flat_map(|object| libraries(&object)).collect();
        for library in needed {
            let folder = if library.starts_with("/lib64") { "lib64" } else { "usr/lib/x86_64-linux-gnu" };
            run(Command::new("cp").arg("-L").arg(&library).arg(image.join(folder)));
        }
        write(&image.join("work.py"), &fs::read(here().join("work.py")).unwrap());
        Self { work: work.to_path_buf(), root, image: Some(image), processor: Processor::X86_64 }
    }

    /// What its kernel is built for.
    pub fn processor(&self) -> Processor {
        self.processor
    }

    /// A list of the hardware that it finds, if there is one.
    pub fn hardware(&self) -> Option<&'static str> {
        (self.processor == Processor::X86_64).then_some("qemu-q35.devices")
    }

    /// A list of the calls of its programs, where they are not analysed: those of AArch64.
    pub fn call_list(&self) -> Option<PathBuf> {
        (self.processor == Processor::Aarch64).then(|| here().join("virt.syscalls"))
    }

    /// The calls of all its programs, where they are analysed.
    pub fn calls(&self) -> Calls {
        if self.processor == Processor::Aarch64 {
            return Calls::default();
        }
        let path = self.work.join("device.policy");
        fs::write(&path, POLICY).unwrap();
        let policy = Policy::read(&path).unwrap();
        let options = analysis::Options { with_arguments: true, policy: policy.of_programs(), ..Default::default() };
        let mut calls = Calls::default();
        for root in [Some(&self.root), self.image.as_ref()].into_iter().flatten() {
            calls.add(root, &analyse(&LocalRoot::new(root), &Subject::Tree, &options).unwrap()).unwrap();
        }
        assert!(calls.contains("execve") && calls.contains("mount"));
        calls
    }

    /// Whether an image is mounted by FUSE on it.
    pub fn has_fuse(&self) -> bool {
        self.root.join("app.rnl").exists()
    }

    /// The initial file system, with numbers of calls to try: some that stay, and some that are
    /// removed.
    pub fn initramfs(&self, kept: &[u32], removed: &[u32]) -> Vec<u8> {
        let mut archive = Initramfs::new();
        add(&mut archive, &self.root, "");
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        archive.file("calls.kept", list(kept).as_bytes());
        archive.file("calls.removed", list(removed).as_bytes());
        archive.finish()
    }

    /// Disks: an empty ext4, and EROFS with compressed files.
    pub fn disks(&self, folder: &Path) -> Vec<PathBuf> {
        let (empty, erofs) = (folder.join("ext4"), folder.join("erofs"));
        fs::File::create(&empty).unwrap().set_len(32 << 20).unwrap();
        let seed = "hash_seed=00000000-0000-4000-8000-000000000001";
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-E", seed]).arg(&empty));
        if let Some(image) = &self.image {
            run(Command::new("mkfs.erofs").arg("-zlz4").arg(&erofs).arg(image));
            return vec![empty, erofs];
        }
        let tree = folder.join("tree");
        fs::create_dir_all(tree.join("many")).unwrap();
        fs::copy("/bin/busybox", tree.join("busybox")).unwrap();
        for index in 0..100u32 {
            fs::write(tree.join(format!("many/{index}")), index.to_string().repeat(index as usize)).unwrap();
        }
        symlink("../busybox", tree.join("many/link")).unwrap();
        run(Command::new("mkfs.erofs").arg("-zlz4hc").arg(&erofs).arg(&tree));
        vec![empty, erofs]
    }
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device")
}

fn fresh(folder: &Path) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::create_dir_all(folder).unwrap();
}

fn write(path: &Path, contents: &[u8]) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An initial file system with BusyBox, some folders more, and a script to begin with.
fn initial(root: PathBuf, busybox: &Path, folders: &[&str], script: &str) -> PathBuf {
    fresh(&root);
    for name in ["bin", "dev", "proc", "sys", "tmp", "mnt"].iter().chain(folders) {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    write(&root.join("bin/busybox"), &fs::read(busybox).expect("apt-get install busybox-static"));
    write(&root.join("init"), &fs::read(here().join(script)).unwrap());
    root
}

/// What a package of another processor has in it, unpacked in `folder`. This machine's own packages
/// stay as they are.
fn foreign_package(folder: &Path, architecture: &str, name: &str) -> PathBuf {
    let unpacked = folder.join(name);
    if unpacked.is_dir() {
        return unpacked;
    }
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    fs::write(folder.join("status"), "").unwrap();
    let at = |part: &str| folder.join(part).display().to_string();
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.arg("-q").current_dir(folder);
        for setting in [
            format!("APT::Architecture={architecture}"),
            format!("APT::Architectures={architecture}"),
            format!("Dir::State={}", at("")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "Debug::NoLocking=1".to_string(),
        ] {
            command.arg("-o").arg(setting);
        }
        run(command.args(words));
    };
    apt(&["update"]);
    apt(&["download", name]);
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let package = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_package).unwrap();
    let partial = folder.join("unpacking");
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&partial));
    fs::rename(partial, &unpacked).unwrap();
    unpacked
}

/// Libraries that a program or library loads, by its dynamic linker.
fn libraries(object: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(object).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/') && word.contains(".so"));
    words.map(PathBuf::from).collect()
}

/// Adds a folder with all that is in it, in the order of names.
fn add(archive: &mut Initramfs, folder: &Path, path: &str) {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        let (from, to) = (folder.join(&name), format!("{path}{name}"));
        if from.is_dir() {
            archive.folder(&to);
            add(archive, &from, &format!("{to}/"));
        } else {
            archive.file(&to, &fs::read(&from).unwrap());
        }
    }
}

/// Numbers of the system calls of 64 bits with one of these entry points (`sys_…`).
pub fn numbers(table: &Path, kinds: &[&str], entries: &[String]) -> Vec<u32> {
    let wanted: BTreeSet<&str> = entries.iter().map(String::as_str).collect();
    let text = fs::read_to_string(table).unwrap();
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let of_64 = lines.filter(|words| words.len() >= 4 && kinds.contains(&words[1]));
    of_64.filter(|words| wanted.contains(words[3])).filter_map(|words| words[0].parse().ok()).collect()
}
