//! Container images as a source: an OCI layout or the output of `docker save`, as a directory or a tar of one.
//!
//! The archive's files are themselves a tree, listed before by the `dir` or `tar` source; here a manifest is chosen
//! and its layers are read, in order, into a new one. Every blob named by a SHA-256 digest is checked against it.
//! Formats after the OCI image specification 1.1 (image-layout, index, manifest, layer) and the description of
//! `docker save` in the Moby image specification 1.2.

use std::io::Read;

use serde::Deserialize;
use sha2::{Digest, Sha256};

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
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Whether the tree is a container image and not just files.
pub(crate) fn is_image(files: &Tree) -> bool {
    let is_file = |path: &[u8]| files.find(path).is_some_and(|node| matches!(files.node(node).body, Body::File { .. }));
    (is_file(b"oci-layout") && is_file(b"index.json")) || is_saved(files)
}

/// `docker save` before version 25 wrote no index. A file of that name alone proves nothing, so it must also parse.
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
        for path in layers {
            let (size, content) = self.file(path.as_bytes())?;
            let name = format!("{}: layer {path}", self.name);
            self.check_digest(&path, content, size)?;
            tree.begin_layer();
            let mut archive = Archive::in_content(content, size, &name)?;
            tar::read(&mut archive, tree, &mut Reading { name: &name, whiteouts: true, spool, notes, progress })?;
        }
        Ok(())
    }

    /// Paths of the layers, lowest first.
    fn layers(&self) -> Result<Vec<String>, PackError> {
        if self.files.find(b"index.json").is_none() {
            return self.saved_layers();
        }
        let index: Index = document(self.files, b"index.json", self.name)?;
        let chosen = self.choose(index.manifests, 0)?;
        let manifest: Manifest = self.blob(&chosen.digest)?;
        if manifest.layers.is_empty() {
            return Err(self.wrong(format!("manifest {} has no layers", chosen.digest)));
        }
        manifest.layers.iter().map(|layer| self.blob_path(&layer.digest)).collect()
    }

    fn saved_layers(&self) -> Result<Vec<String>, PackError> {
        let images: Vec<Saved> = document(self.files, b"manifest.json", self.name)?;
        let tags = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
        let mut fitting: Vec<&Saved> = images.iter().collect();
        if let Some(select) = self.select {
            fitting.retain(|image| tags(image).iter().any(|tag| tag == select));
        }
        match fitting[..] {
            [image] => Ok(image.layers.clone()),
            _ => {
                let names: Vec<String> = images.iter().flat_map(tags).collect();
                Err(self.unclear(fitting.len(), &names))
            }
        }
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
            // A name selects in the outer index, a platform in the inner one: not both stand at one level.
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
        let path = self.blob_path(digest)?;
        let (size, content) = self.file(path.as_bytes())?;
        self.check_digest(&path, content, size)?;
        document(self.files, path.as_bytes(), self.name)
    }

    /// `blobs/ALGORITHM/HEX` of a digest.
    fn blob_path(&self, digest: &str) -> Result<String, PackError> {
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        match digest.split_once(':') {
            Some((algorithm, hex)) if plain(algorithm) && plain(hex) => Ok(format!("blobs/{algorithm}/{hex}")),
            _ => Err(self.wrong(format!("{digest:?} is no digest"))),
        }
    }

    fn file(&self, path: &[u8]) -> Result<(u64, &Content), PackError> {
        file(self.files, path).ok_or_else(|| self.wrong(format!("no file {}", String::from_utf8_lossy(path))))
    }

    /// Compares a blob with the SHA-256 digest in its path. Layers of old `docker save` archives have none.
    fn check_digest(&self, path: &str, content: &Content, size: u64) -> Result<(), PackError> {
        let Some(expected) = path.strip_prefix("blobs/sha256/") else { return Ok(()) };
        let mut reader = ContentReader::new(content, size)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0u8; 256 << 10];
        loop {
            let count = reader.read(&mut buffer).map_err(|source| PackError::read(path, source))?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
        }
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != expected {
            return Err(self.wrong(format!("{path} is damaged: its SHA-256 is {found}")));
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
