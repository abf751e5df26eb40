//! Servers and C programs as values that clean up after themselves.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Where a file of this crate lies.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where the libraries lie that were built for this test.
pub fn libraries() -> PathBuf {
    let exe = std::env::current_exe().expect("known");
    exe.parent().expect("a folder").to_path_buf()
}

/// The program: the one beside this test, built if it is not there.
fn runnel() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = libraries().parent().expect("a folder").join("runnel");
        if !program.exists() {
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            let status = Command::new(cargo).args(["build", "--package", "runnel", "--quiet"]).status();
            assert!(status.expect("cargo runs").success() && program.exists(), "{} cannot be built", program.display());
        }
        program
    })
}

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
pub enum Linked {
    Statically,
    Dynamically,
}

/// Compiles a C program of this crate; `None`, and a line that says so, without a compiler.
pub fn compile(source: &str, linked: Linked, folder: &Path) -> Option<PathBuf> {
    let stem = Path::new(source).file_stem().expect("a name").to_string_lossy().into_owned();
    let output = folder.join(format!("{stem}-{linked:?}"));
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here("include"));
    command.arg("-o").arg(&output).arg(here(source));
    match linked {
        Linked::Statically => command.arg(libraries().join("librunnel.a")).args(["-lpthread", "-ldl", "-lm"]),
        Linked::Dynamically => {
            // Under the name that programs will look for.
            let versioned = folder.join("librunnel.so.0");
            std::fs::copy(libraries().join("librunnel.so"), &versioned).expect("copied");
            command.arg(&versioned).arg(format!("-Wl,-rpath,{}", folder.display())).arg("-lpthread")
        }
    };
    let output_of_cc = command.output().inspect_err(|error| println!("skipped: cc: {error}")).ok()?;
    assert!(output_of_cc.status.success(), "{source}: {}", String::from_utf8_lossy(&output_of_cc.stderr));
    Some(output)
}

/// Runs a program with something on its standard input.
pub fn run(program: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("input");
    std::fs::write(&file, input).expect("written");
    let stdin = std::fs::File::open(file).expect("opened");
    Command::new(program).args(arguments).stdin(stdin).output().expect("it starts")
}

/// A server of one volume, `data`.
pub struct Server {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server of a new volume that may be written.
    pub fn start() -> Server {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["store", "data"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        let (child, address) = serve(folder.path(), "127.0.0.1:0");
        Server { child, address, folder }
    }

    /// The folder that is served.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The URL of the volume.
    pub fn url(&self) -> String {
        format!("runnel://{}/volume/data", self.address)
    }

    /// Stops the process, so that nothing is answered, but connections live.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        // Threads that run may answer until each of them has seen the signal.
        waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).expect("stopped");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// Starts it again after [`Server::kill`], at the same address.
    pub fn restart(&mut self) {
        (self.child, self.address) = serve(self.folder.path(), &self.address);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("sent");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed may have left it dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(folder: &Path, listen: &str) -> (Child, String) {
    let ready = folder.join("ready");
    let _ = std::fs::remove_file(&ready);
    let mut child = Command::new(runnel())
        .arg("serve")
        .arg(folder.join("store"))
        .arg("--volume")
        .arg(format!("data={}:rw", folder.join("data").display()))
        .args(["--listen", listen, "--ready-file"])
        .arg(&ready)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the server starts");
    loop {
        match std::fs::read_to_string(&ready) {
            Ok(text) if !text.trim().is_empty() => return (child, text.trim().to_owned()),
            _ => assert!(child.try_wait().expect("a child").is_none(), "the server ended"),
        }
        // Readiness is a file appearing in another process; a short pause keeps the poll from
        // eating the processor.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A C string.
pub fn c(text: &str) -> CString {
    CString::new(text).expect("no zero")
}

/// The error number of this thread.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().expect("a number")
}

/// The message of this thread.
pub fn message() -> String {
    // SAFETY: never NULL, and a string.
    unsafe { CStr::from_ptr(runnel::runnel_errmsg()) }.to_string_lossy().into_owned()
}
