//! The state that serving threads, replies and the interrupt watch share: the descriptors of the
//! device and the requests in flight.

use std::time::{Duration, Instant};

use crate::Errno;
use crate::device::Device;
use crate::handover::{Area, Handover, Left, Place, REQUEST_BYTES_MAX};
use crate::interrupt::{Live, Verdict, Watch};
use crate::request::{Operation, Parsed, parse};
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

    /// A request is about to be read into an area.
    pub fn begins(&self, area: &mut Area, device: usize) {
        if let Some(memory) = &self.handover {
            memory.begins(area, device);
        }
    }

    /// What was read into an area gets no answer, and is about to be done.
    pub fn settle(&self, area: Option<usize>) {
        if let (Some(area), Some(memory)) = (area, &self.handover) {
            memory.settle(area);
        }
    }

    /// A request was read from a descriptor, into an area, and wants an answer. What has to be
    /// answered is registered before anybody can answer.
    pub fn register(&self, parsed: &Parsed<'_>, bytes: &[u8], device: usize, area: Option<usize>) {
        let kept = self.handover.as_ref().and_then(|memory| {
            if bytes.len() > REQUEST_BYTES_MAX {
                return area.map(Place::Read);
            }
            let kept = memory.keep(parsed.request.unique(), bytes, device);
            // If all slots are taken, it may be found in the area for a while.
            if let (Some(_), Some(area)) = (kept, area) {
                memory.settle(area);
            }
            kept
        });
        self.insert(parsed, device, kept, false);
    }

    /// An area to read into, after a request was read into this one and had time to be answered:
    /// the same one unless the request is still in it.
    pub fn next_area(&self, mut area: Area, length: usize, device: usize) -> Area {
        let (Some(memory), Some(index), true) = (&self.handover, area.index(), length > REQUEST_BYTES_MAX) else {
            return area;
        };
        let Some(unique) = parse(&area.bytes()[..length]).map(|parsed| parsed.request.unique()) else { return area };
        let Some(mut next) = memory.take_area() else {
            if let Some(slot) = memory.keep(unique, &area.bytes()[..length], device)
                && !self.table.keep(unique, slot)
            {
                memory.release(slot);
            }
            return area;
        };
        if !self.table.keep(unique, Place::Area(index)) {
            // The usual case: it was answered meanwhile.
            memory.release_area(next);
            return area;
        }
        Handover::warm(&mut next, length);
        next
    }

    /// A request that the last daemon has left.
    pub fn register_left(&self, parsed: &Parsed<'_>, left: &Left) {
        let mut place = left.place;
        if let (Place::Area(_), Some(memory)) = (place, &self.handover)
            && left.bytes.len() <= REQUEST_BYTES_MAX
            && let Some(slot) = memory.keep(parsed.request.unique(), &left.bytes, left.device)
        {
            if left.interrupted {
                memory.interrupt(slot);
            }
            memory.release(place);
            place = slot;
        }
        self.insert(parsed, left.device, Some(place), left.interrupted);
    }

    /// What the last daemon has left is not to be done again; its answer, if there is one, is sent.
    pub fn settle_left(&self, left: &Left, unique: u64) {
        if let Some((error, bytes)) = &left.answer
            && let Some(device) = self.devices.get(left.device)
        {
            // Refused if the last daemon had sent it.
            device.answer(unique, *error, &[bytes, &[]]);
        }
        if let Some(memory) = &self.handover {
            memory.release(left.place);
        }
    }

    fn insert(&self, parsed: &Parsed<'_>, device: usize, place: Option<Place>, interrupted: bool) {
        let kind = match &parsed.operation {
            Ok(Operation::Flush(..)) => Kind::Close,
            Ok(Operation::SetLk(_, true)) => Kind::Lock,
            Ok(operation) if operation.ends_by_signal() => Kind::EndsBySignal,
            _ => Kind::Other,
        };
        let thread = parsed.request.pid();
        let entry = Entry { kind, thread, device, arrived: Instant::now(), interrupted, place, is_answered: false };
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
        let keep = |entry: &Entry| {
            if let (Some(place), Some(memory)) = (entry.place, &self.handover) {
                memory.answer(place, error, parts);
            }
        };
        let Some(entry) = self.table.remove(unique, keep) else { return false };
        let arrived = self.devices.get(entry.device).is_some_and(|device| device.answer(unique, error, parts));
        let place = match entry.place {
            Some(Place::Read(_)) => self.table.sent(unique),
            place => place,
        };
        if let (Some(place), Some(memory)) = (place, &self.handover) {
            memory.release(place);
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
        if let (Some(place), Some(memory)) = (entry.place, &self.handover) {
            memory.interrupt(place);
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
    use crate::request::tests::message;

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
        connection.register(&parse(&bytes).expect("a request"), &bytes, 1, None);
        assert!(connection.answer(42, 0, &[b"x", b""]));
        assert!(!connection.answer(42, 0, &[b"y", b""]));
        let sent = sent(connection, readers);
        assert_eq!((sent[0].len(), sent[1].len()), (0, 17));
    }

    /// One of a mount that survives its daemon, with what the kernel would get.
    fn surviving(memory: &std::os::fd::OwnedFd) -> (Connection, io::PipeReader) {
        let (handover, _) = Handover::map(memory).expect("mapped");
        let (reader, writer) = io::pipe().expect("pipe");
        (Connection::new(vec![Device::new(writer.into())], Some(handover)), reader)
    }

    /// Reads a request as a serving thread does, and registers it.
    fn receive(connection: &Connection, bytes: &[u8]) -> Area {
        let mut area = connection.handover.as_ref().and_then(Handover::take_area).expect("an area");
        connection.begins(&mut area, 0);
        area.bytes()[..bytes.len()].copy_from_slice(bytes);
        connection.register(&parse(bytes).expect("a request"), bytes, 0, area.index());
        area
    }

    fn left(memory: &std::os::fd::OwnedFd) -> Vec<Left> {
        Handover::map(memory).expect("mapped").0.left()
    }

    #[test]
    fn what_a_daemon_has_left_is_kept_for_the_one_after_the_next() {
        let memory = crate::handover::create().expect("a memory");
        for bytes in [message(opcode::STATFS, 1, &[]), message(opcode::WRITE, 1, &[&[3; 9000]])] {
            let (first, _reader) = surviving(&memory);
            receive(&first, &bytes);
            let (next, _reader) = surviving(&memory);
            let mut found = left(&memory).pop().expect("it was left");
            found.interrupted = true;
            next.register_left(&parse(&bytes).expect("a request"), &found);
            let found = left(&memory);
            assert!(found.len() == 1 && found[0].bytes == bytes, "{} found", found.len());
            assert!(next.answer(42, 0, &[b"x", b""]));
            assert!(left(&memory).is_empty());
        }
    }

    #[test]
    fn a_long_request_stays_where_it_was_read_until_it_is_answered() {
        let memory = crate::handover::create().expect("a memory");
        let (connection, _reader) = surviving(&memory);
        let write = message(opcode::WRITE, 1, &[&[3; 9000]]);
        let area = receive(&connection, &write);
        let index = area.index();
        let next = connection.next_area(area, write.len(), 0);
        assert_ne!(next.index(), index);
        assert_eq!(left(&memory)[0].bytes, write);
        assert!(connection.answer(42, 0, &[b"12345678", b""]));
        assert!(left(&memory).is_empty());
        // One that is answered at once needs no other area, and its answer is kept with it.
        let area = receive(&connection, &write);
        let index = area.index();
        assert!(connection.answer(42, 0, &[b"12345678", b""]));
        assert_eq!(left(&memory)[0].answer, Some((0, b"12345678".to_vec())));
        assert_eq!(connection.next_area(area, write.len(), 0).index(), index);
    }

    #[test]
    fn a_long_request_without_a_place_is_an_error_after_a_death_and_not_a_wait() {
        let memory = crate::handover::create().expect("a memory");
        let (connection, _reader) = surviving(&memory);
        let write = message(opcode::WRITE, 1, &[&[3; 9000]]);
        let mut area = receive(&connection, &write);
        while connection.handover.as_ref().and_then(Handover::take_area).is_some() {}
        let index = area.index();
        area = connection.next_area(area, write.len(), 0);
        assert_eq!(area.index(), index);
        connection.begins(&mut area, 0);
        let found = left(&memory);
        assert_eq!(found.len(), 1);
        let parsed = parse(&found[0].bytes).expect("it has a header");
        assert!(parsed.is_answered() && parsed.operation == Err(Errno::IO));
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
