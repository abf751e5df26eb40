//! The number that a file has on the present connection.

use serde::{Deserialize, Serialize};
use units::{InodeId, Token};
use wire::volume::Share;

/// The number of a file on the present connection, and with what it is opened there.
///
/// Invariant: without a connection there is no number, and it is not being opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Numbering {
    #[serde(skip)]
    number: Option<InodeId>,
    /// It is being opened on the present connection.
    #[serde(skip)]
    opening: bool,
    token: Token,
    share: Option<Share>,
}

impl Numbering {
    pub fn new(token: Token) -> Numbering {
        Numbering { number: None, opening: false, token, share: None }
    }

    pub fn number(&self) -> Option<InodeId> {
        self.number
    }

    /// It has this number: the one that it had.
    pub fn replace(&mut self, number: InodeId) -> Option<InodeId> {
        self.number.replace(number)
    }

    /// It has no number any more: the one that it had.
    pub fn take(&mut self) -> Option<InodeId> {
        self.number.take()
    }

    pub fn is_opening(&self) -> bool {
        self.opening
    }

    pub fn set_opening(&mut self, opening: bool) {
        self.opening = opening;
    }

    /// The action that opened it last.
    pub fn token(&self) -> Token {
        self.token
    }

    pub fn set_token(&mut self, token: Token) {
        self.token = token;
    }

    /// Its share of the link.
    pub fn share(&self) -> Option<Share> {
        self.share
    }

    pub fn set_share(&mut self, share: Share) {
        self.share = Some(share);
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        (self.number, self.opening) = (None, false);
    }
}
