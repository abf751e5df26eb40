//! Sandboxes for processes that parse foreign bytes: the server, `pack`, `convert` and the mount
//! daemon.
//!
//! A [`Sandbox`] lists what a process of a [`Role`] needs: paths to read, to write, to execute,
//! ports to connect to. [`Sandbox::enter`] gives up everything else, for good, in four independent
//! layers: no core files and no new privileges; no capabilities but those of the role; Landlock for
//! paths, TCP ports and signals; a seccomp filter for system calls.
//!
//! A kernel or a container may lack Landlock or seccomp. The other layers are applied then, and
//! [`Entered::missing`] tells which are missing. A layer that exists and cannot be applied is an
//! error.
//!
//! Landlock and capabilities are per thread, so a sandbox is entered before the first thread
//! starts.
#![cfg(target_os = "linux")]

mod calls;
mod error;
mod paths;
mod privileges;

use std::path::PathBuf;

pub use error::SandboxError;
pub use privileges::keep_rights_to_mount;

/// The task of a process. It decides which system calls and which of root's capabilities stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves connections of a socket that listens already: no new sockets, no programs.
    Server,
    /// The same with a store that is elsewhere: connections by TCP, and UDP to resolve names.
    RemoteServer,
    /// Packs an archive: no sockets, no programs.
    Archive,
    /// Packs a directory of this machine: as [`Role::Archive`], and root may read attributes that
    /// only root sees.
    Tree,
    /// Runs programs that unpack a file system: no sockets, but processes, and whatever restores
    /// owners, modes and devices.
    Converter,
    /// Serves a mount from this machine: no new sockets, no programs.
    LocalMount,
    /// Serves a mount from a server: connections by TCP, and UDP to resolve names.
    RemoteMount,
}

/// The needs of a process. Everything else is refused.
#[derive(Clone, Debug)]
pub struct Sandbox {
    role: Role,
    readable: Vec<PathBuf>,
    writable: Vec<PathBuf>,
    creatable: Vec<PathBuf>,
    executable: Vec<PathBuf>,
    ports: Vec<u16>,
}

/// The layers that were applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Paths, ports and signals are restricted.
    pub landlock: bool,
    /// System calls are restricted.
    pub seccomp: bool,
}

impl Sandbox {
    /// The sandbox that every process of the role has.
    pub fn new(role: Role) -> Sandbox {
        let (readable, writable) = (Vec::new(), Vec::new());
        Sandbox { role, readable, writable, creatable: Vec::new(), executable: Vec::new(), ports: Vec::new() }
    }

    /// These files, and what lies beneath these folders, may be read. Those that are not there are
    /// left out.
    pub fn read(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Sandbox {
        self.readable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Files beneath these folders may be read, written, made, removed and renamed; they must
    /// be there.
    pub fn write(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Sandbox {
        self.writable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Files may get names beneath these folders, which must be there; what has a name may not be
    /// opened.
    pub fn create(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Sandbox {
        self.creatable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// These programs may be executed, and interpreters of programs are programs.
    pub fn execute(mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) -> Sandbox {
        self.executable.extend(paths.into_iter().map(Into::into));
        self
    }

    /// These TCP ports may be connected to, by a role that has sockets.
    pub fn connect(mut self, ports: impl IntoIterator<Item = u16>) -> Sandbox {
        self.ports.extend(ports);
        self
    }

    /// Gives up everything else, for this process and all that it starts. Cannot be undone.
    ///
    /// # Errors
    /// [`SandboxError`]: the process has threads already, a folder is not there, or the kernel
    /// refuses what it can do. The process may have given up a part then.
    pub fn enter(&self) -> Result<Entered, SandboxError> {
        privileges::expect_one_thread()?;
        privileges::no_core_files()?;
        privileges::keep(self.role.capabilities())?;
        let landlock = paths::restrict(self)?;
        // Last, since the filter refuses what the other layers are made with.
        let seccomp = calls::restrict(self.role)?;
        Ok(Entered { landlock, seccomp })
    }
}

impl Entered {
    /// The layers that this kernel, or the container, does not have.
    pub fn missing(self) -> Option<&'static str> {
        match (self.landlock, self.seccomp) {
            (true, true) => None,
            (false, true) => Some("Landlock"),
            (true, false) => Some("seccomp"),
            (false, false) => Some("Landlock and seccomp"),
        }
    }
}
