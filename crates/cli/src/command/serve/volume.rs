//! The value of `--volume`.

use std::path::PathBuf;
use std::str::FromStr;

use server::VolumeConfig;

/// A volume as it is written: `NAME=DIR[:ro|rw][,block=BYTES][,journal=DIR][,quota=SIZE]`.
#[derive(Clone, Debug)]
pub struct VolumeArg(pub VolumeConfig);

impl FromStr for VolumeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<VolumeArg, String> {
        let (name, rest) = text.split_once('=').ok_or("NAME=DIR is missing")?;
        if name.is_empty() {
            return Err("the name is missing".to_owned());
        }
        let mut volume = VolumeConfig::new(name, "".as_ref());
        let mut rest = rest;
        // From the end, so that a folder may have commas in its name.
        while let Some((before, option)) = rest.rsplit_once(',') {
            match option.split_once('=') {
                Some(("block", bytes)) => {
                    volume.block_bytes =
                        size(bytes)?.try_into().map_err(|_| format!("a block of {bytes} is too large"))?;
                }
                Some(("journal", folder)) if !folder.is_empty() => volume.journal = Some(PathBuf::from(folder)),
                Some(("quota", bytes)) => volume.quota_bytes = Some(size(bytes)?),
                Some((key, _)) if key.bytes().all(|byte| byte.is_ascii_lowercase()) => {
                    return Err(format!("{key:?} is no option of a volume: block, journal and quota are"));
                }
                _ => break,
            }
            rest = before;
        }
        let (folder, mode) = match rest.rsplit_once(':') {
            Some((folder, mode @ ("ro" | "rw"))) => (folder, mode),
            _ => (rest, "ro"),
        };
        if folder.is_empty() {
            return Err("the folder is missing".to_owned());
        }
        if folder.contains("://") {
            return Err(format!("volumes need a folder of this machine yet, and {folder} is a URL"));
        }
        volume.folder = PathBuf::from(folder);
        volume.writable = mode == "rw";
        Ok(VolumeArg(volume))
    }
}

/// A number of bytes, with K, M, G or T behind it for powers of 1024.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: a number of bytes, or one with K, M, G or T");
    let (digits, shift) = match text.chars().last() {
        Some('K' | 'k') => (&text[..text.len() - 1], 10),
        Some('M' | 'm') => (&text[..text.len() - 1], 20),
        Some('G' | 'g') => (&text[..text.len() - 1], 30),
        Some('T' | 't') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> VolumeConfig {
        text.parse::<VolumeArg>().unwrap().0
    }

    #[test]
    fn volumes_are_read_and_mistakes_are_named() {
        assert_eq!(parsed("data=/srv/data"), VolumeConfig::new("data", "/srv/data".as_ref()));
        let all = parsed("d=/a,b:c:rw,block=16K,journal=/j,quota=2G");
        let expected = VolumeConfig {
            writable: true,
            block_bytes: 16384,
            journal: Some("/j".into()),
            quota_bytes: Some(2 << 30),
            ..VolumeConfig::new("d", "/a,b:c".as_ref())
        };
        assert_eq!(all, expected);
        assert_eq!(parsed("d=/a:ro,block=512").block_bytes, 512);
        for bad in [
            "",
            "d",
            "d=",
            "d=:rw",
            "d=/a,speed=9",
            "d=/a,block=x",
            "d=/a,quota=99999999999G",
            "d=/a,block=9G",
            "d=s3://a",
        ] {
            assert!(bad.parse::<VolumeArg>().is_err(), "{bad}");
        }
    }
}
