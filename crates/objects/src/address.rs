//! URLs of stores, and what a process needs to reach one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ObjectStore, RetryConfig};

use crate::failure::summary;

/// Time from the first try of a request after which it is not tried again: devices wait for it.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// Tries after the first one.
const RETRIES_MAX: usize = 4;

/// Longest pause between two tries; pauses are random up to it.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Why a URL does not name a store.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Another kind of URL.
    #[error("{scheme}:// is no store: a folder, file://, s3://, gs:// and az:// are")]
    Scheme {
        /// Its scheme.
        scheme: String,
    },
    /// It lacks the bucket.
    #[error("the URL of the store has no bucket: write {scheme}://BUCKET/PREFIX")]
    Bucket {
        /// Its scheme.
        scheme: &'static str,
    },
    /// It has a part that it must not have. The part is not repeated: it may be a secret.
    #[error(
        "the URL of the store may have a bucket and a prefix of letters, digits and ._-+=@,:~ alone; credentials and options \
         come from the environment"
    )]
    Parts,
    /// A path on another machine, or none.
    #[error("file:// takes an absolute path: file:///srv/runnel")]
    File,
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In a folder of this machine.
    Folder(PathBuf),
    /// In object storage.
    Remote(Place),
}

impl Address {
    /// Reads a URL or a path.
    ///
    /// # Errors
    /// [`AddressError`]: it is a URL that names no store.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let Some((scheme, rest)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
            return Ok(Address::Folder(PathBuf::from(text)));
        };
        if scheme == "file" {
            return if rest.starts_with('/') { Ok(Address::Folder(rest.into())) } else { Err(AddressError::File) };
        }
        let Some(kind) = [Kind::S3, Kind::Gs, Kind::Az].into_iter().find(|kind| kind.scheme() == scheme) else {
            return Err(AddressError::Scheme { scheme: scheme.to_owned() });
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(AddressError::Bucket { scheme: kind.scheme() });
        }
        let prefix = prefix.trim_end_matches('/');
        let is_name = bucket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_name || (!prefix.is_empty() && store::check_key(prefix).is_err()) {
            return Err(AddressError::Parts);
        }
        Ok(Address::Remote(Place { kind, bucket: bucket.to_owned(), prefix: prefix.to_owned() }))
    }
}

fn is_scheme(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// A service of object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    S3,
    Gs,
    Az,
}

impl Kind {
    fn scheme(self) -> &'static str {
        match self {
            Kind::S3 => "s3",
            Kind::Gs => "gs",
            Kind::Az => "az",
        }
    }

    /// Variables of the environment that name another endpoint.
    fn endpoints(self) -> &'static [&'static str] {
        match self {
            Kind::S3 => {
                &["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"]
            }
            Kind::Gs => &["GOOGLE_BASE_URL"],
            Kind::Az => &["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"],
        }
    }

    /// Variables of the environment that name files with credentials.
    fn files(self) -> &'static [&'static str] {
        match self {
            Kind::S3 => &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
            Kind::Gs => &[
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "SERVICE_ACCOUNT",
            ],
            Kind::Az => &["AZURE_FEDERATED_TOKEN_FILE"],
        }
    }
}

/// A bucket, and the prefix of all keys of a store in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    kind: Kind,
    bucket: String,
    prefix: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", self.kind.scheme(), self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl Place {
    /// The key of an object in the bucket.
    pub(crate) fn key_in_bucket(&self, key: &str) -> String {
        match (self.prefix.as_str(), key) {
            ("", key) => key.to_owned(),
            (prefix, "") => prefix.to_owned(),
            (prefix, key) => format!("{prefix}/{key}"),
        }
    }

    /// The key of an object by its key in the bucket.
    pub(crate) fn key_of<'a>(&self, in_bucket: &'a str) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(in_bucket),
            prefix => in_bucket.strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// Ports that are connected to: of the service, of what gives credentials, of a proxy.
    pub fn ports(&self) -> Vec<u16> {
        let proxies = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
        let variables = self.kind.endpoints().iter().chain(&proxies);
        let named = variables.filter_map(|name| std::env::var(name).ok()).filter_map(|url| port(&url));
        // The service, and the one in the network of a machine that knows its role.
        let mut ports: Vec<u16> = [443, 80].into_iter().chain(named).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Files that are read: credentials, and the certificates of authorities.
    pub fn files(&self) -> Vec<PathBuf> {
        let variables = self.kind.files().iter().chain(&["SSL_CERT_FILE", "SSL_CERT_DIR"]);
        let named = variables.filter_map(std::env::var_os).map(PathBuf::from);
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let of_google = home.filter(|_| self.kind == Kind::Gs);
        let of_google = of_google.map(|home| home.join(".config/gcloud/application_default_credentials.json"));
        let authorities = ["/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"];
        named.chain(of_google).chain(authorities.map(PathBuf::from)).collect()
    }

    /// The service with the credentials of the environment. Nothing is sent yet.
    pub(crate) fn connect(&self) -> Result<Arc<dyn ObjectStore>, String> {
        choose_cryptography();
        let built: object_store::Result<Arc<dyn ObjectStore>> = match self.kind {
            Kind::S3 => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(&self.bucket).with_retry(retry());
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            Kind::Gs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&self.bucket).with_retry(retry());
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
            Kind::Az => {
                let builder = MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket).with_retry(retry());
                builder.build().map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
            }
        };
        built.map_err(|error| summary(&error))
    }
}

/// What connections are encrypted with.
pub(crate) fn choose_cryptography() {
    // Another part of the process may have chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// How requests are tried again.
pub(crate) fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() },
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_FOR,
    }
}

/// The port of a URL.
fn port(url: &str) -> Option<u16> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let host = rest.split(['/', '?']).next()?.rsplit('@').next()?;
    let written = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    written.or(match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Place {
        match Address::parse(url) {
            Ok(Address::Remote(place)) => place,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn urls_name_stores_and_paths_stay_paths() {
        for folder in ["store", "/srv/runnel", "./s3:/x", "a://b/../c".trim_start_matches("a://b/../")] {
            assert_eq!(Address::parse(folder).unwrap(), Address::Folder(folder.into()));
        }
        assert_eq!(Address::parse("file:///srv/a b").unwrap(), Address::Folder("/srv/a b".into()));
        assert_eq!(place("s3://bucket").to_string(), "s3://bucket");
        assert_eq!(place("gs://bucket/a/b/").to_string(), "gs://bucket/a/b");
        assert_eq!(place("az://box/a").key_in_bucket("tags/x"), "a/tags/x");
        assert_eq!(place("az://box/a").key_of("a/tags/x"), Some("tags/x"));
        assert_eq!(place("az://box/a").key_of("ab/tags/x"), None);
        assert_eq!(place("s3://box").key_of("tags/x"), Some("tags/x"));
    }

    #[test]
    fn what_names_no_store_is_refused_and_no_secret_is_repeated() {
        assert!(matches!(Address::parse("ftp://x/y"), Err(AddressError::Scheme { scheme }) if scheme == "ftp"));
        assert!(matches!(Address::parse("s3:///x"), Err(AddressError::Bucket { scheme: "s3" })));
        assert!(matches!(Address::parse("file://host/x"), Err(AddressError::File)));
        for bad in ["s3://key:hunter2@bucket/x", "az://box/a?sig=hunter2", "s3://b/../c", "s3://b/a//c", "s3://b/.x"] {
            let error = Address::parse(bad).unwrap_err();
            assert!(matches!(error, AddressError::Parts), "{bad}: {error}");
            assert!(!error.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn ports_are_those_of_urls() {
        for (url, expected) in [
            ("http://127.0.0.1:7070", Some(7070)),
            ("https://s3.example.org/x", Some(443)),
            ("http://user:pass@proxy:3128/", Some(3128)),
            ("proxy.example.org:8080", Some(8080)),
            ("http://[::1]", Some(80)),
        ] {
            assert_eq!(port(url), expected, "{url}");
        }
    }
}
