//! Names of the lab as people read them; numbers are written by [`report::text`].

pub use report::text::*;

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
        "squashfs" => "squashfs, NBD",
        "erofs" => "EROFS, NBD",
        "nydus" => "Nydus",
        other => return other.strip_prefix("runnel:").map_or(other, |mode| mode).to_string(),
    };
    label.to_string()
}

/// A link in a word, where its numbers stand beside it.
pub fn link_short(name: &str) -> String {
    let (base, loss) = name.split_once('+').map_or((name, None), |(base, loss)| (base, Some(loss)));
    let base = match base {
        "lan" => "1 Gbit/s",
        "wifi" => "WiFi",
        "wan" => "WAN",
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
        "thin" => "128 kbit/s (40 ms)",
        "-" => "no network",
        other => other,
    };
    loss.map_or(base.to_string(), |loss| format!("{base}, {loss} loss"))
}
