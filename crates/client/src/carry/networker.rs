//! A connection that carries nothing but volumes, kept alive by a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use units::{Moment, Rng, SplitMix64};
use wire::ClientEvent;

use super::hold::Hold;
use super::{Carrier, Errand, Passenger};
use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::lane::{BACK_OFF_MAX, BACK_OFF_MIN, wire_config};
use crate::session::{random_number, spawn};
use crate::target::Server;
use crate::transport::{Dialer, timespec};
use crate::waker::Waker;

/// How to reach the thread; dropping it ends the connection.
pub struct Networker {
    orders: Sender<(u64, Errand)>,
    waker: Arc<Waker>,
    clock: Clock,
    closed: Arc<AtomicBool>,
}

/// What the thread owns.
struct Worker {
    dialer: Dialer,
    config: Config,
    device: u128,
    clock: Clock,
    orders: Receiver<(u64, Errand)>,
    waker: Arc<Waker>,
    closed: Arc<AtomicBool>,
    passenger: Arc<dyn Passenger>,
}

impl Networker {
    /// Starts to connect to a server, and keeps at it.
    ///
    /// # Errors
    /// [`ClientError`]: certificates cannot be read, no thread. That there is no server is told to the passenger.
    pub fn start(
        server: &Server,
        config: Config,
        passenger: Arc<dyn Passenger>,
    ) -> Result<Arc<Networker>, ClientError> {
        let dialer = Dialer::new(server, &config.trust)?;
        let device = random_number()?;
        let (orders, receiver) = channel();
        let waker = Arc::new(Waker::new().map_err(ClientError::System)?);
        let (clock, closed) = (Clock::start(), Arc::new(AtomicBool::new(false)));
        let worker = Worker {
            dialer,
            config,
            device,
            clock,
            orders: receiver,
            waker: Arc::clone(&waker),
            closed: Arc::clone(&closed),
            passenger,
        };
        spawn("runnel-network", move || worker.work())?;
        Ok(Arc::new(Networker { orders, waker, clock, closed }))
    }

    /// Ends the connection; the passenger hears of it last.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Networker {
    fn drop(&mut self) {
        self.close();
    }
}

impl Carrier for Networker {
    fn send(&self, generation: u64, errand: Errand) {
        // A thread that is gone has said so.
        let _ = self.orders.send((generation, errand));
        self.waker.wake();
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl Worker {
    fn work(self) {
        let mut rng = SplitMix64(self.device as u64);
        let mut back_off = BACK_OFF_MIN;
        let mut generation = 0;
        while !self.closed.load(Ordering::Acquire) {
            generation += 1;
            let config = wire_config(&self.config, self.device);
            match Connection::connect(&self.dialer, config, self.clock, self.config.open_deadline) {
                Ok(mut connection) => {
                    let (reason, was_ready) = self.serve(&mut connection, generation);
                    if was_ready {
                        back_off = BACK_OFF_MIN;
                    }
                    self.passenger.lost(&reason);
                }
                Err(error) => self.passenger.lost(&error.to_string()),
            }
            let micros = back_off.as_micros() as u64;
            self.wait(Duration::from_micros(micros / 2 + rng.below(micros / 2 + 1)));
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        }
        self.passenger.closed();
    }

    /// Serves a connection to its end; says why it ended, and whether the server ever answered.
    fn serve(&self, connection: &mut Connection, generation: u64) -> (String, bool) {
        let mut hold = Hold::default();
        let passenger = &*self.passenger;
        let mut was_ready = false;
        // Requests leave with the Hello: a server without volumes is of no use here anyway.
        passenger.connected(generation, connection.connected(wire::format::FEATURES));
        loop {
            self.waker.reset();
            if self.closed.load(Ordering::Acquire) {
                return ("closed".to_string(), was_ready);
            }
            hold.run_waiting(&mut connection.machine, passenger, self.clock.now());
            while let Ok((meant, errand)) = self.orders.try_recv() {
                if meant == generation {
                    hold.run(&mut connection.machine, passenger, self.clock.now(), errand);
                }
            }
            connection.turn(Some(&self.waker), Moment(u64::MAX));
            while let Some(event) = connection.machine.poll_event() {
                match hold.take(event, passenger) {
                    Some(ClientEvent::Closed(error)) => return (connection.explain(error).to_string(), was_ready),
                    Some(ClientEvent::Ready(_)) => was_ready = true,
                    // Streams of images, which nobody opened here.
                    Some(ClientEvent::Push { piece, credit }) => {
                        let _ = connection.machine.credit(piece.stream, credit);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Sleeps between attempts, or until it is over.
    fn wait(&self, time: Duration) {
        let until = self.clock.now().after(time);
        loop {
            self.waker.reset();
            // What was meant for a connection that is gone.
            while self.orders.try_recv().is_ok() {}
            let now = self.clock.now();
            if now >= until || self.closed.load(Ordering::Acquire) {
                return;
            }
            let mut descriptors = [rustix::event::PollFd::new(self.waker.as_ref(), rustix::event::PollFlags::IN)];
            // Interrupted or not: the loop looks again.
            let _ = rustix::event::poll(&mut descriptors, Some(&timespec(until.since(now))));
        }
    }
}
