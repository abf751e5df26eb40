//! The trait of all predictors.

use profile::Teacher;
use units::{ActionId, Moment, PageId, Token};

/// What a token is doing, as SYSFLOW names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Its touches follow nothing known and are recorded as a new action. Every page is asked for.
    #[default]
    Construct,
    /// Its first touch is that of a known action, and nothing else has confirmed it yet.
    Match,
    /// It follows a known action, and pages are pushed ahead of it.
    Generate,
}

/// Pages to push to one token: positions `from .. through` of an action's pages.
/// [`Predictor::pages`] gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushOrder {
    /// The action; 0 for predictors without actions.
    pub action: ActionId,
    /// The action's revision that the positions speak of: a bundle of another revision has other
    /// pages there.
    pub revision: u32,
    /// First position to push. Within one sequence it is where the last order ended, in paper mode
    /// behind the page that was asked for just now.
    pub from: u32,
    /// Position after the last one that may be pushed now.
    pub through: u32,
    /// This order begins a sequence: whatever was being pushed to the token is over. Otherwise it
    /// extends the current one. A new sequence may name pages that were pushed before: the caller
    /// skips what it sent.
    pub begins: bool,
    /// The client keeps these pages out of the page cache and reports every touch, so that the run
    /// is seen exactly.
    pub audit: bool,
}

/// The answer to a touch. `cancel` comes before `push`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What the token is doing now.
    pub phase: Phase,
    /// Pages to push.
    pub push: Option<PushOrder>,
    /// Stop the token's current push: queued pages are no longer wanted.
    pub cancel: bool,
    /// Push nothing of the current sequence from this position on, for now: an order may go on
    /// there.
    pub hold: Option<u32>,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The token.
    pub token: Token,
    /// The action that its run was merged into, made, or had followed.
    pub action: Option<ActionId>,
    /// The set's actions changed: save it, and remake this action's bundle. Use counts alone do not
    /// set this.
    pub changed: bool,
}

/// Whose run it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// As whom it teaches.
    pub teacher: Teacher,
    /// Whether anything is learned of it.
    pub teaches: bool,
}

impl Default for Reader {
    /// Nobody in particular, who teaches.
    fn default() -> Reader {
        Reader { teacher: Teacher::ANYBODY, teaches: true }
    }
}

/// A predictor: touches in, push orders out. Deterministic; every table bounded.
pub trait Predictor {
    /// `token` touched `page`. Only visible touches come here: a page already in the page cache
    /// makes none.
    fn touch(&mut self, token: Token, page: PageId, now: Moment) -> Verdict;

    /// `token` ended: its program exited, or its connection did. Unknown tokens are fine.
    fn end(&mut self, token: Token, now: Moment) -> Ended;

    /// Ends the runs of tokens that have been idle too long. To be called about once a second.
    fn expire(&mut self, now: Moment) -> Vec<Ended>;

    /// The pages of an order that the last [`Predictor::touch`] of `token` gave; empty for an order
    /// that is no longer current.
    fn pages(&self, token: Token, order: &PushOrder) -> &[PageId];
}
