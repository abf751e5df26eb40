//! Signed names of images on a web server: the files of The Update Framework in the folder `trust`
//! beside the image. `app.rnl` has the name `app:latest`, as in a folder of `runnel serve`.

use std::time::{Duration, Instant};

use connection::{Dialer, HttpFile};
use trust::repository::{collect, version_of};
use trust::{Stapled, format::STAPLED_BYTES_MAX};
use units::ImageId;

use super::exchange::{Exchange, Fault};
use super::read;
use crate::config::Config;
use crate::error::ClientError;
use crate::signed::{Opening, Verdict};

/// Checks that an image is the one that was signed, if it must be.
///
/// # Errors
/// It is another one, nothing is signed, or the server fails.
pub(super) fn check(dialer: &Dialer, file: &HttpFile, config: &Config, found: ImageId) -> Result<(), ClientError> {
    let Some(mut opening) = Opening::of_file(&config.signed, file)? else { return Ok(()) };
    let time = config.connection.open_deadline;
    let signed = loop {
        let answer = ask(dialer, file, &opening, time)?;
        if let Verdict::Signed(signed) = opening.verify(answer)? {
            break signed;
        }
    };
    if signed.image == found {
        return Ok(());
    }
    Err(ClientError::NotSigned { name: opening.title(), signed: signed.image, found })
}

/// The files that the device lacks.
fn ask(dialer: &Dialer, file: &HttpFile, opening: &Opening, time: Duration) -> Result<Stapled, ClientError> {
    let held = opening.files()?;
    let known = trust::Known::of_root(opening.root_version()?);
    collect(opening.name(), &known, |name| {
        // A file with a version never changes.
        let (version, role) = name.strip_suffix(".json").and_then(|name| name.split_once('.')).unwrap_or(("", ""));
        let kept =
            held.file(role).filter(|file| version_of(role, file).is_some_and(|kept| kept.to_string() == version));
        match kept {
            Some(kept) => Ok(Some(kept.to_vec())),
            None => fetch(dialer, &beside(file, name), time),
        }
    })
}

/// A small file; `None` if there is none.
fn fetch(dialer: &Dialer, file: &HttpFile, time: Duration) -> Result<Option<Vec<u8>>, ClientError> {
    let whole = || -> Result<Vec<u8>, Fault> {
        let mut exchange = Exchange::dial(dialer, file, time)?;
        let mut first = [0];
        let edition = read(&mut exchange, 0, &mut first, time)?;
        let bytes = usize::try_from(edition.file_bytes).unwrap_or(usize::MAX);
        if bytes > STAPLED_BYTES_MAX {
            return Err(Fault::Broken(format!("it has {bytes} bytes, and metadata have {STAPLED_BYTES_MAX} at most")));
        }
        let mut whole = vec![0; bytes];
        if !exchange.is_reusable() {
            exchange = Exchange::dial(dialer, file, time)?;
        }
        let until = Instant::now() + time;
        let again = exchange.get(0..bytes as u64, until)?;
        exchange.body(&mut whole, until)?;
        if again == edition { Ok(whole) } else { Err(Fault::Changed) }
    };
    match whole() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Fault::Status { status: 404 | 410, .. }) => Ok(None),
        Err(fault) => Err(fault.explain(dialer, file)),
    }
}

/// A metadata file of the folder that the image is in.
fn beside(file: &HttpFile, name: &str) -> HttpFile {
    let (folder, _) = split(&file.path);
    HttpFile { server: file.server.clone(), path: format!("{folder}trust/{name}") }
}

/// The folder of a path, with its slash, and the name of the image.
pub(crate) fn split(path: &str) -> (&str, &str) {
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let (folder, file) = path.split_at(path.rfind('/').map_or(0, |at| at + 1));
    (folder, file.strip_suffix(".rnl").unwrap_or(file))
}
