//! The launcher's end of the reports of loaded libraries.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::mpsc;

use probe::FileId;

use crate::Job;
use crate::auditor::Listener;

fn report(device: u64, inode: u64) -> Vec<u8> {
    #[allow(clippy::host_endian_bytes)]
    [device.to_ne_bytes(), inode.to_ne_bytes()].concat()
}

#[test]
fn a_library_has_its_groups_fetched_once_and_other_messages_are_nothing() {
    let (jobs, receiver) = mpsc::channel::<Job>();
    let library = |inode| FileId { device: 0xfd00, inode };
    let awaited = vec![(library(1), vec![2, 3]), (library(5), vec![7])];
    let listener = Listener::start(Path::new("/lib/auditor.so"), awaited, jobs).unwrap();
    let [(audit, path), (variable, value)] = listener.variables();
    assert_eq!((audit, variable), ("LD_AUDIT".into(), "RUNNEL_AUDIT".into()));
    assert!(path.to_str().unwrap().starts_with("/lib/auditor.so"));
    let value = value.into_string().unwrap();
    let words: Vec<&str> = value.split(' ').collect();
    assert_eq!(words[2..], ["fd00:1", "fd00:5"]);
    let socket = UnixDatagram::unbound().unwrap();
    let address = SocketAddr::from_abstract_name(words[0]).unwrap();
    let long = [report(0xfd00, 1), vec![0]].concat();
    for message in [vec![], vec![1], long, report(0xfd00, 9), report(0xfd00, 1), report(0xfd00, 1)] {
        socket.send_to_addr(&message, &address).unwrap();
    }
    let groups: Vec<usize> = receiver.iter().take(2).map(|job| job.group).collect();
    assert_eq!(groups, [2, 3]);
    socket.send_to_addr(&report(0xfd00, 5), &address).unwrap();
    assert_eq!(listener.stop(), 2, "what was sent before the end is received");
    assert_eq!(receiver.iter().map(|job| job.group).collect::<Vec<_>>(), [7], "and nobody sends any more");
    assert!(socket.send_to_addr(&[], &address).is_err());
}
