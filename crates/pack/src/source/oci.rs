//! Container images as a source: an OCI layout or the output of `docker save`, as a directory or a
//! tar of one.
//!
//! The archive's files are themselves a tree, listed by the `dir` or `tar` source. This module
//! chooses a manifest and reads its layers, in order, into a new tree. Every blob is checked
//! against its digest, `sha256:` or `sha512:`; other algorithms are refused, since they cannot be
//! checked. Layers of `docker save` archives that are not named by a digest are checked against
//! those in the image's configuration.
//!
//! Formats after the OCI image specification 1.1 (image-layout, index, manifest, layer) and the
//! description of `docker save` in the Moby image specification 1.2.

use std::io::Read;

use serde::Deserialize;
use sha2::{Digest, Sha256, Sha512};

use super::archive::{Archive, ContentReader};
use super::tar::{self, Reading};
use crate::content::Content;
use crate::notes::Notes;
use crate::spool::Spool;
use crate::tree::{Body, Tree};
use crate::{PackError, Progress};

/// Bytes of a manifest or index that we accept: registries take no more than 4 MiB.
const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Indexes within indexes; builders write 2.
const DEPTH_MAX: usize = 4;
/// Layers of an image; builders stop at 127.
const LAYERS_MAX: usize = 1024;
/// Manifests named in a message.
const NAMES_SHOWN: usize = 10;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Clone, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    config: Option<String>,
    layers: Vec<String>,
}

/// The configuration of an image, as far as it concerns layers.
#[derive(Deserialize)]
struct Configuration {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    /// Digests of the uncompressed layers.
    diff_ids: Vec<String>,
}

/// A digest as the OCI image specification writes it: `ALGORITHM:HEX`, both in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checksum<'a> {
    algorithm: Algorithm,
    hex: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl<'a> Checksum<'a> {
    /// `None` if it is malformed, or of an algorithm that we cannot check.
    fn parse(text: &'a str) -> Option<Checksum<'a>> {
        let (algorithm, hex) = text.split_once(':')?;
        let (algorithm, digits) = match algorithm {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return None,
        };
        let is_hex = hex.len() == digits && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then_some(Checksum { algorithm, hex })
    }

    /// Where a layout keeps the blob.
    fn path(self) -> String {
        let folder = match self.algorithm {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        };
        format!("blobs/{folder}/{}", self.hex)
    }

    /// The digest of all that `read` fills buffers with, as hexadecimal digits.
    fn found(self, read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> std::io::Result<String> {
        match self.algorithm {
            Algorithm::Sha256 => digest::<Sha256>(read),
            Algorithm::Sha512 => digest::<Sha512>(read),
        }
    }
}

fn digest<D: Digest>(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) -> std::io::Result<String> {
    let mut hash = D::new();
    let mut buffer = vec![0u8; 256 << 10];
    loop {
        match read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A layer to be read.
struct Layer {
    path: String,
    /// Digest of its uncompressed bytes, if the path has none.
    uncompressed: Option<String>,
}

/// Whether the tree is a container image and not just files.
pub(crate) fn is_image(files: &Tree) -> bool {
    let is_file = |path: &[u8]| files.find(path).is_some_and(|node| matches!(files.node(node).body, Body::File { .. }));
    (is_file(b"oci-layout") && is_file(b"index.json")) || is_saved(files)
}

/// `docker save` before version 25 wrote no index. A file of that name alone proves nothing, so it
/// must also parse.
fn is_saved(files: &Tree) -> bool {
    let document = document::<Vec<Saved>>(files, b"manifest.json", "");
    document.is_ok_and(|images| images.iter().any(|image| !image.layers.is_empty()))
}

/// A container image to be read.
pub(crate) struct Image<'a> {
    /// The files of the layout.
    pub(crate) files: &'a Tree,
    /// The image's name in messages.
    pub(crate) name: &'a str,
    /// Which of several: a tag, digest or platform as `linux/arm64`.
    pub(crate) select: Option<&'a str>,
}

impl Image<'_> {
    /// Applies the layers of the chosen manifest to `tree`.
    pub(crate) fn read(
        &self,
        tree: &mut Tree,
        spool: &mut Spool,
        notes: &mut Notes,
        progress: &dyn Progress,
    ) -> Result<(), PackError> {
        let layers = self.layers()?;
        if layers.len() > LAYERS_MAX {
            return Err(self.wrong(format!("{} layers, at most {LAYERS_MAX}", layers.len())));
        }
        for Layer { path, uncompressed } in layers {
            let (size, content) = self.file(path.as_bytes())?;
            let name = format!("{}: layer {path}", self.name);
            self.check_file(&path, content, size)?;
            if let Some(digest) = uncompressed {
                let mut archive = Archive::in_content(content, size, &name)?;
                self.check(&path, &digest, |buffer| archive.read(buffer))?;
            }
            tree.begin_layer();
            let mut archive = Archive::in_content(content, size, &name)?;
            tar::read(&mut archive, tree, &mut Reading { name: &name, whiteouts: true, spool, notes, progress })?;
        }
        Ok(())
    }

    /// Paths of the layers, lowest first.
    fn layers(&self) -> Result<Vec<Layer>, PackError> {
        if self.files.find(b"index.json").is_none() {
            return self.saved_layers();
        }
        let index: Index = document(self.files, b"index.json", self.name)?;
        let chosen = self.choose(index.manifests, 0)?;
        let manifest: Manifest = self.blob(&chosen.digest)?;
        if manifest.layers.is_empty() {
            return Err(self.wrong(format!("manifest {} has no layers", chosen.digest)));
        }
        if let Some(config) = &manifest.config {
            // Nothing of it is packed, but an image whose parts do not fit is damaged.
            let path = self.checksum(&config.digest)?.path();
            if let Some((size, content)) = file(self.files, path.as_bytes()) {
                self.check(&path, &config.digest, content_reader(content, size)?)?;
            }
        }
        let layer = |layer: &Descriptor| Ok(Layer { path: self.checksum(&layer.digest)?.path(), uncompressed: None });
        manifest.layers.iter().map(layer).collect()
    }

    fn saved_layers(&self) -> Result<Vec<Layer>, PackError> {
        let images: Vec<Saved> = document(self.files, b"manifest.json", self.name)?;
        let tags = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
        let mut fitting: Vec<&Saved> = images.iter().collect();
        if let Some(select) = self.select {
            fitting.retain(|image| tags(image).iter().any(|tag| tag == select));
        }
        match fitting[..] {
            [image] => self.layers_of_saved(image),
            _ => {
                let names: Vec<String> = images.iter().flat_map(tags).collect();
                Err(self.unclear(fitting.len(), &names))
            }
        }
    }

    /// Old archives name layers as they like; the configuration, whose name is its digest, has
    /// theirs.
    fn layers_of_saved(&self, image: &Saved) -> Result<Vec<Layer>, PackError> {
        let mut digests = None;
        if let Some(path) = &image.config {
            let (size, content) = self.file(path.as_bytes())?;
            self.check_file(path, content, size)?;
            let hex = path.strip_suffix(".json").filter(|hex| Checksum::parse(&format!("sha256:{hex}")).is_some());
            if let Some(hex) = hex {
                self.check(path, &format!("sha256:{hex}"), content_reader(content, size)?)?;
            }
            let configuration: Configuration = document(self.files, path.as_bytes(), self.name)?;
            let found = configuration.rootfs.diff_ids;
            if found.len() != image.layers.len() {
                let layers = image.layers.len();
                return Err(self.wrong(format!("{path} speaks of {} layers, manifest.json of {layers}", found.len())));
            }
            digests = Some(found);
        }
        let layers = image.layers.iter().enumerate().map(|(index, path)| {
            let uncompressed = digests.as_ref().and_then(|digests| digests.get(index).cloned());
            Layer { path: path.clone(), uncompressed }
        });
        Ok(layers.collect())
    }

    /// Picks one manifest of an index, looking into indexes within it.
    fn choose(&self, manifests: Vec<Descriptor>, depth: usize) -> Result<Descriptor, PackError> {
        if depth > DEPTH_MAX {
            return Err(self.wrong(format!("indexes more than {DEPTH_MAX} deep")));
        }
        // Build attestations are listed beside images, for no platform.
        let images: Vec<Descriptor> = manifests.into_iter().filter(|one| !one.is_attestation()).collect();
        let mut fitting = images.clone();
        if let Some(select) = self.select {
            let selected: Vec<Descriptor> = images.iter().filter(|one| one.is_called(select)).cloned().collect();
            // A name selects in the outer index, a platform in the inner one: not both stand at one
            // level.
            if !selected.is_empty() || (depth == 0 && images.len() > 1 && !images.iter().any(Descriptor::is_index)) {
                fitting = selected;
            }
        }
        if fitting.len() > 1 {
            let here: Vec<Descriptor> = fitting.iter().filter(|one| one.is_for_this_machine()).cloned().collect();
            if !here.is_empty() {
                fitting = here;
            }
        }
        match &fitting[..] {
            [one] if one.is_index() => {
                let index: Index = self.blob(&one.digest)?;
                self.choose(index.manifests, depth + 1)
            }
            [one] => Ok(one.clone()),
            _ => {
                let names: Vec<String> = images.iter().map(Descriptor::shown).collect();
                Err(self.unclear(fitting.len(), &names))
            }
        }
    }

    fn blob<T: serde::de::DeserializeOwned>(&self, digest: &str) -> Result<T, PackError> {
        let path = self.checksum(digest)?.path();
        let (size, content) = self.file(path.as_bytes())?;
        self.check(&path, digest, content_reader(content, size)?)?;
        document(self.files, path.as_bytes(), self.name)
    }

    fn checksum<'d>(&self, digest: &'d str) -> Result<Checksum<'d>, PackError> {
        Checksum::parse(digest).ok_or_else(|| {
            self.wrong(format!("{digest:?} is no digest that can be checked: sha256: or sha512: and lower-case digits"))
        })
    }

    fn file(&self, path: &[u8]) -> Result<(u64, &Content), PackError> {
        file(self.files, path).ok_or_else(|| self.wrong(format!("no file {}", String::from_utf8_lossy(path))))
    }

    /// Compares a file below `blobs/` with the digest that is its path. Others have none.
    fn check_file(&self, path: &str, content: &Content, size: u64) -> Result<(), PackError> {
        let Some((algorithm, hex)) = path.strip_prefix("blobs/").and_then(|digest| digest.split_once('/')) else {
            return Ok(());
        };
        self.check(path, &format!("{algorithm}:{hex}"), content_reader(content, size)?)
    }

    /// Compares what `read` gives with a digest.
    fn check(
        &self,
        path: &str,
        digest: &str,
        read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
    ) -> Result<(), PackError> {
        let expected = self.checksum(digest)?;
        let found = expected.found(read).map_err(|source| PackError::read(path, source))?;
        if found != expected.hex {
            return Err(self.wrong(format!("{path} is damaged: its digest is {found}, expected {digest}")));
        }
        Ok(())
    }

    fn wrong(&self, problem: String) -> PackError {
        PackError::Oci { archive: self.name.into(), problem }
    }

    fn unclear(&self, count: usize, names: &[String]) -> PackError {
        let mut list = names[..names.len().min(NAMES_SHOWN)].join(", ");
        if names.len() > NAMES_SHOWN {
            list += ", ...";
        }
        let which = self.select.map_or(String::new(), |select| format!(" called {select:?}"));
        self.wrong(match count {
            0 => format!("no image{which}; there are: {list}"),
            _ => format!("{count} images{which}, name one of: {list}"),
        })
    }
}

impl Descriptor {
    fn is_index(&self) -> bool {
        self.media_type.ends_with("image.index.v1+json") || self.media_type.ends_with("manifest.list.v2+json")
    }

    fn is_attestation(&self) -> bool {
        self.annotations.contains_key("vnd.docker.reference.type")
            || self.platform.as_ref().is_some_and(|platform| platform.os == "unknown")
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        ["org.opencontainers.image.ref.name", "io.containerd.image.name"]
            .into_iter()
            .filter_map(|key| self.annotations.get(key))
    }

    fn is_called(&self, select: &str) -> bool {
        let platform = self.platform.as_ref();
        self.digest == select
            || self.names().any(|name| name == select)
            || platform.is_some_and(|one| one.name() == select || format!("{}/{}", one.os, one.architecture) == select)
    }

    fn is_for_this_machine(&self) -> bool {
        // The names of Go, which container images use.
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            other => other,
        };
        self.platform.as_ref().is_some_and(|one| one.os == "linux" && one.architecture == architecture)
    }

    fn shown(&self) -> String {
        match (self.names().next(), &self.platform) {
            (Some(name), _) => name.clone(),
            (None, Some(platform)) => platform.name(),
            (None, None) => self.digest.clone(),
        }
    }
}

impl Platform {
    fn name(&self) -> String {
        let variant = self.variant.as_ref().map_or(String::new(), |variant| format!("/{variant}"));
        format!("{}/{}{variant}", self.os, self.architecture)
    }
}

fn content_reader(
    content: &Content,
    size: u64,
) -> Result<impl FnMut(&mut [u8]) -> std::io::Result<usize> + '_, PackError> {
    let mut reader = ContentReader::new(content, size)?;
    Ok(move |buffer: &mut [u8]| reader.read(buffer))
}

fn file<'a>(files: &'a Tree, path: &[u8]) -> Option<(u64, &'a Content)> {
    match &files.node(files.find(path)?).body {
        Body::File { size, content } => Some((*size, content)),
        _ => None,
    }
}

/// Reads a JSON file of the layout.
fn document<T: serde::de::DeserializeOwned>(files: &Tree, path: &[u8], name: &str) -> Result<T, PackError> {
    let shown = String::from_utf8_lossy(path);
    let wrong = |problem: String| PackError::Oci { archive: name.into(), problem };
    let (size, content) = file(files, path).ok_or_else(|| wrong(format!("no file {shown}")))?;
    if size > DOCUMENT_BYTES_MAX {
        return Err(wrong(format!("{shown} has {size} bytes, at most {DOCUMENT_BYTES_MAX}")));
    }
    let mut bytes = vec![0u8; size as usize];
    content.open()?.read_at(0, &mut bytes)?;
    serde_json::from_slice(&bytes).map_err(|error| wrong(format!("{shown}: {error}")))
}
