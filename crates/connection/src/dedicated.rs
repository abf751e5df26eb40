//! A connection for volumes alone.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use units::Moment;
use wire::ClientEvent;

use crate::clock::Clock;
use crate::config::Config;
use crate::connection::Connection;
use crate::driver::{Driver, Handler};
use crate::error::ConnectionError;
use crate::frames::VolumeFrames;
use crate::system::{random_number, spawn};
use crate::target::Server;
use crate::transport::Dialer;
use crate::volume::{VolumeConnection, VolumeHandler, VolumeMessage};
use crate::waker::Waker;

/// A connection for volumes alone, with its thread. Dropping it ends the connection.
pub struct DedicatedConnection {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    clock: Clock,
}

enum Command {
    Send { generation: u64, message: VolumeMessage },
    Close,
}

/// The handler of the connection.
struct Volumes {
    frames: VolumeFrames,
    /// The server greeted us.
    was_ready: bool,
}

impl DedicatedConnection {
    /// Starts to connect to a server, and keeps at it.
    ///
    /// # Errors
    /// [`ConnectionError`]: certificates cannot be read, no thread. That there is no server is told
    /// to the handler.
    pub fn start(
        server: &Server,
        config: Config,
        handler: Arc<dyn VolumeHandler>,
    ) -> Result<Arc<DedicatedConnection>, ConnectionError> {
        let dialer = Dialer::new(server, &config.trust)?;
        let device = random_number()?;
        let (commands, receiver) = channel();
        let waker = Arc::new(Waker::new().map_err(ConnectionError::System)?);
        let clock = Clock::start();
        let driver = Driver {
            dialer,
            config,
            device,
            seed: device as u64,
            clock,
            commands: receiver,
            waker: Arc::clone(&waker),
            handler: Volumes { frames: VolumeFrames::new(handler), was_ready: false },
        };
        spawn("runnel-network", move || driver.run(None))?;
        Ok(Arc::new(DedicatedConnection { commands, waker, clock }))
    }

    /// Ends the connection; the handler is told last.
    pub fn close(&self) {
        self.command(Command::Close);
    }

    fn command(&self, command: Command) {
        // A thread that is gone has said so.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

impl Drop for DedicatedConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl VolumeConnection for DedicatedConnection {
    fn send(&self, generation: u64, message: VolumeMessage) {
        self.command(Command::Send { generation, message });
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl Handler for Volumes {
    type Command = Command;

    fn connected(&mut self, connection: &mut Connection, generation: u64) {
        // Requests leave with the Hello: a server without volumes is of no use here anyway.
        self.frames.connected(connection, generation, wire::format::FEATURES);
    }

    fn command(&mut self, connection: &mut Connection, command: Command) -> ControlFlow<()> {
        match command {
            Command::Close => return ControlFlow::Break(()),
            Command::Send { generation, message } => self.frames.send(connection, generation, message),
        }
        ControlFlow::Continue(())
    }

    fn drop_command(&mut self, command: Command) -> ControlFlow<()> {
        match command {
            Command::Close => ControlFlow::Break(()),
            Command::Send { .. } => ControlFlow::Continue(()),
        }
    }

    fn before_turn(&mut self, connection: &mut Connection) {
        self.frames.send_waiting(connection);
    }

    fn event(&mut self, connection: &mut Connection, event: ClientEvent) -> ControlFlow<()> {
        match self.frames.take(event) {
            Some(ClientEvent::Ready(_)) => self.was_ready = true,
            // Streams of images, which nobody opened here.
            Some(ClientEvent::Push { piece, credit }) => {
                let _ = connection.machine.credit(piece.stream, credit);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn lost(&mut self, reason: &str) -> bool {
        self.frames.lost(reason);
        std::mem::take(&mut self.was_ready)
    }

    fn closed(&mut self) {
        self.frames.closed();
    }
}
