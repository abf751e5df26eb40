//! Other ways to store a tree: SquashFS, EROFS, DwarFS, and one compressed stream ("Direct"), each
//! with the tool of its own and at its best as far as options go.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::measure::{self, Cost};
use super::packer::Codec;
use super::read_set::Ranks;
use super::row::size;
use super::tree::Tree;
use crate::process::find_program;
use crate::stage::{finish, unfinished};

/// An image of another system.
#[derive(Clone, Debug, PartialEq)]
pub enum Peer {
    /// `mksquashfs`.
    Squashfs {
        /// The codec.
        codec: Codec,
        /// Decoded bytes of a block.
        block: u64,
        /// A list for `-sort`, from our order of the files.
        sorted: Option<PathBuf>,
    },
    /// `mkfs.erofs`.
    Erofs {
        /// The codec.
        codec: Codec,
        /// Largest compressed size of a cluster, or with `unit` its largest decoded size.
        block: u64,
        /// Whether `block` bounds the decoded size instead of the compressed one.
        unit: bool,
        /// Whether equal parts are stored once and tails are packed together (erofs-utils 1.6 and
        /// later).
        packed: bool,
    },
    /// `mkdwarfs`.
    Dwarfs {
        /// The codec.
        codec: Codec,
        /// Decoded bytes of a block.
        block: u64,
    },
    /// The tar archive in one stream: `zstd -19 --long=27` or `xz -9e`.
    Stream {
        /// The codec.
        codec: Codec,
    },
}

impl Peer {
    /// Name of the system in rows.
    pub fn system(&self) -> &'static str {
        match self {
            Peer::Squashfs { .. } => "squashfs",
            Peer::Erofs { .. } => "erofs",
            Peer::Dwarfs { .. } => "dwarfs",
            Peer::Stream { .. } => "tar",
        }
    }

    /// The codec.
    pub fn codec(&self) -> Codec {
        match self {
            Peer::Squashfs { codec, .. }
            | Peer::Erofs { codec, .. }
            | Peer::Dwarfs { codec, .. }
            | Peer::Stream { codec } => *codec,
        }
    }

    /// Decoded bytes of a block; of EROFS without `unit` the compressed bytes.
    pub fn block(&self) -> Option<u64> {
        match self {
            Peer::Squashfs { block, .. } | Peer::Erofs { block, .. } | Peer::Dwarfs { block, .. } => Some(*block),
            Peer::Stream { .. } => None,
        }
    }

    /// What is special about it.
    pub fn variant(&self) -> &'static str {
        match self {
            Peer::Squashfs { sorted: Some(_), .. } => SORTED,
            Peer::Erofs { unit: true, .. } => DECODED,
            Peer::Erofs { packed: true, .. } => PACKED,
            Peer::Stream { codec: Codec::Zstd } => "--long=27",
            Peer::Stream { codec: Codec::Xz } => "-9e",
            _ => "",
        }
    }

    /// The program, and the Debian package that has it.
    fn program(&self) -> (&'static str, Option<&'static str>, &'static str) {
        match self {
            Peer::Squashfs { .. } => ("mksquashfs", None, "install squashfs-tools"),
            Peer::Erofs { .. } => ("mkfs.erofs", Some("EROFS_MKFS"), "install erofs-utils"),
            Peer::Dwarfs { .. } => ("mkdwarfs", Some("MKDWARFS"), "Debian 12 has none; put one into PATH or $MKDWARFS"),
            Peer::Stream { codec: Codec::Xz } => ("xz", None, "install xz-utils"),
            Peer::Stream { codec: Codec::Lz4 } => ("lz4", None, "install lz4"),
            Peer::Stream { codec: Codec::Zstd } => ("zstd", None, "install zstd"),
        }
    }

    /// The program if it is there and can do this; else why not.
    ///
    /// # Errors
    /// What to install.
    pub fn find(&self) -> Result<PathBuf, String> {
        let (name, variable, hint) = self.program();
        let named = variable.and_then(std::env::var_os).filter(|path| !path.is_empty()).map(PathBuf::from);
        let found = named.filter(|path| path.is_file()).or_else(|| find_program(name));
        let found = found.ok_or_else(|| format!("{name} is missing: {hint}"))?;
        if let Peer::Erofs { codec, packed, .. } = self {
            let output = Command::new(&found).arg("--help").output().map_err(|error| format!("{name}: {error}"))?;
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let word = ["zstd", "lzma", "lz4hc"][*codec as usize];
            if !text.contains(word) || (*packed && !text.contains("dedupe")) {
                let what = if text.contains(word) { "-Ededupe" } else { word };
                return Err(format!("this mkfs.erofs has no {what}; name a newer one in $EROFS_MKFS"));
            }
        }
        Ok(found)
    }

    /// Whether the kernel of this machine can be asked to mount it.
    pub fn file_system(&self) -> Option<&'static str> {
        match self {
            Peer::Squashfs { .. } => Some("squashfs"),
            Peer::Erofs { .. } => Some("erofs"),
            _ => None,
        }
    }

    /// The arguments, without those that name files.
    pub fn arguments(&self, x86: bool) -> Vec<String> {
        let words = |text: String| text.split_whitespace().map(str::to_string).collect();
        match self {
            Peer::Squashfs { codec, block, .. } => {
                let codec = match codec {
                    Codec::Zstd => "zstd -Xcompression-level 19".to_string(),
                    Codec::Lz4 => "lz4 -Xhc".to_string(),
                    Codec::Xz => format!("xz -Xdict-size 100%{}", if x86 { " -Xbcj x86" } else { "" }),
                };
                words(format!("-comp {codec} -b {} -noappend -no-progress -quiet -xattrs", size(*block)))
            }
            Peer::Erofs { codec, block, unit, packed } => {
                let codec = ["zstd,19", "lzma,109", "lz4hc,12"][*codec as usize];
                let limit = if *unit { format!("-C{block} --max-extent-bytes={block}") } else { format!("-C{block}") };
                words(format!("-z{codec} {limit} --quiet{}", if *packed { " -Ededupe,all-fragments" } else { "" }))
            }
            Peer::Dwarfs { codec, block } => {
                let codec = ["zstd:level=19", "lzma:level=9", "lz4hc:level=12"][*codec as usize];
                words(format!("-C {codec} -S {} --no-progress --log-level=error", block.trailing_zeros()))
            }
            Peer::Stream { codec: Codec::Zstd } => words("-19 --long=27 -T1 -q -f -k".into()),
            Peer::Stream { codec: Codec::Xz } => words("-9e -T1 -q -k -c".into()),
            Peer::Stream { codec: Codec::Lz4 } => words("-12 -q -f -k".into()),
        }
    }

    /// Makes the image.
    ///
    /// # Errors
    /// The tool fails; the message is its own.
    pub fn make(&self, program: &Path, tree: &Tree, image: &Path) -> anyhow::Result<Cost> {
        let new = unfinished(image)?;
        let mut command = Command::new(program);
        match self {
            Peer::Squashfs { sorted, .. } => {
                command.arg(&tree.folder).arg(&new).args(self.arguments(tree.x86));
                if let Some(list) = sorted {
                    command.arg("-sort").arg(list);
                }
            }
            Peer::Erofs { .. } => {
                command.args(self.arguments(tree.x86)).arg(&new).arg(&tree.folder);
            }
            Peer::Dwarfs { .. } => {
                command.args(self.arguments(tree.x86)).arg("-i").arg(&tree.folder).arg("-o").arg(&new);
            }
            Peer::Stream { codec: Codec::Xz } => {
                // xz names its output itself or prints it; a shell puts what it prints where it
                // belongs.
                command = Command::new("/bin/sh");
                command.args(["-c", "out=$1; shift; exec \"$@\" > \"$out\"", "sh"]).arg(&new).arg(program);
                command.args(self.arguments(tree.x86)).arg(&tree.tar);
            }
            Peer::Stream { .. } => {
                command.args(self.arguments(tree.x86)).arg(&tree.tar).arg("-o").arg(&new);
            }
        }
        let cost = measure::run(&mut command)?.cost;
        finish(image)?;
        Ok(cost)
    }
}

/// Variant of SquashFS with a sort list.
pub const SORTED: &str = "sort list";

/// Variant of EROFS whose block size bounds decoded bytes.
pub const DECODED: &str = "decoded unit";

/// Variant of EROFS with deduplication and fragments.
pub const PACKED: &str = "dedupe, fragments";

/// Writes the list for `mksquashfs -sort` that puts `files`, paths below the root, in this order.
///
/// # Errors
/// The list cannot be written.
pub fn write_sort_list(files: &[Vec<u8>], path: &Path) -> anyhow::Result<()> {
    let mut text = String::new();
    for (rank, file) in files.iter().enumerate() {
        // Names that are no text stay in the tool's own order.
        let Ok(name) = std::str::from_utf8(file) else { continue };
        if name.contains('\n') {
            continue;
        }
        // Priorities have 16 bits and files of the highest come first.
        let priority = 32767 - (rank as u64 * 65535 / files.len().max(1) as u64) as i64;
        for character in name.trim_start_matches('/').chars() {
            if character.is_ascii_whitespace() || character == '\\' {
                text.push('\\');
            }
            text.push(character);
        }
        let _ = writeln!(text, " {priority}");
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The order of files that a list of [`write_sort_list`] gives, by their paths from the root.
///
/// # Errors
/// The list cannot be read.
pub fn read_sort_list(path: &Path) -> anyhow::Result<Ranks> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = |line: &str| {
        let (escaped, _) = line.rsplit_once(' ')?;
        let mut name = vec![b'/'];
        let mut bytes = escaped.bytes();
        while let Some(byte) = bytes.next() {
            name.push(if byte == b'\\' { bytes.next()? } else { byte });
        }
        Some(name)
    };
    Ok(text.lines().filter_map(name).zip(1..).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_get_their_best_options() {
        let line = |peer: Peer, x86| peer.arguments(x86).join(" ");
        let squashfs = Peer::Squashfs { codec: Codec::Xz, block: 1 << 20, sorted: None };
        assert!(line(squashfs.clone(), true).starts_with("-comp xz -Xdict-size 100% -Xbcj x86 -b 1M"));
        assert!(!line(squashfs, false).contains("bcj"));
        let erofs = |unit| Peer::Erofs { codec: Codec::Lz4, block: 65536, unit, packed: false };
        assert_eq!(line(erofs(false), true), "-zlz4hc,12 -C65536 --quiet");
        assert!(line(erofs(true), true).contains("--max-extent-bytes=65536"));
        assert!(line(Peer::Stream { codec: Codec::Zstd }, true).contains("--long=27"));
    }

    #[test]
    fn a_sort_list_ranks_all_files_within_sixteen_bits() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("list");
        let mut files: Vec<Vec<u8>> = (0..70_000).map(|index| format!("/usr/f{index}").into_bytes()).collect();
        files[1] = b"/usr/a b".to_vec();
        files[2] = vec![0xff];
        write_sort_list(&files, &path)?;
        let text = std::fs::read_to_string(&path)?;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0], lines[1]), (69_999, "usr/f0 32767", "usr/a\\ b 32767"));
        assert!(lines[69_998].ends_with("-32767"), "{}", lines[69_998]);
        let ranks = read_sort_list(&path)?;
        let rank = |name: &[u8]| ranks.get(name).copied();
        assert_eq!([rank(b"/usr/f0"), rank(b"/usr/a b"), rank(b"/none")], [Some(1), Some(2), None]);
        Ok(())
    }

    #[test]
    fn a_tool_that_is_missing_says_what_to_install() {
        if let Err(reason) = (Peer::Dwarfs { codec: Codec::Zstd, block: 1 << 20 }).find() {
            assert!(reason.contains("mkdwarfs is missing"), "{reason}");
        }
    }
}
