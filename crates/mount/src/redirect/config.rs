//! The redirect configuration: which paths come from which image. Every fault is named with file,
//! line and key.
//!
//! ```toml
//! [[image]]
//! source = "runnel://host/name"
//! paths = ["/usr/bin/python3", { from = "/usr/lib/python3.11", to = "/opt/python/lib" }]
//! ```

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use connection::Target;
use serde::Deserialize;
use toml::Spanned;

use crate::MountError;

/// Longest configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most images of one configuration: each is a mount with threads and connections of its own.
const IMAGES_MAX: usize = 32;

/// Most paths of one configuration: each is a bind mount.
const PATHS_MAX: usize = 1024;

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirects {
    /// The images, in file order.
    pub images: Vec<ImageRedirects>,
}

/// One image and the paths that come from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRedirects {
    /// The image as it is written in the file.
    pub source: String,
    /// The same, parsed.
    pub target: Target,
    /// The paths, in file order.
    pub paths: Vec<PathRedirect>,
}

/// One path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRedirect {
    /// In the image, absolute.
    pub from: PathBuf,
    /// On this machine, absolute.
    pub to: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    image: Vec<Spanned<RawImage>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImage {
    source: Spanned<String>,
    paths: Spanned<Vec<Spanned<RawPath>>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a path, or a table { from = \"...\", to = \"...\" }")]
enum RawPath {
    Same(PathBuf),
    Pair(RawPair),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPair {
    from: PathBuf,
    to: PathBuf,
}

/// The collected faults.
struct Faults<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Faults<'_> {
    fn at(&self, span: Range<usize>, key: &str, problem: impl Into<String>) -> MountError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        MountError::Config { file: self.file.to_path_buf(), line, key: key.to_string(), problem: problem.into() }
    }

    /// The key that the text around `start` sets: what stands before the nearest `=` to the left,
    /// within its line.
    fn key_near(&self, start: usize) -> String {
        let line_start = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let key = line.split('=').next().unwrap_or_default().trim();
        let key = key.trim_matches(['[', ']', ' ', '"']);
        if key.is_empty() { "document".to_string() } else { key.to_string() }
    }
}

impl Redirects {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or [`MountError::Config`] with line and key.
    pub fn load(file: &Path) -> Result<Redirects, MountError> {
        let fail = |error| MountError::step("read the configuration", file, error);
        let mut bytes = Vec::new();
        host::file::open(file).map_err(fail)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
        let whole = |line, problem: &str| MountError::Config {
            file: file.to_path_buf(),
            line,
            key: "document".into(),
            problem: problem.into(),
        };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(whole(1, "longer than 1 MiB"));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            whole(good.iter().filter(|&&byte| byte == b'\n').count() + 1, "is not UTF-8 text")
        })?;
        Redirects::parse(file, &text)
    }

    /// Checks the text of a configuration; `file` is only named in errors.
    ///
    /// # Errors
    /// [`MountError::Config`] with line and key.
    pub fn parse(file: &Path, text: &str) -> Result<Redirects, MountError> {
        let faults = Faults { file, text };
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let start = (0..=span.start.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            faults.at(span, &faults.key_near(start), error.message())
        })?;
        if raw.image.is_empty() {
            return Err(faults.at(0..0, "image", "no image is named; write [[image]] with source and paths"));
        }
        if let Some(excess) = raw.image.get(IMAGES_MAX) {
            return Err(faults.at(excess.span(), "image", format!("more than {IMAGES_MAX} images")));
        }
        let mut taken = BTreeMap::new();
        let images = raw.image.into_iter().map(|image| check(&faults, image.into_inner(), &mut taken));
        Ok(Redirects { images: images.collect::<Result<_, _>>()? })
    }
}

/// Checks one image. `taken` holds the local paths seen so far, over all images.
fn check(faults: &Faults<'_>, raw: RawImage, taken: &mut BTreeMap<PathBuf, ()>) -> Result<ImageRedirects, MountError> {
    let span = raw.source.span();
    let source = raw.source.into_inner();
    let target = Target::parse(&source).map_err(|error| faults.at(span, "image.source", error.to_string()))?;
    let span = raw.paths.span();
    let raw_paths = raw.paths.into_inner();
    if raw_paths.is_empty() {
        return Err(faults.at(span, "image.paths", "no path is listed"));
    }
    let mut paths = Vec::new();
    for raw in raw_paths {
        let span = raw.span();
        let (from, to) = match raw.into_inner() {
            RawPath::Same(path) => (path.clone(), path),
            RawPath::Pair(pair) => (pair.from, pair.to),
        };
        for path in [&from, &to] {
            let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
            if !path.is_absolute() || !plain {
                let problem = format!("{} is not an absolute path without `..`", path.display());
                return Err(faults.at(span, "image.paths", problem));
            }
        }
        if to == Path::new("/") {
            return Err(faults.at(span, "image.paths", "the root directory cannot be redirected"));
        }
        if taken.insert(to.clone(), ()).is_some() {
            return Err(faults.at(span, "image.paths", format!("{} is listed twice", to.display())));
        }
        if taken.len() > PATHS_MAX {
            return Err(faults.at(span, "image.paths", format!("more than {PATHS_MAX} paths")));
        }
        paths.push(PathRedirect { from, to });
    }
    Ok(ImageRedirects { source, target, paths })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Redirects, MountError> {
        Redirects::parse(Path::new("r.toml"), text)
    }

    #[track_caller]
    fn fault(text: &str, expected_line: usize, expected_key: &str, part: &str) {
        match parse(text) {
            Err(MountError::Config { file, line, key, problem }) => {
                assert_eq!(file, Path::new("r.toml"));
                assert_eq!((line, key.as_str()), (expected_line, expected_key), "{problem}");
                assert!(problem.contains(part), "{problem:?} does not speak of {part:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_forms_of_a_path_are_read() {
        let text = "# tools\n[[image]]\nsource = \"runnel://host/tools\"\n\
            paths = [\"/usr/bin/a\", { from = \"/usr/lib/b\", to = \"/opt/b\" }]\n\
            [[image]]\nsource = \"local.rnl\"\npaths = [\"/c\"]\n";
        let read = parse(text).expect("valid");
        assert_eq!(read.images.len(), 2);
        assert_eq!(read.images[0].source, "runnel://host/tools");
        let expected = [("/usr/bin/a", "/usr/bin/a"), ("/usr/lib/b", "/opt/b")];
        let expected = expected.map(|(from, to)| PathRedirect { from: from.into(), to: to.into() });
        assert_eq!(read.images[0].paths, expected);
        assert_eq!(read.images[1].target, Target::File("local.rnl".into()));
    }

    #[test]
    fn faults_name_line_and_key() {
        fault("", 1, "image", "no image");
        fault("[[image]]\nsource = \"x\"\n", 1, "image", "paths");
        fault("[[image]]\nsource = 5\npaths = [\"/a\"]\n", 2, "source", "string");
        fault("[[image]]\nsource = \"x\"\npaths = [\"/a\"]\ncolour = \"red\"\n", 4, "colour", "unknown field");
        fault("[[image]]\nsource = \"ftp://x/y\"\npaths = [\"/a\"]\n", 2, "image.source", "scheme");
        fault("[[image]]\nsource = \"x\"\npaths = []\n", 3, "image.paths", "no path");
        fault("[[image]]\nsource = \"x\"\npaths = [\n  \"/a\",\n  \"b\",\n]\n", 5, "image.paths", "absolute");
        fault("[[image]]\nsource = \"x\"\npaths = [\"/a/../b\"]\n", 3, "image.paths", "..");
        fault("[[image]]\nsource = \"x\"\npaths = [\"/\"]\n", 3, "image.paths", "root");
        fault("[[image]]\nsource = \"x\"\npaths = [\"/a\",\n\"/a\"]\n", 4, "image.paths", "twice");
        fault("[[image]]\nsource = \"x\"\npaths = [{ from = \"/a\" }]\n", 3, "paths", "from");
        fault("[[image]]\nsource = \"x\npaths = [\"/a\"]\n", 2, "source", "");
        fault("[image]\nsource = \"x\"\n", 1, "image", "");
    }

    #[test]
    fn limits_hold() {
        let many: String =
            (0..=IMAGES_MAX).map(|at| format!("[[image]]\nsource = \"x\"\npaths = [\"/p{at}\"]\n")).collect();
        fault(&many, 1 + 3 * IMAGES_MAX, "image", "more than");
        let paths: String = (0..=PATHS_MAX).map(|at| format!("\"/p{at}\",")).collect();
        fault(&format!("[[image]]\nsource = \"x\"\npaths = [{paths}]\n"), 3, "image.paths", "more than");
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("r.toml");
        assert!(matches!(Redirects::load(&file), Err(MountError::Step { .. })));
        std::fs::write(&file, b"a\n\xff").expect("write");
        assert!(matches!(Redirects::load(&file), Err(MountError::Config { line: 2, .. })));
        std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).expect("write");
        assert!(matches!(Redirects::load(&file), Err(MountError::Config { line: 1, .. })));
    }

    /// The parser is handed text by an administrator, who mistypes: it must answer every text with
    /// a result.
    #[test]
    fn fuzz_texts_never_panic() {
        use units::{Rng, SplitMix64};
        let seed =
            "[[image]]\nsource = \"runnel://host/tools\"\npaths = [\"/usr/bin/a\", { from = \"/b\", to = \"/ö\" }]\n";
        let mut rng = SplitMix64(7);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..3000 {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                match rng.below(3) {
                    0 => bytes[at] = rng.next_u64() as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"[]{}=\"\n,#./"[rng.below(11) as usize]),
                }
            }
            match parse(&String::from_utf8_lossy(&bytes)) {
                Ok(_) => accepted += 1,
                Err(MountError::Config { line, .. }) => {
                    assert!((1..=8).contains(&line));
                    refused += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        // The canary: most mutations break the file, some only change a name.
        assert!(accepted > 0 && refused > accepted, "{accepted} accepted, {refused} refused");
    }
}
