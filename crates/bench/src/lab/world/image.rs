//! Trees in the forms in which systems deliver them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::super::guest::disk::SMALL_SQUASHFS;
use super::needs::Form;
use super::newest::Newest;
use super::stage::{Fingerprint, Stages, finish, remove, unfinished};
use super::tree::Tree;
use crate::process::{find_program, tool};

/// The programs that make images.
#[derive(Clone, Debug)]
pub struct Makers {
    /// The static binary.
    pub runnel: PathBuf,
    /// Tells that binary from others.
    pub runnel_fingerprint: Fingerprint,
    /// Nydus' converter.
    pub nydus_image: Option<PathBuf>,
    /// The newest tools of squashfs and EROFS; else the machine's own are used.
    pub newest: Option<Newest>,
}

impl Makers {
    /// A tool of another system: the newest, or that of the machine.
    fn program(&self, name: &str, package: &str) -> anyhow::Result<Command> {
        match self.newest.as_ref().and_then(|newest| newest.command(name)) {
            Some(command) => Ok(command),
            None => program(name, package),
        }
    }
}

impl Form {
    /// Where the form of the tree `name` lies below the folder of images.
    fn path(self, images: &Path, name: &str) -> PathBuf {
        let extension = match self {
            Form::Runnel => "rnl",
            Form::Squashfs => "squashfs",
            Form::SmallSquashfs => SMALL_SQUASHFS,
            Form::Erofs => "erofs",
            Form::Nydus => "nydus",
            Form::Casync => "casync",
        };
        images.join(format!("{name}.{extension}"))
    }
}

/// Makes `tree` in `form` below `images`.
pub fn prepare(tree: &Tree, form: Form, images: &Path, makers: &Makers, stages: &Stages) -> anyhow::Result<()> {
    let path = form.path(images, tree.name);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut inputs = format!("tree {}\n", tree.fingerprint);
    match form {
        Form::Runnel => inputs.push_str(&format!("runnel {}\n", makers.runnel_fingerprint)),
        Form::Squashfs | Form::SmallSquashfs | Form::Erofs => {
            let versions = makers.newest.as_ref().map(Newest::versions).transpose()?;
            inputs.push_str(&format!("tools {}\n", versions.unwrap_or_default().join(", ")));
        }
        Form::Nydus | Form::Casync => {}
    }
    stages.run(&name, &inputs, &path, || {
        let new = unfinished(&path)?;
        make(tree, form, &new, makers)?;
        finish(&path)
    })
}

fn program(name: &str, package: &str) -> anyhow::Result<Command> {
    let path = find_program(name).with_context(|| format!("{name} is missing; apt-get install {package}"))?;
    Ok(Command::new(path))
}

fn make(tree: &Tree, form: Form, new: &Path, makers: &Makers) -> anyhow::Result<()> {
    let from = &tree.folder;
    match form {
        Form::Runnel => {
            tool(Command::new(&makers.runnel).arg("pack").arg(from).arg("-o").arg(new))?;
        }
        Form::Squashfs | Form::SmallSquashfs => {
            let mut command = makers.program("mksquashfs", "squashfs-tools")?;
            command.arg(from).arg(new).args(["-comp", "zstd", "-noappend", "-no-progress", "-quiet"]);
            if form == Form::SmallSquashfs {
                command.args(["-b", "128K", "-Xcompression-level", "19"]);
            }
            tool(&mut command)?;
        }
        Form::Erofs => {
            tool(makers.program("mkfs.erofs", "erofs-utils")?.args(["--quiet", "-zlz4hc"]).arg(new).arg(from))?;
        }
        Form::Nydus => {
            let converter = makers.nydus_image.as_ref().context("there is no nydus-image")?;
            fs::create_dir_all(new.join("blobs"))?;
            let mut command = Command::new(converter);
            command.args(["create", "--type", "dir-rafs", "--fs-version", "6", "--compressor", "zstd"]);
            command.args(["--log-level", "error", "--blob-dir"]).arg(new.join("blobs"));
            tool(command.arg("--bootstrap").arg(new.join("bootstrap")).arg(from))?;
        }
        Form::Casync => {
            fs::create_dir_all(new)?;
            let index = new.join(format!("{}.caidx", tree.name));
            let mut command = program("casync", "casync")?;
            command.arg("make").arg("--store").arg(new.join("store.castr"));
            tool(command.arg("--with=unix").arg(&index).arg(from))?;
        }
    }
    Ok(())
}

/// Makes the store `fresh` of a server that has learned nothing: every image of Runnel in `images`,
/// as hard links.
pub fn fresh_store(images: &Path, folder: &Path) -> anyhow::Result<()> {
    let new = unfinished(folder)?;
    fs::create_dir_all(&new)?;
    for image in list(images)? {
        let name = image.file_name().unwrap_or_default();
        fs::hard_link(&image, new.join(name)).with_context(|| format!("cannot link {}", image.display()))?;
    }
    finish(folder)
}

/// The images of Runnel in `images`, by name.
pub fn list(images: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(images).with_context(|| format!("cannot list {}", images.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rnl") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes what is left of images that were never finished.
pub fn remove_unfinished(images: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(images).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "new") {
            remove(&entry.path())?;
        }
    }
    Ok(())
}
