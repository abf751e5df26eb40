//! The devices that tests and benches build kernels for.

/// PCI devices of the machine that [`crate::Machine`] is.
pub const DEVICES: &str = include_str!("../devices/qemu-q35.devices");

/// A small web server: one processor, nothing loadable, no mitigations.
pub const TINY_WEB: &str = include_str!("../devices/tiny-web.config");

/// The same programs on a kernel as distributions have them: several processors, mitigations,
/// tracing, BPF, name spaces.
pub const MAINSTREAM: &str = include_str!("../devices/mainstream.config");

/// What the web server does from its start on, as BusyBox runs it from an initial file system:
/// requests to itself in rounds. Settings (`requests`, `pause` in seconds, `report`) come from the
/// command line.
pub const WEB_SERVICE: &str = include_str!("../devices/web.init");
