//! The devices that tests and benches build kernels for.

/// PCI devices of the machine that [`crate::Machine`] is.
pub const DEVICES: &str = include_str!("../devices/qemu-q35.devices");

/// A small web server: one processor, nothing loadable, no mitigations.
pub const TINY_WEB: &str = include_str!("../devices/tiny-web.config");

/// The same programs on a kernel as distributions have them: several processors, mitigations, tracing, BPF, name spaces.
pub const MAINSTREAM: &str = include_str!("../devices/mainstream.config");
