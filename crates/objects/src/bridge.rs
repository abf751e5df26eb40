//! From calls that block to requests that do not.

use std::future::Future;
use std::io;
use std::sync::mpsc::sync_channel;

use tokio::runtime::{Builder, Handle, Runtime};

/// Threads of the requests: they only move bytes and encrypt them.
const THREADS: usize = 2;

/// Threads that requests run on. It ends them when it is dropped, without waiting.
pub(crate) struct Bridge {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Bridge {
    pub fn start() -> io::Result<Bridge> {
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).thread_name("store").enable_all().build()?;
        Ok(Bridge { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits for a future that runs on our threads, so the caller may be any thread.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> io::Result<T> {
        let (sender, receiver) = sync_channel(1);
        self.handle.spawn(async move {
            // Who waits is there until it got something.
            let _ = sender.send(future.await);
        });
        receiver.recv().map_err(|_| io::Error::other("a request to the store was dropped"))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
