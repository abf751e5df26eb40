//! Names of the lab as people read them; numbers are written by [`report::text`].

pub use report::text::*;

use crate::lab::program::LEARNED_FROM;

/// Plain language for a system of the lab.
pub fn system(name: &str) -> String {
    let label = match name {
        "local" => "local disk",
        "sd:a" => "SD card A",
        "sd:b" => "SD card B",
        "nfs" => "NFS 4.2",
        "runnel:none" => "Runnel, no push",
        "runnel:once" => "Runnel, learned once",
        "runnel:learned" => "Runnel, learned",
        "runnel:paper" => "Runnel, paper mode",
        "runnel:updated" => "Runnel, image updated",
        "squashfs" => "squashfs, NBD",
        "erofs" => "EROFS, NBD",
        "nydus" => "Nydus",
        other => return runnel_mode(other),
    };
    label.to_string()
}

fn runnel_mode(name: &str) -> String {
    let Some(mode) = name.strip_prefix("runnel:") else { return name.to_string() };
    mode.strip_prefix(LEARNED_FROM).map_or(mode.to_string(), |taught| format!("Runnel, learned {taught}"))
}

/// A link in a word, where its numbers stand beside it.
pub fn link_short(name: &str) -> String {
    let (base, loss) = name.split_once('+').map_or((name, None), |(base, loss)| (base, Some(loss)));
    let base = match base {
        "lan" => "1 Gbit/s",
        "wifi" => "WiFi",
        "wan" => "WAN",
        "7mbit" => "7 Mbit/s",
        "300kbit" => "300 kbit/s",
        "thin" => "128 kbit/s",
        "-" => "no network",
        other => other,
    };
    loss.map_or(base.to_string(), |loss| format!("{base} with {loss} loss"))
}

/// Plain language for a link of the lab.
pub fn link(name: &str) -> String {
    let (base, loss) = name.split_once('+').map_or((name, None), |(base, loss)| (base, Some(loss)));
    let base = match base {
        "lan" => "1 Gbit/s (0.2 ms)",
        "wifi" => "WiFi (50 Mbit/s, 3 ms)",
        "wan" => "WAN (25 Mbit/s, 20 ms)",
        "7mbit" => "7 Mbit/s (80 ms)",
        "300kbit" => "300 kbit/s (400 ms)",
        "thin" => "128 kbit/s (40 ms)",
        "-" => "no network",
        other => other,
    };
    loss.map_or(base.to_string(), |loss| format!("{base}, {loss} loss"))
}
