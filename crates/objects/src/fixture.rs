//! A real S3 service for tests: versitygw, which `cargo xtask s3` builds.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3Builder;
use store::StoreError;

use crate::{Address, CacheOptions, Remote};

/// Time that the service has to start.
const START_TIME: Duration = Duration::from_secs(60);

/// Pause between two looks whether it listens.
const PAUSE: Duration = Duration::from_millis(10);

const KEY: &str = "test-key";
const SECRET: &str = "test-secret";

/// A running service with one bucket, `box`, in a folder of its own.
pub struct Gateway {
    folder: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
}

impl Gateway {
    /// Starts one.
    pub fn start() -> Gateway {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("buckets/box")).expect("a bucket");
        std::fs::create_dir_all(folder.path().join("attributes")).expect("a folder");
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let mut gateway = Gateway { folder, port: free.expect("a port").port(), process: None };
        gateway.restart();
        gateway
    }

    fn binary() -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        let binary = root.join("target/tools/versitygw-v1.8.0/versitygw");
        assert!(binary.exists(), "the S3 service of the tests is not there; `cargo xtask s3` builds it");
        binary
    }

    /// Starts it again, with the same contents at the same address.
    pub fn restart(&mut self) {
        self.kill();
        let mut command = Command::new(Self::binary());
        command.args(["--access", KEY, "--secret", SECRET, "--port", &format!("127.0.0.1:{}", self.port), "--quiet"]);
        command.arg("--access-log").arg(self.log());
        command.args(["posix", "--sidecar"]).arg(self.folder.path().join("attributes"));
        command.arg(self.folder.path().join("buckets"));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(process.expect("it starts"));
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < START_TIME, "the S3 service does not listen");
            std::thread::park_timeout(PAUSE);
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("requests")
    }

    /// Requests so far for what objects of this name hold.
    pub fn gets(&self, name: &str) -> usize {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(" s3_GetObject ") && line.contains(name)).count()
    }

    /// The environment of a server that uses it.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", self.port)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// A store below this prefix, with its cache in `folder`.
    ///
    /// # Errors
    /// As [`Remote::open`].
    pub fn store(&self, prefix: &str, folder: &Path) -> Result<Remote, StoreError> {
        crate::address::choose_cryptography();
        let builder = AmazonS3Builder::new().with_bucket_name("box").with_region("us-east-1").with_allow_http(true);
        let builder = builder.with_access_key_id(KEY).with_secret_access_key(SECRET);
        let builder = builder.with_endpoint(format!("http://127.0.0.1:{}", self.port));
        let service = builder.with_retry(crate::address::retry()).build().expect("a complete configuration");
        let Ok(Address::Remote(place)) = Address::parse(&format!("s3://box/{prefix}")) else {
            panic!("{prefix} is no prefix")
        };
        let options = CacheOptions { folder: folder.to_owned(), disk_bytes: 0, memory_bytes: 64 << 20 };
        Remote::on(Arc::new(service), &place, &options)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}
