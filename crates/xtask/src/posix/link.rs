//! A link on this machine that can be cut: connections to its address go on to the server.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Connections of one link.
pub struct Link {
    /// Where it listens.
    pub address: String,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Link {
    /// A link to the server at `target`, until this process ends.
    pub fn new(target: &str) -> io::Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let open = Arc::new(Mutex::new(Vec::new()));
        let link = Link { address: listener.local_addr()?.to_string(), open: Arc::clone(&open) };
        let target = target.to_owned();
        std::thread::spawn(move || {
            for device in listener.incoming().flatten() {
                // While the server is away the device is told by the end of its connection.
                if let Ok(server) = TcpStream::connect(&target) {
                    // A connection that dies this early is like one that was cut.
                    let _ = join(device, server, &open);
                }
            }
        });
        Ok(link)
    }

    /// Ends all connections, with what is under way in them.
    pub fn cut(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn join(device: TcpStream, server: TcpStream, open: &Mutex<Vec<TcpStream>>) -> io::Result<()> {
    open.lock().unwrap_or_else(PoisonError::into_inner).extend([device.try_clone()?, server.try_clone()?]);
    for (from, to) in [(device.try_clone()?, server.try_clone()?), (server, device)] {
        from.set_nodelay(true)?;
        std::thread::spawn(move || carry(from, to));
    }
    Ok(())
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    // However it ends, both sides have to hear of it.
    let _ = io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
