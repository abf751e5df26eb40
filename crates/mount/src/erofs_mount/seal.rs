//! Whether an image file is the one that its publisher signed, and the kernel's seal on it.
//!
//! The daemon checks each block against the image's metadata, and these against the image's id. So
//! with the signed id all that EROFS reads is what was signed. The seal (fs-verity) adds what the
//! daemon cannot: nobody writes to the file any more, and the kernel itself refuses pages that
//! changed on the disk, whoever reads them. The digest that the kernel measures is that of the file
//! as it was signed; EROFS's own metadata are derived from the file and never lie on a disk.

use std::fs::File;
use std::io;
use std::path::Path;

use host::verity::{self, Measured};
use rustix::io::Errno;
use units::ImageId;

use crate::MountError;

/// What its publisher has signed of an image file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedFile {
    /// The name, as people write it.
    pub name: String,
    /// The image that the name stands for.
    pub image: ImageId,
    /// What fs-verity has for its file, by SHA-256 with blocks of 4096 bytes and no salt.
    pub fs_verity: Option<[u8; 32]>,
}

/// Whether image files are sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sealing {
    /// What was signed, where the file system can.
    #[default]
    Auto,
    /// Nothing is mounted that is not signed and sealed.
    Require,
    /// Nothing is sealed, and no seal is looked at.
    Off,
}

/// What must hold of an image file before it is mounted.
#[derive(Clone, Debug, Default)]
pub struct FileCheck {
    /// What was signed of it, if anybody asked.
    pub signed: Option<SignedFile>,
    /// Whether it is sealed.
    pub sealing: Sealing,
}

/// Why a file is not sealed, and what to do about that.
struct Obstacle {
    problem: String,
    hint: &'static str,
}

impl FileCheck {
    /// Checks the open image file at `path`, and seals it. Returns why it is not sealed, if it
    /// should be where that is possible.
    ///
    /// # Errors
    /// It is not what was signed, or it must be sealed and cannot be.
    pub(super) fn run(&self, file: &File, path: &Path, found: ImageId) -> Result<Option<String>, MountError> {
        if let Some(signed) = self.signed.as_ref().filter(|signed| signed.image != found) {
            let (name, signed) = (signed.name.clone(), signed.image);
            return Err(MountError::OtherImage { path: path.into(), name, signed, found });
        }
        let sealed = match (&self.signed, self.sealing) {
            (_, Sealing::Off) | (None, Sealing::Auto) => return Ok(None),
            (None, Sealing::Require) => Err(Obstacle {
                problem: "nobody says under which name it was signed".into(),
                hint: "give its name with --signed-as runnel://host/name:tag",
            }),
            (Some(signed), _) => seal(file, path, signed)?,
        };
        match (sealed, self.sealing) {
            (Ok(()), _) => Ok(None),
            (Err(Obstacle { problem, hint }), Sealing::Require) => {
                Err(MountError::NotSealed { path: path.into(), problem, hint })
            }
            (Err(obstacle), _) => Ok(Some(obstacle.problem)),
        }
    }
}

/// Seals the file of a signed image, and compares what the kernel then measures.
fn seal(file: &File, path: &Path, signed: &SignedFile) -> Result<Result<(), Obstacle>, MountError> {
    let Some(expected) = signed.fs_verity else {
        return Ok(Err(Obstacle {
            problem: format!("{} was signed without a digest for fs-verity", signed.name),
            hint: "let its publisher sign it again: `runnel push --sign`, or `runnel trust sign`",
        }));
    };
    let sealed = verity::seal(file);
    let measured = verity::measure(file).map_err(|error| MountError::step("measure", path, error))?;
    match (measured, sealed) {
        (Some(Measured::Sha256(found)), _) if found == expected => Ok(Ok(())),
        (Some(found), _) => {
            let (name, signed, found) = (signed.name.clone(), digits(&expected), shown(found));
            Err(MountError::OtherDigest { path: path.into(), name, signed, found })
        }
        (None, Err(error)) => Ok(Err(obstacle(&error))),
        // It was sealed and is not: the file system keeps no word.
        (None, Ok(())) => Ok(Err(obstacle(&Errno::OPNOTSUPP.into()))),
    }
}

/// The meaning of the kernel's refusal to seal a file.
fn obstacle(error: &io::Error) -> Obstacle {
    let said = |problem: &str, hint| Obstacle { problem: problem.into(), hint };
    match Errno::from_io_error(error) {
        Some(Errno::OPNOTSUPP) => said(
            "its file system was made without fs-verity, or the kernel has no CONFIG_FS_VERITY",
            "of ext4, `tune2fs -O verity DEVICE` switches it on",
        ),
        Some(Errno::NOTTY) => said("its file system has no fs-verity", "keep image files on ext4, f2fs or btrfs"),
        Some(Errno::ROFS) => said(
            "its file system is read-only",
            "seal the file before, with `fsverity enable FILE`, when the file system is made",
        ),
        Some(Errno::TXTBSY) => said("somebody has it open for writing", "end that, and mount again"),
        Some(Errno::INVAL) => said(
            "this kernel's fs-verity has no blocks of 4096 bytes here",
            "from Linux 6.3 on it has them also where pages or the file system's blocks are larger",
        ),
        _ => Obstacle { problem: error.to_string(), hint: "give --fs-verity auto to mount without the seal" },
    }
}

fn digits(digest: &[u8]) -> String {
    digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn shown(measured: Measured) -> String {
    match measured {
        Measured::Sha256(digest) => digits(&digest),
        Measured::Other(algorithm) => format!("one by algorithm {algorithm} of fs-verity"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ImageId = ImageId([1; 32]);

    /// A file in memory, which cannot be sealed.
    fn check(signed: Option<SignedFile>, sealing: Sealing) -> Result<Option<String>, MountError> {
        let file = rustix::fs::memfd_create("image", rustix::fs::MemfdFlags::CLOEXEC).expect("made");
        FileCheck { signed, sealing }.run(&File::from(file), Path::new("/app.rnl"), ID)
    }

    fn signed(image: ImageId, fs_verity: Option<[u8; 32]>) -> Option<SignedFile> {
        Some(SignedFile { name: "fleet/app:1".into(), image, fs_verity })
    }

    #[track_caller]
    fn refused(outcome: Result<Option<String>, MountError>, what: &[&str]) {
        let error = outcome.expect_err("refused");
        let text = error.to_string();
        assert!(what.iter().all(|what| text.contains(what)), "{text}");
        assert_eq!(error.exit_code(), 25);
    }

    #[test]
    fn another_image_than_the_signed_one_is_refused() {
        for sealing in [Sealing::Auto, Sealing::Require, Sealing::Off] {
            let other = signed(ImageId([2; 32]), Some([3; 32]));
            refused(check(other, sealing), &["/app.rnl is refused", "fleet/app:1", "0202", "0101"]);
        }
    }

    #[test]
    fn what_cannot_be_sealed_is_mounted_unless_it_must_be() {
        let note = |outcome: Result<Option<String>, MountError>| outcome.expect("mounted");
        assert_eq!(note(check(None, Sealing::Auto)), None);
        assert_eq!(note(check(signed(ID, Some([3; 32])), Sealing::Off)), None);
        let why = note(check(signed(ID, Some([3; 32])), Sealing::Auto)).expect("not sealed");
        assert!(why.contains("fs-verity"), "{why}");
        let why = note(check(signed(ID, None), Sealing::Auto)).expect("not sealed");
        assert!(why.contains("without a digest"), "{why}");
        refused(check(None, Sealing::Require), &["cannot be sealed", "--signed-as"]);
        refused(check(signed(ID, None), Sealing::Require), &["cannot be sealed", "runnel push --sign"]);
        refused(check(signed(ID, Some([3; 32])), Sealing::Require), &["cannot be sealed", "hint: "]);
    }

    #[test]
    fn obstacles_say_what_to_do() {
        for (error, what) in [
            (Errno::OPNOTSUPP, "tune2fs -O verity"),
            (Errno::NOTTY, "ext4"),
            (Errno::ROFS, "fsverity enable"),
            (Errno::TXTBSY, "for writing"),
            (Errno::INVAL, "Linux 6.3"),
            (Errno::IO, "--fs-verity auto"),
        ] {
            let Obstacle { problem, hint } = obstacle(&error.into());
            assert!(format!("{problem} {hint}").contains(what), "{problem}: {hint}");
        }
    }
}
