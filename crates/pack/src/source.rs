//! Sources of the files to pack. A module per source; all fill one [`Tree`].

mod archive;
pub(crate) mod closure;
mod dir;
mod header;
mod listed;
mod oci;
mod tar;

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use self::archive::Archive;
use self::dir::Lister;
pub(crate) use self::listed::check_unchanged;
use crate::notes::Notes;
use crate::spool::Spool;
use crate::tree::{Body, Tree};
use crate::{PackError, Phase, Progress};

/// What to pack.
pub enum Source {
    /// A directory on disk, or a container image unpacked there.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Leave out what other file systems mounted in it hold.
        one_file_system: bool,
        /// Files, or a container image.
        layout: Layout,
    },
    /// A tar archive of files or of a container image; plain, gzip, zstd or xz.
    Tar {
        /// The archive.
        input: TarInput,
        /// Files, or a container image.
        layout: Layout,
    },
    /// Programs with their interpreter and shared libraries.
    Closure {
        /// The directory that is `/` for the programs.
        root: PathBuf,
        /// Paths within the root, or names to be sought in the usual directories of programs.
        programs: Vec<PathBuf>,
        /// Further paths within the root, packed whole.
        includes: Vec<PathBuf>,
    },
}

/// Where a tar archive comes from.
pub enum TarInput {
    /// A file.
    File(PathBuf),
    /// A pipe, the standard input for example; read once.
    Stream {
        /// The bytes.
        reader: Box<dyn Read + Send>,
        /// Its name in messages.
        name: String,
    },
}

/// How the files of a directory or archive are to be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As a container image if they are one, else as they are.
    Detect,
    /// As they are, even if they are a container image.
    Files,
    /// As an OCI layout or `docker save` archive, of which the layers are packed.
    Image {
        /// Which image of several: a tag, digest or platform (`linux/arm64`).
        select: Option<String>,
    },
}

impl Source {
    /// The source at `path`: a directory, or a tar archive; a container image in either is
    /// recognised by its files.
    ///
    /// # Errors
    /// Nothing is there, or it is neither a directory nor a file.
    pub fn detect(path: &Path) -> Result<Source, PackError> {
        let about = fs::metadata(path).map_err(|source| PackError::read(path, source))?;
        if about.is_dir() {
            return Ok(Source::Directory { path: path.into(), one_file_system: false, layout: Layout::Detect });
        }
        if about.is_file() {
            return Ok(Source::Tar { input: TarInput::File(path.into()), layout: Layout::Detect });
        }
        // A named pipe or /dev/stdin: read once, from front to back.
        let reader = fs::File::open(path).map_err(|source| PackError::read(path, source))?;
        let input = TarInput::Stream { reader: Box::new(reader), name: path.display().to_string() };
        Ok(Source::Tar { input, layout: Layout::Detect })
    }

    /// Lists the source. Contents of files stay where they are or go to a temporary file in
    /// `spool_directory`. `skipped` files are left out of a directory.
    pub(crate) fn read(
        self,
        spool_directory: &Path,
        skipped: &[(u64, u64)],
        notes: &mut Notes,
        progress: &dyn Progress,
    ) -> Result<Tree, PackError> {
        let mut tree = Tree::new();
        let mut spool = Spool::new(spool_directory);
        let (layout, name) = match self {
            Source::Closure { root, programs, includes } => {
                closure::read(&root, &programs, &includes, &mut tree, skipped, notes, progress)?;
                return Ok(tree);
            }
            Source::Directory { path, one_file_system, layout } => {
                progress.phase(Phase::Scan, 0);
                let mut lister = Lister::new(&mut tree, skipped, progress);
                lister.root(&path)?;
                lister.below(Tree::ROOT, &path, one_file_system, |_, _, _| {})?;
                (layout, path.display().to_string())
            }
            Source::Tar { input, layout } => {
                let name = read_tar(input, skipped, &mut tree, &mut spool, notes, progress)?;
                (layout, name)
            }
        };
        let select = match &layout {
            Layout::Files => return Ok(tree),
            Layout::Detect if !oci::is_image(&tree) => return Ok(tree),
            Layout::Detect => None,
            Layout::Image { .. } if !oci::is_image(&tree) => {
                let problem = "neither an OCI layout nor a docker save archive".into();
                return Err(PackError::Oci { archive: name, problem });
            }
            Layout::Image { select } => select.as_deref(),
        };
        let mut packed = Tree::new();
        oci::Image { files: &tree, name: &name, select }.read(&mut packed, &mut spool, notes, progress)?;
        Ok(packed)
    }
}

/// Reads a tar archive into `tree`; returns its name for messages.
fn read_tar(
    input: TarInput,
    skipped: &[(u64, u64)],
    tree: &mut Tree,
    spool: &mut Spool,
    notes: &mut Notes,
    progress: &dyn Progress,
) -> Result<String, PackError> {
    let (name, file) = match &input {
        TarInput::File(path) => {
            let about = fs::metadata(path).map_err(|source| PackError::read(path, source))?;
            if skipped.contains(&(about.dev(), about.ino())) {
                return Err(PackError::Source { path: path.clone(), problem: "it is the output too".into() });
            }
            (
                path.display().to_string(),
                Some((
                    dir::file_body(fs::canonicalize(path).map_err(|source| PackError::read(path, source))?, &about),
                    about.size(),
                )),
            )
        }
        TarInput::Stream { name, .. } => (name.clone(), None),
    };
    let mut archive = match (&file, input) {
        (Some((Body::File { content, .. }, size)), _) => Archive::in_content(content, *size, &name)?,
        (_, TarInput::Stream { reader, name }) => Archive::from_reader(reader, &name)?,
        (_, TarInput::File(path)) => {
            return Err(PackError::Source { path, problem: "not a regular file".into() });
        }
    };
    let mut reading = tar::Reading { name: &name, whiteouts: false, spool, notes, progress };
    let entries = tar::read(&mut archive, tree, &mut reading)?;
    // An archive of nothing still has its two closing blocks.
    let nothing = entries == 0 && archive.position() == 0;
    drop(archive);
    if nothing {
        return Err(PackError::Source { path: name.into(), problem: "the tar archive is empty".into() });
    }
    Ok(name)
}
