//! Requests about signed names.

use bytes::Bytes;
use units::RequestId;
use wire::Reply;
use wire::format::{FRAME_HEADER_BYTES, TRUST_FILES_BYTES_MAX};

use super::Session;
use crate::error::Failure;

/// Answers with the files that a device lacks.
pub(super) fn read(session: &mut Session, request: RequestId, name: String, known: Bytes) -> Result<(), Failure> {
    let shared = session.shared.clone();
    session.answer(request, TRUST_FILES_BYTES_MAX, move || shared.catalog.signed.read(&name, &known));
    Ok(())
}

/// Keeps what a publisher has signed.
pub(super) fn write(session: &mut Session, request: RequestId, name: String, files: Bytes) -> Result<(), Failure> {
    session.client.check_push()?;
    let shared = session.shared.clone();
    let work = move || shared.catalog.signed.write(&name, &files).map(|()| Reply::TrustWritten);
    session.answer(request, FRAME_HEADER_BYTES, work);
    Ok(())
}
