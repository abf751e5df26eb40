//! What a client may do on this connection: where it begins something, and where it must end.

use std::sync::Arc;

use units::{ImageId, RequestId};
use wire::{ErrorCode, Reply, Request, WireError};

use super::{Session, metadata};
use crate::access::{Opening, Right, Usage};
use crate::done::Done;
use crate::error::Failure;
use crate::handles::HANDLES_MAX;
use crate::name::Name;
use crate::published::Published;
use crate::upload::{Announced, Publisher};

/// Goes by the rules of now. False if they have ended the connection.
pub(super) fn follow_rules(session: &mut Session) -> bool {
    let allowed = session.client.follow_rules();
    end_unless(session, allowed);
    session.closed.is_none()
}

/// Ends the connection of a client that may not have it any more. Nothing else of it is taken up.
pub(super) fn end_unless(session: &mut Session, allowed: Result<(), String>) {
    if let Err(text) = allowed {
        end(session, Failure { code: ErrorCode::Forbidden, text });
    }
}

fn end(session: &mut Session, Failure { code, text }: Failure) {
    if session.closed.is_none() {
        session.wire.shut_down(code, &text);
        session.closed = Some(WireError::ShutDown { text });
    }
}

/// Takes a request up, unless the client has to wait or leave.
pub(super) fn begin(session: &mut Session, request: RequestId, ask: Request) {
    if !follow_rules(session) {
        return;
    }
    if let Some(Err(until)) = session.client.usage().map(Usage::take_request) {
        return session.rates.keep(request, ask, until);
    }
    session.shared.metrics.requests.one();
    if let Err(failure) = session.client.count_connection() {
        return end(session, failure);
    }
    if let Err(failure) = session.take_request(request, ask) {
        session.fail(request, &failure);
    }
}

/// Opens an image.
pub(super) fn open(session: &mut Session, request: RequestId, name: &str) -> Result<(), Failure> {
    let name = Name::parse(name).map_err(Failure::bad_request)?;
    let opening = Arc::new(session.client.opening(&name)?);
    let (shared, begun) = (session.shared.clone(), opening.clone());
    let open = move || {
        begun.check(shared.catalog.names())?;
        shared.catalog.open(&name, shared.uploads.interrupted())
    };
    session.open_image(open, move |opened| Done::Opened { request, opened, opening });
    Ok(())
}

/// An image was opened, or was not.
pub(super) fn opened(
    session: &mut Session,
    request: RequestId,
    opened: Result<Arc<Published>, Failure>,
    opening: &Opening,
) {
    let Err(failure) = opened.and_then(|image| tell(session, request, &image, opening)) else { return };
    if let Some(asked) = opening.asked().filter(|_| failure.code == ErrorCode::Forbidden) {
        session.client.note_refused(&asked, &failure);
    }
    session.fail(request, &failure);
}

/// Gives an image its handle.
fn tell(session: &mut Session, request: RequestId, image: &Arc<Published>, opening: &Opening) -> Result<(), Failure> {
    // The rules may have changed since it began. A handle that was given once can be used.
    session.client.check_opening(opening)?;
    if session.handles.by_id(image.id).is_none() {
        session.client.count_image(opening)?;
    }
    let handle = session.handles.handle(image).ok_or_else(|| {
        Failure::new(ErrorCode::Busy, format!("a connection has at most {HANDLES_MAX} images and volumes"))
    })?;
    session.client.opened(handle, image.id, opening);
    metadata::send_start(session, handle, image);
    let region = image.metadata.metadata_region();
    let reply = Reply::Opened {
        image: handle,
        id: image.id,
        file_bytes: image.metadata.file_bytes(),
        metadata_offset: region.start,
        metadata_bytes: region.end - region.start,
    };
    session.reply(request, reply);
    Ok(())
}

/// Begins an upload of a file of so many bytes, with its metadata at an offset.
pub(super) fn begin_upload(
    session: &mut Session,
    request: RequestId,
    name: String,
    (file_bytes, metadata_offset, metadata_bytes): (u64, u64, u64),
) -> Result<(), Failure> {
    let full = Name::parse(&name).map_or_else(|_| name.clone(), |name| name.to_string());
    session.client.check(Right::Push, &full)?;
    let config = &session.shared.config;
    let mut announced = Announced::check(config, &name, file_bytes, metadata_offset, metadata_bytes)?;
    announced.publisher = session.client.usage_shared().map(Publisher);
    session.uploads.begin(&session.shared.uploads, announced, session.client.owner(), request);
    session.client.upload_begins(request, full);
    Ok(())
}

/// An upload is over, or nobody wants it any more.
pub(super) fn end_upload(session: &mut Session, request: RequestId, outcome: &Result<ImageId, Failure>) {
    session.uploads.remove(request);
    session.client.upload_ends(request, outcome);
}
