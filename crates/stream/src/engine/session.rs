//! The session: one volume on its server, its options, the time, and the effects that are
//! collected.

use std::time::Duration;

use connection::{Connected, Unanswered};
use units::Moment;
use wire::volume::VolumeAsk;
use wire::{ErrorCode, ImageHandle, Notice, Reply, Request};

use super::effects::{Effects, Time};
use super::identity::{Showing, Step};
use super::link::Link;
use super::lost::LostChanges;
use super::requests::AskFor;
use crate::call::{Done, OpenHow};
use crate::job::Job;
use crate::names::check_path;
use crate::outbox::Who;
use crate::{ErrorKind, Lost, Options, StreamError, VolumeInfo};

/// Time for an answer beyond what the link needs for what is in flight.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Time after which an open is tried again that the server could not do.
const OPEN_AGAIN: Duration = Duration::from_secs(1);

/// A transaction of so many bytes holds the longest path and some data.
const STORED_BYTES_MIN: usize = 16 << 10;

/// A volume that is open, or is to be.
///
/// Invariant: who opened it is told once, and nothing is asked or told of it before. Effects of
/// each kind keep the order in which they were made.
pub(super) struct Session {
    name: String,
    options: Options,
    time: Time,
    /// Told when the volume is open for the first time, or cannot be.
    opening: Option<Done<VolumeInfo>>,
    info: Option<VolumeInfo>,
    closed: bool,
    pub link: Link,
    showing: Showing,
    rate_limit: u64,
    /// Last number given to a call, read, file, handle or transaction.
    last_id: u64,
    /// The request for which something is done now; 0: none with a number.
    request: u64,
    pub lost: LostChanges,
    effects: Effects,
}

impl Session {
    pub fn new(name: &str, options: Options, opening: Done<VolumeInfo>, who: Who, lost: Vec<Lost>) -> Session {
        Session {
            name: name.to_owned(),
            time: Time::default(),
            opening: Some(opening),
            info: None,
            closed: false,
            link: Link::default(),
            showing: Showing::new(who),
            rate_limit: options.rate_limit,
            last_id: 0,
            request: 0,
            lost: LostChanges::new(lost),
            effects: Effects::default(),
            options,
        }
    }

    pub fn set_time(&mut self, time: Time) {
        self.time = time;
    }

    pub fn now(&self) -> Moment {
        self.time.now
    }

    /// Nanoseconds since 1970.
    pub fn wall_ns(&self) -> i64 {
        self.time.wall_ns
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The volume, once it was open.
    pub fn info(&self) -> Option<VolumeInfo> {
        self.info
    }

    pub fn is_writable(&self) -> bool {
        self.info.is_some_and(|info| info.writable)
    }

    pub fn block_bytes(&self) -> u32 {
        self.info.map_or(4096, |info| info.block_bytes)
    }

    /// A number that nothing has yet.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The last number that was given.
    pub fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Numbers above this one are given from now on.
    pub fn set_last_id(&mut self, last_id: u64) {
        self.last_id = last_id;
    }

    /// What is done from now on is done for this request.
    pub fn set_request(&mut self, request: u64) {
        self.request = request;
    }

    /// The request for which something is done now; 0: none with a number.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// Who this device is.
    pub fn who(&self) -> Who {
        self.showing.who()
    }

    /// Goes on with a volume that an earlier process had open: whoever opens it need not wait for
    /// the server.
    pub fn resumed(&mut self, info: VolumeInfo) {
        self.info = Some(info);
        match self.options.cache.is_some() {
            true => self.push_job(Job::CacheOpen { volume: info.id, block_bytes: info.block_bytes }),
            false => self.tell_opened(),
        }
    }

    /// Whether it was shut down.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Everything ended.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Completes a call.
    pub fn finish<T: Send + 'static>(&mut self, done: Done<T>, outcome: Result<T, StreamError>) {
        self.effects.finish(done, outcome);
    }

    /// Wants something done on this device's storage.
    pub fn push_job(&mut self, job: Job) {
        self.effects.jobs.push(job);
    }

    pub fn push_jobs(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.effects.jobs.extend(jobs);
    }

    /// The effects, for those that complete many calls.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    pub fn take_effects(&mut self) -> Effects {
        Effects { messages: self.link.take_messages(), ..std::mem::take(&mut self.effects) }
    }

    /// Notes a change that was lost.
    pub fn lose(&mut self, path: &[u8], bytes: u64, reason: String, kept_as: Option<String>) {
        self.lost.add(path, bytes, reason, kept_as);
    }

    /// Caps what the server sends.
    pub fn limit_rate(&mut self, bytes_per_second: u64) {
        self.rate_limit = bytes_per_second;
        self.link.notify(Notice::RateLimit { bytes_per_second });
    }

    /// Asks something of the volume; false if it is not open now.
    pub fn ask(&mut self, what: AskFor, ask: VolumeAsk, time: Duration) -> bool {
        let Some(volume) = self.link.volume() else { return false };
        self.link.ask(what, Request::Volume { volume, ask }, time, self.time.now);
        true
    }

    /// The server had no time for a request.
    pub fn ask_later(&mut self, what: AskFor) {
        self.link.ask_later(what, self.time.now);
    }

    /// A connection is there.
    pub fn connected(&mut self, generation: u64, connected: &Connected) {
        self.link.connected(generation, connected);
        if connected.features & wire::format::FEATURE_VOLUMES == 0 {
            let text = "the server serves no volumes; update it";
            let error = StreamError::volume(ErrorKind::NoVolumes, &self.name, text);
            return self.cannot_open(error, true);
        }
        self.ask_volume();
    }

    /// Opens the volume on the present connection.
    pub fn ask_volume(&mut self) {
        if self.link.needs_volume() {
            let request = Request::VolumeOpen { name: self.name.clone() };
            self.link.ask(AskFor::Volume, request, ANSWER_TIME, self.time.now);
        }
    }

    /// The volume cannot be opened; `for_good`: whoever waits for it is told now.
    pub fn cannot_open(&mut self, error: StreamError, for_good: bool) {
        self.link.set_reason(error.to_string());
        self.link.open_again_at(self.time.now.after(OPEN_AGAIN));
        if for_good && let Some(done) = self.opening.take() {
            self.effects.finish(done, Err(error));
        }
    }

    /// The volume that an answer tells of, and the nonce of the connection. An error comes with
    /// whether it is for good.
    pub fn volume_of(
        &self,
        answer: Result<Reply, Unanswered>,
    ) -> Result<(ImageHandle, u128, VolumeInfo), (StreamError, bool)> {
        let nonsense = |what: &str| (StreamError::nonsense(self.name.as_bytes(), what), true);
        match answer {
            Ok(Reply::VolumeOpened { volume, id, block_bytes, writable, nonce }) => {
                if !wire::format::VOLUME_BLOCK_BYTES.contains(&block_bytes) {
                    return Err(nonsense("blocks of a strange size"));
                }
                Ok((volume, nonce, VolumeInfo { id, block_bytes, writable }))
            }
            Ok(Reply::Error { code, text }) => {
                let passing = matches!(code, ErrorCode::Busy | ErrorCode::Shutdown | ErrorCode::Cancelled);
                let error = match code {
                    ErrorCode::NotFound => {
                        let text = format!("the server has no volume of this name ({text}); see its --volume options");
                        StreamError::volume(ErrorKind::NotFound, &self.name, text)
                    }
                    _ => StreamError::refused(code, format!("volume {}", self.name).as_bytes(), &text),
                };
                Err((error, !passing))
            }
            Ok(_) => Err(nonsense("no volume")),
            Err(_) => {
                let text = "the server does not answer; it is tried again";
                Err((StreamError::volume(ErrorKind::Timeout, &self.name, text), false))
            }
        }
    }

    /// The volume is open on the present connection.
    pub fn opened(&mut self, volume: ImageHandle, nonce: u128, info: VolumeInfo) {
        self.link.opened(volume);
        if self.info.replace(info).is_none() && self.options.cache.is_some() {
            self.push_job(Job::CacheOpen { volume: info.id, block_bytes: info.block_bytes });
        }
        self.showing.connected(nonce);
        self.show();
        if self.rate_limit > 0 {
            self.link.notify(Notice::RateLimit { bytes_per_second: self.rate_limit });
        }
    }

    /// Tells whoever opened the volume, if it is open.
    pub fn tell_opened(&mut self) {
        if let Some(info) = self.info
            && let Some(done) = self.opening.take()
        {
            self.effects.finish(done, Ok(info));
        }
    }

    /// Tells whoever opened the volume that it will not be.
    pub fn fail_opening(&mut self, error: &StreamError) {
        if let Some(done) = self.opening.take() {
            self.effects.finish(done, Err(error.clone()));
        }
    }

    /// The connection is gone.
    pub fn lost_connection(&mut self, reason: &str) {
        self.link.lost(self.time.now);
        self.showing.lost();
        if !self.closed {
            self.link.set_reason(reason);
        }
    }

    /// Whether transactions and leases can be sent. A volume for reading refuses them without
    /// asking who it is.
    pub fn is_proven(&self) -> bool {
        self.showing.is_proven() || self.info.is_some_and(|info| !info.writable)
    }

    /// When it is to be shown again who this device is.
    pub fn show_due(&self) -> Option<Moment> {
        self.showing.due()
    }

    /// Tries again to show who this device is, if it is time.
    pub fn show_again(&mut self) {
        if self.showing.take_again(self.time.now) {
            self.show();
        }
    }

    /// Does what comes next until the device is proven.
    fn show(&mut self) {
        let Some(info) = self.info.filter(|info| info.writable && self.link.is_open()) else { return };
        if let Some(ask) = self.showing.next_ask(info.id) {
            let is_under_way = self.ask(AskFor::Device, ask, ANSWER_TIME);
            self.showing.asked(is_under_way);
        }
    }

    /// The server has answered about this device; true if it knows now who it is.
    pub fn device_answered(&mut self, answer: Result<Reply, Unanswered>) -> bool {
        let has_outbox = self.options.outbox.is_some();
        let mut is_proven = false;
        for step in self.showing.answered(answer, has_outbox) {
            match step {
                Step::Keep(who) if has_outbox => self.push_job(Job::Identify { who }),
                Step::Keep(_) => {}
                Step::Later(reason) => self.show_later(reason),
                Step::Proven => is_proven = true,
            }
        }
        self.show();
        is_proven
    }

    /// The identity is in the outbox, or cannot be.
    pub fn identity_kept(&mut self, outcome: Result<(), String>) {
        let Some(outcome) = self.showing.kept(outcome) else { return };
        if let Err(reason) = outcome {
            self.show_later(reason);
        }
        self.show();
    }

    fn show_later(&mut self, reason: String) {
        self.link.set_reason(reason);
        self.showing.try_again_at(self.time.now.after(OPEN_AGAIN));
    }

    pub fn check_size(&self, path: &[u8], size: u64) -> Result<(), StreamError> {
        let max = (u64::from(self.block_bytes()) << 32).min(i64::MAX as u64);
        if size <= max {
            return Ok(());
        }
        let text = format!("a file of this volume has {max} bytes at most; serve it with larger blocks");
        Err(StreamError::new(ErrorKind::TooLarge, path, text))
    }

    pub fn check_open(&self, path: &[u8], how: OpenHow) -> Result<(), StreamError> {
        check_path(path)?;
        if path.is_empty() {
            return Err(StreamError::refused(ErrorCode::NotFile, path, ""));
        }
        if (how.write || how.append || how.truncate) && !self.is_writable() {
            return Err(StreamError::refused(ErrorCode::ReadOnly, path, ""));
        }
        Ok(())
    }

    pub fn unsent_bytes_max(&self) -> u64 {
        let outbox = self.options().outbox.as_ref().filter(|_| !self.link.is_open());
        // A stored transaction has a head that is not counted here.
        outbox.map_or(self.options().dirty_bytes as u64, |room| room.bytes - room.bytes / 8)
    }

    /// Bytes of a transaction, at most, so that several find room in the outbox.
    pub fn stored_bytes_max(&self) -> usize {
        let room = self.options().outbox.as_ref().map_or(u64::MAX, |room| room.bytes);
        usize::try_from(room / 4).unwrap_or(usize::MAX).max(STORED_BYTES_MIN)
    }
}
