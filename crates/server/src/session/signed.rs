//! Requests about signed names.

use bytes::Bytes;
use units::RequestId;
use wire::Reply;
use wire::format::{FRAME_HEADER_BYTES, TRUST_FILES_BYTES_MAX};

use super::Session;
use super::client::DONE;
use crate::access::Right;
use crate::error::Failure;
use crate::name::Name;

/// Answers with the files that a device lacks.
pub(super) fn read(session: &mut Session, request: RequestId, name: String, known: Bytes) -> Result<(), Failure> {
    if name.is_empty() {
        session.client.check_list()?;
    } else {
        session.client.check(Right::Pull, &full(&name))?;
    }
    let shared = session.shared.clone();
    session.answer(request, TRUST_FILES_BYTES_MAX, move || shared.catalog.signed.read(&name, &known));
    Ok(())
}

/// Keeps what a publisher has signed.
pub(super) fn write(session: &mut Session, request: RequestId, name: String, files: Bytes) -> Result<(), Failure> {
    let full = full(&name);
    session.client.check(Right::Push, &full)?;
    let (shared, note) = (session.shared.clone(), session.client.noted_later("sign", &full));
    let work = move || {
        let written = shared.catalog.signed.write(&name, &files, shared.clock.utc());
        note(written.as_ref().map_or_else(|failure| failure.text.as_str(), |()| DONE));
        written.map(|()| Reply::TrustWritten)
    };
    session.answer(request, FRAME_HEADER_BYTES, work);
    Ok(())
}

/// The name with its tag, as rules have it. What is about no name is for those who may push all.
fn full(name: &str) -> String {
    Name::parse(name).map_or_else(|_| name.to_owned(), |name| name.to_string())
}
