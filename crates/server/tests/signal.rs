//! The blocking convenience ends in good order on a signal. A file of its own, because signals are
//! for the whole process.

use std::net::SocketAddr;
use std::sync::Arc;

use server::{Config, Logger, StoreAt, serve_blocking};
use store::Memory;

#[test]
fn sigterm_ends_the_server_in_good_order_and_sighup_does_not() {
    let store = StoreAt::Open(Arc::new(Memory::new()));
    let config = Config { log: Logger::silent(), ..Config::new(store, SocketAddr::from(([127, 0, 0, 1], 0))) };
    let mut address = None;
    let confine = || Ok(());
    let result = serve_blocking(config, confine, |ready| {
        address = Some(ready);
        // The handlers are in place by now; otherwise these would kill the test.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    });
    result.unwrap();
    let address = address.expect("the server said where it listens");
    assert_ne!(address.port(), 0);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}
