//! Image files that are mounted by the kernel: under which name they were signed, and their seal.

use std::path::Path;

use ::mount::{FileCheck, Sealing, SignedFile};
use clap::ValueEnum;
use client::signed_without_server;
use connection::{ImageName, Target};

use crate::command::signed::NameArgs;
use crate::config::DeviceConfig;
use crate::failure;

/// What must hold of an image file that the kernel mounts.
#[derive(clap::Args)]
#[command(next_help_heading = "Signed names")]
pub struct SealArgs {
    /// Mount the file only if it is what its publisher signed under this name, such as
    /// runnel://host/app:1. No server is asked: what counts is what this device has seen of the
    /// name, and metadata in the folder `trust` beside the file (with --kernel)
    #[arg(long, value_name = "NAME", requires = "kernel")]
    signed_as: Option<String>,

    /// Let the kernel seal the file of --signed-as with fs-verity, so that nobody can change it,
    /// and compare its digest with the signed one: `auto` where the file system can, `require` or
    /// mount nothing (with --kernel; default: auto; in /etc/runnel/config.toml: [mount] fs_verity)
    #[arg(long, value_enum, value_name = "WHEN", requires = "kernel")]
    fs_verity: Option<FsVerity>,
}

/// Whether image files are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FsVerity {
    /// Where the file system can
    Auto,
    /// Mount nothing that is not signed and sealed
    Require,
    /// Neither seal nor compare
    Off,
}

impl SealArgs {
    /// What the mount of the file must check.
    ///
    /// # Errors
    /// The configuration or the name is wrong, or this device does not know it as signed.
    pub fn check(&self, image: &Path, names: &NameArgs) -> anyhow::Result<FileCheck> {
        let sealing = match self.fs_verity.or(DeviceConfig::load()?.fs_verity) {
            None | Some(FsVerity::Auto) => Sealing::Auto,
            Some(FsVerity::Require) => Sealing::Require,
            Some(FsVerity::Off) => Sealing::Off,
        };
        let signed = self.signed_as.as_deref().map(|name| signed(name, image, names)).transpose()?;
        Ok(FileCheck { signed, sealing })
    }
}

fn signed(name: &str, image: &Path, names: &NameArgs) -> anyhow::Result<SignedFile> {
    let target = Target::parse(name)?;
    let is_name = match &target {
        Target::Remote(remote) => matches!(remote.image, ImageName::Tagged { .. }),
        Target::Http(_) => true,
        Target::Volume(_) | Target::File(_) => false,
    };
    if !is_name {
        return Err(failure::usage(format!(
            "--signed-as {name}: give a name that is signed: runnel://host/name[:tag]"
        )));
    }
    let found = signed_without_server(&names.signed()?, &target, image)?;
    let Some((name, found)) = found else {
        return Err(failure::usage(format!(
            "--signed-as {name}: nobody says whose signature counts\nhint: give --trust root.json, or `trust` for the \
             server in /etc/runnel/config.toml"
        )));
    };
    Ok(SignedFile { name, image: found.image, fs_verity: found.fs_verity })
}
