//! Images of one tree, by us and by others: SquashFS and EROFS with the same codec, level and size
//! of a block. One that was made is kept, and made anew when its command, its tool or what goes
//! into it changed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::watch;

/// Level of zstd, and of LZ4 in the thorough way that each tool has.
const ZSTD_LEVEL: &str = "19";
const LZ4_LEVEL: &str = "12";

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codec {
    Zstd,
    Lz4,
}

impl Codec {
    pub(super) fn parse(name: &str) -> anyhow::Result<Codec> {
        [Codec::Zstd, Codec::Lz4].into_iter().find(|codec| codec.name() == name).context("the codecs are zstd and lz4")
    }

    fn name(self) -> &'static str {
        match self {
            Codec::Zstd => "zstd",
            Codec::Lz4 => "lz4",
        }
    }
}

/// A tree that is packed.
pub(super) struct Tree {
    folder: PathBuf,
    /// What is in it.
    digest: blake3::Hash,
}

impl Tree {
    /// Reads the whole tree to know when it changes.
    pub(super) fn new(folder: &Path) -> anyhow::Result<Tree> {
        Ok(Tree { folder: folder.to_path_buf(), digest: digest(folder)? })
    }

    /// Whether `file` was made of this tree, and `how`.
    pub(super) fn made(&self, file: &Path, how: &str) -> bool {
        file.exists() && fs::read_to_string(stamp(file)).is_ok_and(|text| text == self.stamp_text(how))
    }

    /// Says that `file` was made of this tree, and `how`.
    pub(super) fn keep(&self, file: &Path, how: &str) -> anyhow::Result<()> {
        fs::write(stamp(file), self.stamp_text(how)).with_context(|| file.display().to_string())
    }

    fn stamp_text(&self, how: &str) -> String {
        format!("{} {how}", self.digest)
    }
}

fn stamp(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_os_string();
    name.push(".stamp");
    PathBuf::from(name)
}

/// A hash over paths, modes and contents. Times are left out: a tree that is made again is the
/// same.
fn digest(folder: &Path) -> anyhow::Result<blake3::Hash> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let about = fs::symlink_metadata(&path)?;
            if about.is_dir() {
                open.push(path.clone());
            }
            found.insert(path, about);
        }
    }
    let mut hasher = blake3::Hasher::new();
    for (path, about) in &found {
        let name = path.strip_prefix(folder)?.as_os_str().as_bytes();
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name).update(&about.mode().to_le_bytes());
        if about.is_symlink() {
            hasher.update(fs::read_link(path)?.as_os_str().as_bytes());
        } else if about.is_file() {
            hasher.update(&about.len().to_le_bytes()).update_reader(fs::File::open(path)?)?;
        } else if about.file_type().is_char_device() || about.file_type().is_block_device() {
            hasher.update(&about.rdev().to_le_bytes());
        }
    }
    Ok(hasher.finalize())
}

/// An image.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// What it is called in results.
    pub(super) name: String,
    /// The type of its file system.
    pub(super) kind: &'static str,
    pub(super) path: PathBuf,
}

/// The programs that make images.
pub(super) struct Tools {
    pub(super) runnel: PathBuf,
    mksquashfs: PathBuf,
    mkfs_erofs: PathBuf,
}

impl Tools {
    /// Finds them, and says what is missing; `$EROFS_MKFS` names another mkfs.erofs.
    pub(super) fn find(runnel: &Path) -> anyhow::Result<Tools> {
        let named = std::env::var_os("EROFS_MKFS").map(PathBuf::from);
        let built = crate::cache().map(|cache| cache.join("erofs-utils/mkfs.erofs"));
        let mkfs_erofs = named.or(built).filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("mkfs.erofs"));
        let help =
            Command::new(&mkfs_erofs).arg("--help").output().map(|output| [output.stdout, output.stderr].concat());
        let help = String::from_utf8_lossy(&help.unwrap_or_default()).into_owned();
        ensure!(help.contains("zstd"), "no mkfs.erofs knows zstd; scripts/erofs-utils.sh builds one that does");
        let mksquashfs = find_program("mksquashfs").context("mksquashfs is missing; apt-get install squashfs-tools")?;
        find_program("mke2fs").context("mke2fs is missing; apt-get install e2fsprogs")?;
        for (tool, option) in [(&mkfs_erofs, "--version"), (&mksquashfs, "-version")] {
            let output = Command::new(tool).arg(option).output()?;
            eprintln!("   {}", String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default());
        }
        Ok(Tools { runnel: runnel.to_path_buf(), mksquashfs, mkfs_erofs })
    }
}

fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// What makes images of a tree.
pub(super) struct Maker<'a> {
    pub(super) tree: &'a Tree,
    /// Where images go; their names begin with `prefix`.
    pub(super) folder: &'a Path,
    pub(super) prefix: &'a str,
    pub(super) tools: &'a Tools,
}

impl Maker<'_> {
    /// An image of ours; `variant` says what is special about the `options`, and `trace` names hot
    /// pages. Hot blocks are no larger than others unless the options say so.
    pub(super) fn ours(
        &self,
        codec: Codec,
        block: &str,
        variant: &str,
        options: &[&str],
        trace: Option<&Path>,
    ) -> anyhow::Result<Image> {
        let level = if codec == Codec::Zstd { ZSTD_LEVEL } else { LZ4_LEVEL };
        let mut arguments = words(&["--small", "--no-dictionary", "--force", "--no-sandbox"]);
        arguments.extend(words(&["--codec", codec.name(), "--level", level, "--block-size", block]));
        arguments.extend(words(options));
        if let Some(trace) = trace {
            arguments.extend([OsStr::new("--trace"), trace.as_os_str()].map(OsString::from));
        }
        self.make("runnelfs", (codec, block, variant), &self.tools.runnel, arguments, trace)
    }

    /// An image of SquashFS, with files in the order of a list if there is one.
    pub(super) fn squashfs(
        &self,
        codec: Codec,
        block: &str,
        variant: &str,
        order: Option<&Path>,
    ) -> anyhow::Result<Image> {
        let mut arguments = match codec {
            Codec::Zstd => words(&["-comp", "zstd", "-Xcompression-level", ZSTD_LEVEL]),
            Codec::Lz4 => words(&["-comp", "lz4", "-Xhc"]),
        };
        arguments.extend(words(&["-b", block, "-noappend", "-no-progress", "-quiet"]));
        if let Some(order) = order {
            arguments.extend([OsStr::new("-sort"), order.as_os_str()].map(OsString::from));
        }
        self.make("squashfs", (codec, block, variant), &self.tools.mksquashfs, arguments, order)
    }

    /// An image of EROFS; `packed` stores what is equal once, and tails and small files together.
    /// An extent has at most a block when it is decoded, as in the others; only clusters of 4 KiB
    /// hold what compresses to so much, since else they could not compress at all. With zstd a
    /// cluster has at most half a block: mkfs.erofs 1.9.4 writes images that neither the kernel nor
    /// its own fsck.erofs can read if clusters may be as large as extents. Files keep their times:
    /// Python compiles a module again whose source has another time than it was compiled of.
    pub(super) fn erofs(&self, codec: Codec, block: &str, packed: bool) -> anyhow::Result<Image> {
        let bytes = bytes_of(block)?;
        let (codec_option, cluster) = match codec {
            Codec::Zstd => (format!("-zzstd,level={ZSTD_LEVEL}"), (bytes / 2).max(4096)),
            Codec::Lz4 => (format!("-zlz4hc,level={LZ4_LEVEL}"), bytes),
        };
        let mut arguments = words(&["--quiet", "-T0", "--mkfs-time", &codec_option, &format!("-C{cluster}")]);
        if bytes > 4096 {
            arguments.push(format!("--max-extent-bytes={bytes}").into());
        }
        if packed {
            arguments.push("-Ededupe,all-fragments".into());
        }
        let variant = if packed { "packed" } else { "" };
        self.make("erofs", (codec, block, variant), &self.tools.mkfs_erofs, arguments, None)
    }

    /// Makes an image unless it is there, says how large it is, and fills its last page.
    fn make(
        &self,
        kind: &'static str,
        (codec, block, variant): (Codec, &str, &str),
        program: &Path,
        arguments: Vec<OsString>,
        input: Option<&Path>,
    ) -> anyhow::Result<Image> {
        let name = format!("{kind} {} {block} {variant}", codec.name()).trim_end().to_string();
        let path = self.folder.join(format!("{}-{}.img", self.prefix, name.replace(' ', "-")));
        let mut how = format!("{arguments:?}");
        for file in [Some(program), input].into_iter().flatten() {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(fs::File::open(file).with_context(|| file.display().to_string())?)?;
            write!(how, " {}", hasher.finalize())?;
        }
        let size = path.with_extension("bytes");
        if !self.tree.made(&path, &how) {
            let _ = fs::remove_file(&path);
            let mut make = Command::new(program);
            let tree = &self.tree.folder;
            match kind {
                "runnelfs" => make.arg("pack").arg(tree).arg("-o").arg(&path),
                "erofs" => make.arg(&path).arg(tree),
                _ => make.arg(tree).arg(&path),
            };
            watch::run(make.args(&arguments).stdout(Stdio::null()))?;
            let bytes = fs::metadata(&path)?.len();
            fs::write(&size, bytes.to_string())?;
            fs::File::options().write(true).open(&path)?.set_len(bytes.next_multiple_of(4096))?;
            self.tree.keep(&path, &how)?;
        }
        eprintln!("   row {name} | size | {} | bytes", fs::read_to_string(&size)?);
        Ok(Image { name, kind, path })
    }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Bytes of a size such as 64k.
pub(super) fn bytes_of(size: &str) -> anyhow::Result<u64> {
    let unit = size.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = size[..size.len() - unit.len()].parse().with_context(|| format!("{size} is no size"))?;
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        _ => anyhow::bail!("{size} is no size"),
    };
    Ok(number << shift)
}

/// Writes a list for `mksquashfs -sort` that puts `files`, paths below the root, in this order.
pub(super) fn write_sort_list(files: &[String], to: &Path) -> anyhow::Result<()> {
    let mut text = String::new();
    for (rank, file) in files.iter().enumerate() {
        // Priorities have 16 bits, and files of the highest come first.
        let priority = 32767 - (rank as u64 * 65535 / files.len() as u64) as i64;
        writeln!(text, "{} {priority}", file.replace('\\', "\\\\").replace(' ', "\\ "))?;
    }
    fs::write(to, text).with_context(|| to.display().to_string())
}
