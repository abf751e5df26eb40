//! The functions of a session that a mount needs, as a trait, so that tests can mount a source that
//! stalls.

use std::sync::Arc;

use client::{Counters, Done, PageSink, Session};
use image::Metadata;
use units::{InodeId, PageId, Token};

/// See the functions of the same names of [`client::Session`].
pub(crate) trait Source: Send + Sync {
    fn metadata(&self) -> &Arc<Metadata>;
    fn attach(&self, sink: Arc<dyn PageSink>);
    fn read(&self, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool;
    fn is_local(&self) -> bool;
    fn end(&self, token: Token);
    fn hint(&self, pages: &[PageId]) -> usize;
    fn counters(&self) -> Counters;
    fn cache_problem(&self) -> Option<String> {
        None
    }
    fn shutdown(&self);
}

impl Source for Session {
    fn metadata(&self) -> &Arc<Metadata> {
        self.metadata()
    }

    fn attach(&self, sink: Arc<dyn PageSink>) {
        self.attach(sink);
    }

    fn read(&self, token: Token, inode: InodeId, offset: u64, bytes: u32, done: Done) -> bool {
        self.read(token, inode, offset, bytes, done)
    }

    fn is_local(&self) -> bool {
        self.is_local()
    }

    fn end(&self, token: Token) {
        self.end(token);
    }

    fn hint(&self, pages: &[PageId]) -> usize {
        self.hint(pages)
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn cache_problem(&self) -> Option<String> {
        self.cache_problem()
    }

    fn shutdown(&self) {
        self.shutdown();
    }
}
