//! The configuration of this device, `/etc/runnel/config.toml`. Options of a command win over it.
//!
//! ```toml
//! [cache]
//! folder = "/var/cache/runnel"   # or "none"
//! size = "64M"
//! key = "/etc/runnel/cache.key"            # or "credential:NAME"
//!
//! [servers."fleet.example.com"]            # or "host:port"
//! trust = "/etc/runnel/root.json"          # its names must be signed
//!
//! [trust]
//! state = "/var/lib/runnel/trust"          # what was seen of signed names
//!
//! [mount]
//! fs_verity = "require"                    # image files that the kernel mounts
//! ```

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde::Deserialize;
use toml::Spanned;

use crate::command::caching::is_key_place;
use crate::command::mount::FsVerity;
use crate::command::volume::size;
use crate::failure;

/// Where it lies.
const FILE: &str = "/etc/runnel/config.toml";

/// Longest configuration.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What the administrator of this device decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// The folder of the device cache, or `none`.
    pub cache_folder: Option<PathBuf>,
    /// Its limit, in bytes.
    pub cache_bytes: Option<u64>,
    /// Where the key of what is kept lies.
    pub cache_key: Option<PathBuf>,
    /// Servers whose names must be signed, and the root file of each.
    pub trusted: Vec<(String, PathBuf)>,
    /// The folder for what was seen of signed names.
    pub trust_state: Option<PathBuf>,
    /// Whether image files that the kernel mounts are sealed.
    pub fs_verity: Option<FsVerity>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    cache: RawCache,
    #[serde(default)]
    servers: BTreeMap<String, RawServer>,
    #[serde(default)]
    trust: RawTrust,
    #[serde(default)]
    mount: RawMount,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    trust: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTrust {
    state: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMount {
    fs_verity: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCache {
    folder: Option<Spanned<PathBuf>>,
    size: Option<Spanned<String>>,
    key: Option<Spanned<PathBuf>>,
}

impl DeviceConfig {
    /// Reads the file; without one nothing is decided.
    ///
    /// # Errors
    /// It cannot be read, or is wrong: that is told with its line.
    pub fn load() -> anyhow::Result<DeviceConfig> {
        DeviceConfig::load_from(Path::new(FILE))
    }

    fn load_from(file: &Path) -> anyhow::Result<DeviceConfig> {
        let named = || file.display().to_string();
        let opened = match host::file::open(file) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(DeviceConfig::default());
            }
            opened => opened.with_context(named)?,
        };
        let mut bytes = Vec::new();
        opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(named)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(fault(file, 1, &format!("longer than {} KiB", FILE_BYTES_MAX >> 10)));
        }
        match std::str::from_utf8(&bytes) {
            Ok(text) => DeviceConfig::parse(file, text),
            Err(error) => Err(fault(file, line_of(&bytes, error.valid_up_to()), "this is not UTF-8 text")),
        }
    }

    /// Checks the text of a configuration; `file` is only named in errors.
    fn parse(file: &Path, text: &str) -> anyhow::Result<DeviceConfig> {
        let line = |at| line_of(text.as_bytes(), at);
        let raw: RawFile = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            fault(file, line(at), error.message())
        })?;
        let RawCache { folder, size: bytes, key } = raw.cache;
        if let Some(folder) = &folder
            && !folder.as_ref().is_absolute()
            && folder.as_ref() != Path::new("none")
        {
            let problem = format!("cache.folder is {:?}, neither an absolute path nor \"none\"", folder.as_ref());
            return Err(fault(file, line(folder.span().start), &problem));
        }
        if let Some(place) = key.as_ref().filter(|place| !is_key_place(place.as_ref())) {
            let problem = format!(
                "cache.key is {:?}, neither an absolute path nor \"credential:NAME\" nor \"none\"",
                place.as_ref()
            );
            return Err(fault(file, line(place.span().start), &problem));
        }
        let cache_bytes = bytes.map(|text| {
            let at = text.span().start;
            size(text.as_ref()).map_err(|problem| fault(file, line(at), &format!("cache.size: {problem}")))
        });
        let absolute = |what: &str, path: Spanned<PathBuf>| {
            let at = path.span().start;
            let path = path.into_inner();
            let problem = || fault(file, line(at), &format!("{what} is {path:?}, which is no absolute path"));
            if path.is_absolute() { Ok(path) } else { Err(problem()) }
        };
        let mut trusted = Vec::new();
        for (server, raw) in raw.servers {
            if let Some(path) = raw.trust {
                trusted.push((server, absolute("trust", path)?));
            }
        }
        let fs_verity = raw.mount.fs_verity.map(|text| {
            let problem = format!("mount.fs_verity is {:?}, not \"auto\", \"require\" or \"off\"", text.as_ref());
            FsVerity::from_str(text.as_ref(), false).map_err(|_| fault(file, line(text.span().start), &problem))
        });
        Ok(DeviceConfig {
            fs_verity: fs_verity.transpose()?,
            cache_folder: folder.map(Spanned::into_inner),
            cache_bytes: cache_bytes.transpose()?,
            cache_key: key.map(Spanned::into_inner),
            trusted,
            trust_state: raw.trust.state.map(|path| absolute("trust.state", path)).transpose()?,
        })
    }
}

fn fault(file: &Path, line: usize, problem: &str) -> anyhow::Error {
    failure::usage(format!("{}:{line}: {problem}", file.display()))
}

/// The line, from 1, of a byte of the text.
fn line_of(text: &[u8], at: usize) -> usize {
    text.iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DeviceConfig, String> {
        DeviceConfig::parse(Path::new("c.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_cache_is_set() {
        let config = |folder: Option<&str>, cache_bytes| DeviceConfig {
            cache_folder: folder.map(Into::into),
            cache_bytes,
            ..DeviceConfig::default()
        };
        assert_eq!(parse(""), Ok(DeviceConfig::default()));
        let text = "# here\n[cache]\nfolder = \"/srv/cache\"\nsize = \"64M\"\n";
        assert_eq!(parse(text), Ok(config(Some("/srv/cache"), Some(64 << 20))));
        assert_eq!(parse("[cache]\nfolder = \"none\"\n"), Ok(config(Some("none"), None)));
        for key in ["/etc/key", "credential:cache", "none"] {
            let expected = DeviceConfig { cache_key: Some(key.into()), ..DeviceConfig::default() };
            assert_eq!(parse(&format!("[cache]\nkey = \"{key}\"\n")), Ok(expected));
        }
        assert_eq!(parse("cache.size = \"1g\"\n"), Ok(config(None, Some(1 << 30))));
    }

    #[test]
    fn servers_sign_their_names() {
        let text = "[servers.\"a.example\"]\ntrust = \"/etc/a.json\"\n[servers.b]\n[trust]\nstate = \"/s\"\n";
        let config = parse(text).expect("it is right");
        assert_eq!(config.trusted, [("a.example".to_owned(), PathBuf::from("/etc/a.json"))]);
        assert_eq!(config.trust_state, Some("/s".into()));
    }

    #[test]
    fn image_files_are_sealed() {
        let words = [("auto", FsVerity::Auto), ("require", FsVerity::Require), ("off", FsVerity::Off)];
        for (word, expected) in words {
            let config = parse(&format!("[mount]\nfs_verity = \"{word}\"\n")).expect("it is right");
            assert_eq!(config.fs_verity, Some(expected));
        }
    }

    #[test]
    fn faults_name_file_and_line() {
        let faults = [
            ("[cache]\nfolder = \"cache\"\n", "2", "absolute"),
            ("[cache]\n\nsize = \"much\"\n", "3", "much"),
            ("[cache]\nsize = 5\n", "2", "string"),
            ("[cache]\nkey = \"key\"\n", "2", "credential:NAME"),
            ("[cache]\n\nkey = \"credential:a/b\"\n", "3", "cache.key"),
            ("[cache]\nplace = \"/a\"\n", "2", "unknown field"),
            ("[image]\n", "1", "unknown field"),
            ("[servers.a]\ntrust = \"root.json\"\n", "2", "absolute"),
            ("[trust]\nstate = \"s\"\n", "2", "absolute"),
            ("[servers.a]\ntrusted = \"/r\"\n", "2", "unknown field"),
            ("[mount]\nfs_verity = \"always\"\n", "2", "require"),
            ("[mount]\nfs_verify = \"off\"\n", "2", "unknown field"),
            ("[cache]\nfolder = \"/a\n", "2", ""),
        ];
        for (text, line, part) in faults {
            let said = parse(text).expect_err(text);
            assert!(said.contains(&format!("c.toml:{line}")) && said.contains(part), "{text:?}: {said}");
        }
    }

    #[test]
    fn files_are_read_within_bounds() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("config.toml");
        assert_eq!(DeviceConfig::load_from(&file).expect("none is none"), DeviceConfig::default());
        std::fs::write(&file, b"a\n\xff").expect("write");
        let said = || DeviceConfig::load_from(&file).expect_err("it is wrong").to_string();
        assert!(said().contains("config.toml:2: "), "{}", said());
        std::fs::write(&file, vec![b'#'; FILE_BYTES_MAX as usize + 1]).expect("write");
        assert!(said().contains("config.toml:1: "), "{}", said());
    }

    /// An administrator mistypes: every text has an answer.
    #[test]
    fn fuzz_texts_never_panic() {
        use units::{Rng, SplitMix64};
        let text = "[cache]\nfolder = \"/var/cache/ö\"\nsize = \"64M\"\n";
        let (mut rng, mut good, mut bad) = (SplitMix64(11), 0, 0);
        for _ in 0..2000 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                match rng.below(3) {
                    0 => bytes[at] = rng.next_u64() as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"[]{}=\"\n,#./"[rng.below(11) as usize]),
                }
            }
            match parse(&String::from_utf8_lossy(&bytes)) {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
        }
        assert!(good > 0 && bad > good, "{good} accepted, {bad} refused");
    }
}
