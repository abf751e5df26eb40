//! The state that serving threads, replies and the interrupt watch share: the descriptors of the
//! device and the requests in flight.

use std::time::{Duration, Instant};

use crate::Errno;
use crate::device::Device;
use crate::handover::{Handover, Left};
use crate::interrupt::{Live, Verdict, Watch};
use crate::request::{Operation, Parsed};
use crate::table::{Entry, Kind, Table};

/// A connection to the kernel.
pub(crate) struct Connection {
    /// One for each serving thread, or one for all of them.
    devices: Vec<Device>,
    table: Table,
    pub watch: Watch,
    /// Of a mount that survives its daemon.
    handover: Option<Handover>,
}

impl Connection {
    pub fn new(devices: Vec<Device>, handover: Option<Handover>) -> Connection {
        Connection { devices, table: Table::default(), watch: Watch::default(), handover }
    }

    /// The descriptor that a serving thread reads.
    pub fn device(&self, index: usize) -> &Device {
        &self.devices[index]
    }

    /// A request was read from a descriptor and wants an answer. What has to be answered is
    /// registered before anybody can answer.
    pub fn register(&self, parsed: &Parsed<'_>, bytes: &[u8], device: usize) {
        let kept = self.handover.as_ref().and_then(|memory| memory.keep(parsed.request.unique(), bytes, device));
        self.insert(parsed, device, kept, false);
    }

    /// A request that the last daemon has left.
    pub fn register_left(&self, parsed: &Parsed<'_>, left: &Left) {
        let slot = left.slot.or_else(|| {
            // It stood in an area, which is read into again.
            let memory = self.handover.as_ref()?;
            let slot = memory.keep(parsed.request.unique(), &left.bytes, left.device)?;
            if left.interrupted {
                memory.interrupt(slot);
            }
            Some(slot)
        });
        self.insert(parsed, left.device, slot, left.interrupted);
    }

    fn insert(&self, parsed: &Parsed<'_>, device: usize, slot: Option<usize>, interrupted: bool) {
        let kind = match &parsed.operation {
            Ok(Operation::Flush(..)) => Kind::Close,
            Ok(Operation::SetLk(_, true)) => Kind::Lock,
            Ok(operation) if operation.ends_by_signal() => Kind::EndsBySignal,
            _ => Kind::Other,
        };
        let thread = parsed.request.pid();
        let entry = Entry { kind, thread, device, arrived: Instant::now(), interrupted, slot };
        self.table.insert(parsed.request.unique(), entry);
        if kind == Kind::Close {
            self.watch.closing(thread);
        }
        if interrupted {
            self.watch.wake();
        }
    }

    /// Whether a request was not answered yet.
    pub fn is_in_flight(&self, unique: u64) -> bool {
        self.table.contains(unique)
    }

    /// Answers a request, unless that was done. Returns whether this answer reached the caller.
    pub fn answer(&self, unique: u64, error: i32, parts: &[&[u8]; 2]) -> bool {
        let Some(entry) = self.table.remove(unique) else { return false };
        let arrived = self.devices.get(entry.device).is_some_and(|device| device.answer(unique, error, parts));
        if let (Some(slot), Some(memory)) = (entry.slot, &self.handover) {
            memory.release(slot);
        }
        arrived
    }

    /// An INTERRUPT with its own number: a signal came for the thread that waits for request `of`.
    pub fn interrupt(&self, interrupt: u64, of: u64) {
        let Some(entry) = self.table.interrupt(of) else {
            // Another thread has read the request and not registered it yet: EAGAIN makes the
            // kernel send the interrupt again. It takes that from the request's own descriptor
            // alone; if none of them is, the request has been answered.
            let again = Errno::AGAIN.raw_os_error();
            self.devices.iter().any(|device| device.answer(interrupt, again, &[&[], &[]]));
            return;
        };
        if let (Some(slot), Some(memory)) = (entry.slot, &self.handover) {
            memory.interrupt(slot);
        }
        match self.watch.judge(&entry, Instant::now(), &Live) {
            Verdict::End(error) => drop(self.answer(of, error, &[&[], &[]])),
            Verdict::Wait(_) => self.watch.wake(),
        }
    }

    /// Answers all that has to end, and says when to look again.
    pub fn look(&self) -> Option<Duration> {
        let mut next = None;
        for (unique, entry) in self.table.watched() {
            match self.watch.judge(&entry, Instant::now(), &Live) {
                Verdict::End(error) => drop(self.answer(unique, error, &[&[], &[]])),
                Verdict::Wait(pause) => next = Some(next.map_or(pause, |next: Duration| next.min(pause))),
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use zerocopy::IntoBytes;

    use super::*;
    use crate::abi::{self, opcode};
    use crate::request::{parse, tests::message};

    /// Pipes in place of descriptors: what the kernel would get from each.
    fn pair() -> (Connection, [io::PipeReader; 2]) {
        let (first, one) = io::pipe().expect("pipe");
        let (second, two) = io::pipe().expect("pipe");
        (Connection::new(vec![Device::new(one.into()), Device::new(two.into())], None), [first, second])
    }

    fn sent(connection: Connection, readers: [io::PipeReader; 2]) -> [Vec<u8>; 2] {
        drop(connection);
        readers.map(|mut reader| {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).expect("read");
            bytes
        })
    }

    #[test]
    fn requests_are_answered_once_and_through_their_own_descriptor() {
        let (connection, readers) = pair();
        let bytes = message(opcode::STATFS, 1, &[]);
        connection.register(&parse(&bytes).expect("a request"), &bytes, 1);
        assert!(connection.answer(42, 0, &[b"x", b""]));
        assert!(!connection.answer(42, 0, &[b"y", b""]));
        let sent = sent(connection, readers);
        assert_eq!((sent[0].len(), sent[1].len()), (0, 17));
    }

    /// One that was read and not kept yet when the daemon died stands in an area, which is read
    /// into again.
    #[test]
    fn what_a_daemon_has_left_is_kept_for_the_one_after_the_next() {
        let memory = crate::handover::create().expect("a memory");
        let (handover, _areas) = Handover::map(&memory).expect("mapped");
        let (reader, writer) = io::pipe().expect("pipe");
        let connection = Connection::new(vec![Device::new(writer.into())], Some(handover));
        let bytes = message(opcode::STATFS, 1, &[]);
        let left = Left { bytes: bytes.clone(), device: 0, interrupted: true, slot: None };
        connection.register_left(&parse(&bytes).expect("a request"), &left);
        let (next, _areas) = Handover::map(&memory).expect("mapped");
        let found = next.left(&[], |_| 0);
        assert!(found.iter().any(|left| left.bytes == bytes && left.interrupted), "{} found", found.len());
        assert!(connection.answer(42, 0, &[b"x", b""]));
        assert!(next.left(&[], |_| 0).is_empty());
        drop(reader);
    }

    #[test]
    fn an_interrupt_before_its_request_is_sent_again() {
        let (connection, readers) = pair();
        connection.interrupt(42 | abi::INTERRUPT_BIT, 42);
        let sent = sent(connection, readers);
        // A pipe takes what the kernel would refuse from all but one of them.
        assert_eq!(sent[0][4..], *[(-11i32).as_bytes(), 43u64.as_bytes()].concat());
        assert!(sent[1].is_empty());
    }
}
