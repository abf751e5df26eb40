//! Reports the state of the daemon to the service manager (sd_notify(3)): one datagram to
//! `$NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a state to the service manager, if there is one.
pub(crate) fn notify(state: &str) {
    if let Some(to) = std::env::var_os("NOTIFY_SOCKET") {
        // A manager that does not listen misses it.
        let _ = send(&to, state);
    }
}

fn send(to: &OsStr, state: &str) -> io::Result<()> {
    let address = match to.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(to)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_notified_by_both_kinds_of_address() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let name = format!("runnel-test-{}", std::process::id());
        let sockets = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (
                format!("@{name}").into(),
                UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap(),
            ),
        ];
        for (to, socket) in &sockets {
            send(to, "READY=1").unwrap();
            let mut bytes = [0; 16];
            let length = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/no/such/socket"), "READY=1").is_err());
    }
}
