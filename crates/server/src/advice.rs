//! What the predictor of an image asks a connection to push.

use units::{ActionId, ImageId, PageId, Token};

/// What the Predictor says of one token, on its way to the connection that pushes to it.
#[derive(Debug)]
pub(crate) struct Advice {
    pub image: ImageId,
    pub token: Token,
    /// Stop what is being pushed.
    pub cancel: bool,
    /// Push nothing from this position of the action on, for now.
    pub hold: Option<u32>,
    /// The program ended.
    pub ended: bool,
    /// The touch showed that the device lost what it had been sent.
    pub cold: bool,
    pub order: Option<Ordered>,
}

impl Advice {
    /// The program ended.
    pub fn ended(image: ImageId, token: Token) -> Advice {
        Advice { image, token, cancel: false, hold: None, ended: true, cold: false, order: None }
    }
}

/// A push order with its pages.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub action: ActionId,
    pub revision: u32,
    /// A sequence begins here, whatever was pushed before; otherwise the order extends the current
    /// one.
    pub begins: bool,
    /// Position of the first of `pages` in the action.
    pub from: u32,
    pub pages: Vec<PageId>,
    /// The pages after `pages`, as many as the Provider reads ahead. Nobody ordered them yet.
    pub coming: Vec<PageId>,
    /// The page before `pages`, for an order that extends.
    pub before: Option<PageId>,
    /// Pages of the whole action.
    pub total: u32,
    pub segment_pages: u32,
    pub audit: bool,
}

impl Ordered {
    /// Position behind the last page; `None` if there are no such positions.
    pub fn through(&self) -> Option<u32> {
        self.from.checked_add(u32::try_from(self.pages.len()).ok()?)
    }
}
