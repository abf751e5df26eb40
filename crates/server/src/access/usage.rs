//! What the clients of a principal have and do, all of them together, and whether it is within
//! their limits.
//!
//! Quotas are counts; what exceeds one is refused. Rates are the generic cell rate algorithm of the
//! crate `governor`, with a second's worth saved up; what exceeds one has to wait.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use governor::clock::Clock as RateClock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use units::Moment;
use wire::ErrorCode;

use super::limits::Limits;
use crate::clock::Clock;
use crate::error::Failure;
use crate::lock::locked;

/// Bytes that are one cell of a rate: cells are counted in 32 bits.
const CELL_BYTES: u64 = 1 << 10;

/// A connection takes its bytes in steps of what passes in this part of a second, within these
/// bounds: small steps mix connections better.
const STEPS_PER_SECOND: u64 = 16;
const STEP_CELLS: std::ops::RangeInclusive<u64> = 1..=64;

/// What the clients of a principal have and do.
///
/// Invariant: each count is the sum of what the [`Share`]s of its connections hold.
#[derive(Debug)]
pub(crate) struct Usage {
    principal: String,
    limits: Mutex<Limits>,
    connections: AtomicU64,
    open_images: AtomicU64,
    requests: Rate,
    bytes: Rate,
}

impl Usage {
    /// Of a principal that has nothing yet.
    pub fn new(principal: &str, limits: Limits, clock: Clock) -> Usage {
        let usage = Usage {
            principal: principal.to_owned(),
            limits: Mutex::default(),
            connections: AtomicU64::new(0),
            open_images: AtomicU64::new(0),
            requests: Rate::new(clock),
            bytes: Rate::new(clock),
        };
        usage.set_limits(limits);
        usage
    }

    /// These limits count from now on. What is there beyond them stays.
    pub fn set_limits(&self, limits: Limits) {
        let cells = |bytes: u64| u32::try_from((bytes / CELL_BYTES).max(1)).unwrap_or(u32::MAX);
        self.requests.set(limits.requests_per_second);
        self.bytes.set(limits.bytes_per_second.map(cells));
        *locked(&self.limits) = limits;
    }

    /// The limits of now.
    pub fn limits(&self) -> Limits {
        *locked(&self.limits)
    }

    /// Whose it is.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Takes a request up.
    ///
    /// # Errors
    /// When to try again.
    pub fn take_request(&self) -> Result<(), Moment> {
        self.requests.take(|_| 1).map(drop)
    }

    /// Bytes that a connection may move now; `None` if there is no limit.
    ///
    /// # Errors
    /// When to try again.
    pub fn take_bytes(&self) -> Result<Option<usize>, Moment> {
        let step =
            |rate: u32| (u64::from(rate) / STEPS_PER_SECOND).clamp(*STEP_CELLS.start(), *STEP_CELLS.end()) as u32;
        let cells = self.bytes.take(step)?;
        Ok(cells.map(|cells| (u64::from(cells) * CELL_BYTES) as usize))
    }

    /// Refuses `more` of something of which there are `used` if that is beyond the limit.
    pub fn check(&self, quota: &str, limit: Option<u64>, used: u64, more: u64, code: ErrorCode) -> Result<(), Failure> {
        match limit {
            Some(limit) if more > 0 && used.saturating_add(more) > limit => {
                let who = &self.principal;
                let text = format!(
                    "the quota `{quota}` of {who} is {limit}, used are {used}, and this needs {more} more; have it raised \
                     in [principal.{who}.limits] of the server's access file"
                );
                Err(Failure::new(code, text))
            }
            _ => Ok(()),
        }
    }

    /// Counts one more.
    fn add(&self, quota: &str, limit: Option<u64>, count: &AtomicU64) -> Result<(), Failure> {
        let within = |used: u64| limit.is_none_or(|limit| used < limit).then_some(used + 1);
        let added = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        added.map(drop).or_else(|used| self.check(quota, limit, used, 1, ErrorCode::Busy))
    }
}

/// What one connection has of it; it goes back on drop.
pub(super) struct Share {
    usage: Arc<Usage>,
    /// The connection counts.
    is_counted: bool,
    images: u64,
}

impl Share {
    /// Nothing yet.
    pub fn new(usage: Arc<Usage>) -> Share {
        Share { usage, is_counted: false, images: 0 }
    }

    pub fn usage(&self) -> &Arc<Usage> {
        &self.usage
    }

    /// The client is another principal now. What it has counts there, whatever the limits are.
    pub fn move_to(&mut self, usage: Arc<Usage>) {
        if Arc::ptr_eq(&usage, &self.usage) {
            return;
        }
        usage.connections.fetch_add(u64::from(self.is_counted), Ordering::Relaxed);
        usage.open_images.fetch_add(self.images, Ordering::Relaxed);
        self.give_back();
        self.usage = usage;
    }

    /// Counts the connection, once.
    pub fn count_connection(&mut self) -> Result<(), Failure> {
        if !self.is_counted {
            self.usage.add("connections", self.usage.limits().connections, &self.usage.connections)?;
            self.is_counted = true;
        }
        Ok(())
    }

    /// Counts an image that is opened.
    pub fn count_image(&mut self) -> Result<(), Failure> {
        self.usage.add("open_images", self.usage.limits().open_images, &self.usage.open_images)?;
        self.images += 1;
        Ok(())
    }

    fn give_back(&self) {
        self.usage.connections.fetch_sub(u64::from(self.is_counted), Ordering::Relaxed);
        self.usage.open_images.fetch_sub(self.images, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, Clock, NoOpMiddleware<Duration>>;

impl RateClock for Clock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        Duration::from_micros(Clock::now(*self).0)
    }
}

/// How much may happen in a second.
#[derive(Debug)]
struct Rate {
    clock: Clock,
    limiter: Mutex<Option<(NonZeroU32, Limiter)>>,
}

impl Rate {
    fn new(clock: Clock) -> Rate {
        Rate { clock, limiter: Mutex::default() }
    }

    /// Sets the cells of a second; `None` for no limit.
    fn set(&self, cells: Option<u32>) {
        let cells = cells.and_then(NonZeroU32::new);
        let mut limiter = locked(&self.limiter);
        if limiter.as_ref().map(|(known, _)| *known) != cells {
            let new = |cells| (cells, RateLimiter::direct_with_clock(Quota::per_second(cells), self.clock));
            *limiter = cells.map(new);
        }
    }

    /// Takes as many cells as `wanted` makes of the rate, no more than a second's; `None` if there
    /// is no limit. When to try again if there are too few.
    fn take(&self, wanted: impl FnOnce(u32) -> u32) -> Result<Option<u32>, Moment> {
        let limiter = locked(&self.limiter);
        let Some((rate, limiter)) = &*limiter else { return Ok(None) };
        let cells = NonZeroU32::new(wanted(rate.get())).unwrap_or(NonZeroU32::MIN).min(*rate);
        match limiter.check_n(cells) {
            Ok(Err(later)) => {
                let now = Clock::now(self.clock);
                Err(now.after(later.wait_time_from(RateClock::now(&self.clock)).max(Duration::from_micros(1))))
            }
            // More than a second's cannot be asked for.
            Ok(Ok(())) | Err(_) => Ok(Some(cells.get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(limits: Limits) -> Arc<Usage> {
        Arc::new(Usage::new("ci", limits, Clock::start()))
    }

    #[test]
    fn quotas_count_all_connections_and_name_themselves() {
        let usage = usage(Limits { connections: Some(2), open_images: Some(1), ..Limits::default() });
        let [mut one, mut two, mut three] = [(); 3].map(|()| Share::new(usage.clone()));
        for _ in 0..3 {
            one.count_connection().unwrap();
        }
        two.count_connection().unwrap();
        let refused = three.count_connection().unwrap_err();
        assert_eq!(refused.code, ErrorCode::Busy);
        assert!(refused.text.starts_with("the quota `connections` of ci is 2, used are 2,"), "{refused}");
        one.count_image().unwrap();
        assert!(two.count_image().unwrap_err().text.contains("`open_images` of ci is 1"));
        drop(one);
        three.count_connection().unwrap();
        two.count_image().unwrap();
        usage.set_limits(Limits::default());
        Share::new(usage.clone()).count_connection().unwrap();
        // Whoever becomes another principal takes along what he has.
        let other = Arc::new(Usage::new("field", Limits::default(), Clock::start()));
        two.move_to(other.clone());
        let counts = |usage: &Usage| [&usage.connections, &usage.open_images].map(|it| it.load(Ordering::Relaxed));
        assert_eq!((counts(&usage), counts(&other)), ([1, 0], [1, 1]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_lets_a_second_pass_at_once_and_then_says_when() {
        let clock = Clock::start();
        let limits = Limits { requests_per_second: Some(10), bytes_per_second: Some(1 << 20), ..Limits::default() };
        let usage = Usage::new("ci", limits, clock);
        let mut passed = 0;
        let until = clock.now().after(Duration::from_secs(10));
        while clock.now() < until {
            match usage.take_request() {
                Ok(()) => passed += 1,
                Err(again) => tokio::time::sleep_until(clock.instant(again)).await,
            }
        }
        assert!((109..=111).contains(&passed), "{passed} requests in ten seconds");
        let mut bytes = 0;
        while let Ok(some) = usage.take_bytes() {
            bytes += some.unwrap();
        }
        assert_eq!(bytes, 1 << 20);
        usage.set_limits(Limits::default());
        assert_eq!((usage.take_request(), usage.take_bytes()), (Ok(()), Ok(None)), "without a limit there is no rate");
    }
}
