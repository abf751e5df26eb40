//! Touches of blocks and credit for pushed bytes. They wait so that they leave together: on a thin
//! link each packet costs an acknowledgement on the direction that is full.

use std::time::Duration;

use units::{InodeId, Moment, PageId, StreamId, Token};
use wire::Notice;

use super::files::Files;
use super::link::Link;
use super::session::Session;
use super::table::Block;

/// Touches that wait are sent after this time.
const TOUCH_TIME: Duration = Duration::from_millis(10);

/// Touches that wait at most; then they are sent.
const TOUCHES_MAX: usize = 512;

/// Credit that waits at most; then it is given, so that it never slows a fast link.
const CREDIT_BYTES_MAX: u64 = 16 << 10;

/// A block of a file that an action touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touch {
    /// The file, as the engine knows it.
    file: u64,
    token: Token,
    index: u32,
}

/// Notices that wait to be sent to the server.
///
/// Invariant: touches leave in the order in which they were added, all at once and with all credit.
/// A time is set only while something waits.
#[derive(Debug, Default)]
pub(super) struct Touches {
    touches: Vec<Touch>,
    credits: Vec<(StreamId, u32)>,
    due: Option<Moment>,
}

impl Touches {
    /// When they are to be sent.
    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Notes touches of blocks that were here; `first` is about to be asked for, `more` with it.
    pub fn touch(
        &mut self,
        (key, token): (u64, Token),
        here: &[(u32, bool)],
        first: Option<u32>,
        more: &[u32],
        files: &mut Files,
        session: &mut Session,
    ) {
        let Some(file) = files.get_mut(&key) else { return };
        let mut at_once = false;
        let mut due = None;
        let before = here.iter().filter(|(index, _)| first.is_none_or(|first| *index < first));
        for (index, fresh) in before {
            if file.table.touch(token, *index) {
                self.add(Touch { file: key, token, index: *index });
            }
            // A touch of a block that is on its way leaves with the credit for the block.
            let comes = match file.table.get(*index) {
                Some(Block::OnTheWay { until, .. }) => *until,
                _ => session.now().after(TOUCH_TIME),
            };
            due = Some(due.map_or(comes, |due: Moment| due.min(comes)));
            // Of blocks that came together the last one is told at once, with all before it.
            let next = index.checked_add(1);
            let more = next.and_then(|next| file.table.get(next));
            let comes = next.is_some_and(|next| session.link.expects(file, next, session.now()).is_some());
            at_once |= *fresh && !comes && !matches!(more, Some(Block::Memory { fresh: true, .. }));
        }
        if let Some(first) = first {
            // In order: what was touched before the request must be told before.
            file.table.touch(token, first);
            at_once = true;
        }
        if at_once || self.is_full() {
            self.send(files, &mut session.link);
        }
        let Some(first) = first else {
            self.send_by(due);
            return;
        };
        let Some(file) = files.get_mut(&key) else { return };
        let here = here.iter().filter(|(index, _)| *index > first);
        let mut rest: Vec<u32> = here.map(|(index, _)| index).chain(more).copied().collect();
        rest.sort_unstable();
        for index in rest {
            self.add(Touch { file: key, token, index });
            file.table.touch(token, index);
        }
        self.send_by(Some(session.now().after(TOUCH_TIME)));
    }

    /// Notes that a piece was taken: its bytes are given back with the touches that most often
    /// follow.
    pub fn credit(&mut self, stream: StreamId, bytes: u32, files: &Files, session: &mut Session) {
        self.credits.push((stream, bytes));
        let waiting: u64 = self.credits.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
        if waiting >= CREDIT_BYTES_MAX {
            self.send(files, &mut session.link);
        } else {
            self.send_by(Some(session.now().after(TOUCH_TIME)));
        }
    }

    /// Sends touches and credit that wait.
    pub fn send(&mut self, files: &Files, link: &mut Link) {
        let (credits, touches) = self.take();
        for (stream, bytes) in credits {
            link.notify(Notice::Credit { stream, bytes });
        }
        let Some(volume) = link.volume() else { return };
        let numbered = touches.into_iter().filter_map(|Touch { file, token, index }| {
            let number: InodeId = files.get(&file)?.numbering.number()?;
            Some((token, PageId::new(number, index)))
        });
        let numbered: Vec<(Token, PageId)> = numbered.collect();
        let runs = numbered.chunk_by(|a, b| a.0 == b.0);
        for run in runs.flat_map(|run| run.chunks(wire::format::TOUCH_PAGES_MAX)) {
            let blocks = run.iter().map(|(_, block)| *block).collect();
            link.notify(Notice::Touch { image: volume, token: run[0].0, pages: blocks });
        }
    }

    fn add(&mut self, touch: Touch) {
        self.touches.push(touch);
    }

    /// Whether so many wait that they are to be sent now.
    fn is_full(&self) -> bool {
        self.touches.len() >= TOUCHES_MAX
    }

    /// Sends what waits at this moment at the latest.
    fn send_by(&mut self, due: Option<Moment>) {
        if !self.touches.is_empty() || !self.credits.is_empty() {
            self.due = [self.due, due].into_iter().flatten().min();
        }
    }

    /// Takes all credit and all touches.
    fn take(&mut self) -> (Vec<(StreamId, u32)>, Vec<Touch>) {
        let Touches { touches, credits, .. } = std::mem::take(self);
        (credits, touches)
    }
}
