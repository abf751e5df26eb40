//! Telling a server of runs that it does not know of ([`crate::cached::Untold`]), in the messages
//! that a running program's touches take.
//!
//! It goes over a connection on which the server pushes nothing: that of a pin, or one of its own
//! beside those of a session, where a server would push what such a run needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use connection::{Connection, Dialer, answer_time, random_number, spawn};
use units::{Moment, PageId, RequestId, Token};
use wire::format::{FEATURE_PROOFS, FEATURE_START, TOUCH_PAGES_MAX};
use wire::{ClientConfig, ImageHandle, Notice, Reply, Request};

use crate::cached::ImageCache;
use crate::error::ClientError;
use crate::shared::Shared;

/// What a page takes in a message at most.
const PAGE_BYTES: u64 = 10;

/// Bytes to send for a run, roughly.
pub(crate) fn run_bytes(pages: &[PageId]) -> u64 {
    pages.len() as u64 * PAGE_BYTES
}

/// Sends a run, and a request: a server answers in order, so it has taken the run when it answers.
pub(crate) fn send_run(
    connection: &mut Connection,
    image: ImageHandle,
    pages: &[PageId],
    answer: Duration,
) -> Result<RequestId, ClientError> {
    let token = Token(random_number()?);
    let (now, machine) = (connection.now(), &mut connection.machine);
    let sent = pages
        .chunks(TOUCH_PAGES_MAX)
        .try_for_each(|pages| machine.touch(image, token, pages.to_vec()))
        .and_then(|()| machine.token_end(image, token))
        .and_then(|()| {
            let until = now.after(answer_time(answer, run_bytes(pages)));
            machine.request_until(now, Request::MetaRead { image, offset: 0, bytes: 1 }, until)
        });
    sent.map_err(|why| connection.refused(why).into())
}

/// Tells the server of a session.
pub(crate) struct Teller {
    shared: Arc<Shared>,
    cached: Arc<ImageCache>,
    dialer: Dialer,
    /// A thread does so.
    is_busy: Arc<AtomicBool>,
}

impl Teller {
    pub fn new(shared: Arc<Shared>, cached: Arc<ImageCache>, dialer: Dialer) -> Teller {
        Teller { shared, cached, dialer, is_busy: Arc::default() }
    }

    /// Tells the server what it does not know, from a thread. The server is there, and has the
    /// image. What it does not take is told another time.
    pub fn start(&self) {
        let is_any = self.cached.untold().is_some_and(|(cache, untold)| !untold.is_empty(cache));
        if !is_any || self.is_busy.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, cached) = (Arc::clone(&self.shared), Arc::clone(&self.cached));
        let (dialer, is_busy) = (self.dialer.clone(), Arc::clone(&self.is_busy));
        let tells = spawn("runnel-tell", move || {
            let _ = tell(&shared, &cached, &dialer);
            is_busy.store(false, Ordering::Release);
        });
        if tells.is_err() {
            self.is_busy.store(false, Ordering::Release);
        }
    }
}

fn tell(shared: &Shared, cached: &ImageCache, dialer: &Dialer) -> Result<(), ClientError> {
    let Some((cache, untold)) = cached.untold() else { return Ok(()) };
    let (config, clock, id) = (&shared.config.connection, shared.clock, shared.metadata.id());
    let wire = quiet(config.wire(random_number()?));
    let mut connection = Connection::connect(dialer, wire, clock, config.open_deadline)?;
    let until = clock.now().after(config.open_deadline);
    let open = connection.machine.request_until(clock.now(), Request::Open { name: format!("@{id}") }, until);
    let open = open.map_err(|why| connection.refused(why))?;
    let Reply::Opened { image, id: found, .. } = connection.answer(open, until)? else { return Ok(()) };
    if found != id {
        return Ok(());
    }
    for (key, pages) in untold.runs(cache, &shared.metadata) {
        if shared.is_closed() {
            break;
        }
        if !pages.is_empty() {
            let request = send_run(&mut connection, image, &pages, config.answer_deadline)?;
            connection.answer(request, Moment(u64::MAX))?;
        }
        untold.told(cache, &key);
    }
    Ok(())
}

/// The settings of a connection on which nothing is pushed, and nothing comes unasked.
pub(crate) fn quiet(wire: ClientConfig) -> ClientConfig {
    ClientConfig { push_bytes_max: 0, features: wire.features & !(FEATURE_PROOFS | FEATURE_START), ..wire }
}

/// Tells the server how near the device is, before it pushes for the first time: it picks the codec
/// by that.
pub(crate) fn tell_round_trip(connection: &mut Connection) {
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX).max(1);
    let round_trip = connection.machine.round_trip().map_or(0, micros);
    // Refused where the server has no use for it.
    let _ = connection.machine.notify(Notice::DeviceSpeed { round_trip, zstd: 0, lz4: 0 });
}
