//! Opening an image, wherever it is.

use std::sync::Arc;

use cache::Cache;
use connection::Target;

use crate::config::Config;
use crate::error::ClientError;
use crate::session::Session;
use crate::{http, local, remote};

impl Session {
    /// Opens an image: fetches and checks its metadata, then starts the threads.
    ///
    /// # Errors
    /// [`ClientError`]: no server, no such image, damaged or oversized metadata, no threads.
    pub fn open(target: &Target, config: Config) -> Result<Arc<Session>, ClientError> {
        Session::open_cached(target, config, None)
    }

    /// As [`Session::open`], with a device cache for images that are not local: what is there is
    /// not fetched again, and without a server the image starts that the name stood for last. A
    /// name that is pinned stands for its version there, and no server is asked.
    ///
    /// # Errors
    /// Those of [`Session::open`].
    pub fn open_cached(
        target: &Target,
        config: Config,
        cache: Option<&Arc<Cache>>,
    ) -> Result<Arc<Session>, ClientError> {
        match target {
            Target::File(path) => local::open(path, config),
            Target::Remote(image) => remote::open(image, config, cache),
            Target::Volume(_) => Err(ClientError::NoImage { target: target.to_string() }),
            Target::Http(file) => http::open(file, config, cache),
        }
    }
}
