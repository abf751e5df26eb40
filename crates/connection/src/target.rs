//! Targets: an image or a volume on a server, an image file on a web server, or an image file here.
//!
//! `runnel://host[:port]/name[:tag]` names an image by its tag (default `latest`),
//! `runnel://host[:port]/@<64 hex digits>` by its id, which no later push can change.
//! `runnel://host[:port]/volume/name` is a volume. `runnels://` is the same over TLS.
//! `http://host[:port]/path` and `https://` are an image file that any web server offers. An
//! address in brackets is IPv6. Anything without a scheme is the path of a local `.rnl` file. The
//! command line parses every target before it does anything else, so the errors here are what a
//! user sees first.

use std::fmt;
use std::path::PathBuf;

use units::ImageId;

/// Port of `runnel serve` when none is given.
pub const PORT_DEFAULT: u16 = 7327;

/// Longest name and longest tag, in bytes; the server accepts no longer ones.
pub const NAME_BYTES_MAX: usize = 128;

/// What stands before the name of a volume. Names of images on a server hold no `/`.
const VOLUME_PREFIX: &str = "volume/";

/// Longest host name, in bytes (RFC 1035 allows 253).
const HOST_BYTES_MAX: usize = 253;

/// Longest path of an image on a web server, in bytes; a request must stay small.
const PATH_BYTES_MAX: usize = 2048;

/// A parsed target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An image on a server.
    Remote(Remote),
    /// A volume on a server.
    Volume(VolumeAt),
    /// An image file on a web server.
    Http(HttpFile),
    /// An image file on this machine.
    File(PathBuf),
}

/// An image on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The server.
    pub server: Server,
    /// Which of its images.
    pub image: ImageName,
}

/// A volume on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeAt {
    /// The server.
    pub server: Server,
    /// Name of the volume.
    pub name: String,
}

/// An image file on a web server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpFile {
    /// The web server.
    pub server: Server,
    /// What follows the host, from the first `/` on, as it is sent.
    pub path: String,
}

/// How a server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Our protocol over TCP.
    Runnel,
    /// Our protocol over TLS.
    Runnels,
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Host name or address; an IPv6 address stands here without its brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// How an image is named on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageName {
    /// A name and a tag; pushes may move the tag to another image.
    Tagged {
        /// Name, possibly with `/` inside.
        name: String,
        /// Tag, `latest` when none was given.
        tag: String,
    },
    /// One image for ever.
    Id(ImageId),
}

/// Why a target cannot be parsed. Every message carries the text it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Nothing was given.
    #[error("the target is empty; give runnel://host/name[:tag] or the path of a .rnl file")]
    Empty,
    /// A URL of another scheme.
    #[error("`{0}` has an unknown scheme; runnel://, runnels://, http:// and https:// are understood")]
    Scheme(String),
    /// `runnel://` without a host.
    #[error("`{0}` names no host; write runnel://host/name[:tag]")]
    NoHost(String),
    /// The host holds a character no host name or address has, or is too long.
    #[error("`{0}` is not a host name or address; an IPv6 address needs brackets: runnel://[::1]/name")]
    BadHost(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is not a port; ports are numbers from 1 to 65535")]
    BadPort(String),
    /// A host but no image.
    #[error("`{0}` names no image; write runnel://host/name[:tag] or runnel://host/@id")]
    NoImage(String),
    /// The name or the tag holds something a name may not hold.
    #[error(
        "`{0}` is not an image name: letters, digits, `.`, `_` and `-`, the first a letter or digit, then an optional `:tag` of the same, 128 bytes at most each"
    )]
    BadName(String),
    /// What follows `volume/` is no name.
    #[error(
        "`{0}` is not the name of a volume: letters, digits, `.`, `_` and `-`, the first a letter or digit, 128 bytes at most"
    )]
    BadVolume(String),
    /// `@` followed by something else than 64 hexadecimal digits.
    #[error("`{0}` is not an image id; an id is `@` and 64 hexadecimal digits")]
    BadId(String),
    /// What follows the host is no path of a file.
    #[error(
        "`{0}` is not the address of a file: visible ASCII only, other characters as %XX, no `#`, 2048 bytes at most"
    )]
    BadPath(String),
    /// A path where only a server makes sense, or a server with more than a server needs.
    #[error("`{0}` is not a server; write runnel://host[:port]")]
    NotAServer(String),
}

impl Target {
    /// Parses what the user typed.
    ///
    /// # Errors
    /// [`TargetError`], naming the part that is wrong.
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        let Some((scheme, rest)) = Scheme::of(text) else {
            return match text.split_once("://") {
                Some((scheme, _)) if is_scheme(scheme) => Err(TargetError::Scheme(text.into())),
                _ => Ok(Target::File(PathBuf::from(text))),
            };
        };
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let server = Server::parse_authority(scheme, authority, text)?;
        if name.is_empty() {
            return Err(TargetError::NoImage(text.into()));
        }
        if scheme.is_http() {
            if name.len() >= PATH_BYTES_MAX || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
                return Err(TargetError::BadPath(text.into()));
            }
            return Ok(Target::Http(HttpFile { server, path: format!("/{name}") }));
        }
        if let Some(name) = name.strip_prefix(VOLUME_PREFIX) {
            if !is_name_part(name) {
                return Err(TargetError::BadVolume(name.into()));
            }
            return Ok(Target::Volume(VolumeAt { server, name: name.into() }));
        }
        Ok(Target::Remote(Remote { server, image: ImageName::parse(name)? }))
    }
}

impl Scheme {
    const ALL: [Scheme; 4] = [Scheme::Runnel, Scheme::Runnels, Scheme::Http, Scheme::Https];

    /// The scheme of a text, and what follows it.
    fn of(text: &str) -> Option<(Scheme, &str)> {
        Scheme::ALL.into_iter().find_map(|scheme| text.strip_prefix(scheme.prefix()).map(|rest| (scheme, rest)))
    }

    fn prefix(self) -> &'static str {
        match self {
            Scheme::Runnel => "runnel://",
            Scheme::Runnels => "runnels://",
            Scheme::Http => "http://",
            Scheme::Https => "https://",
        }
    }

    /// The port when none is given.
    pub fn port(self) -> u16 {
        match self {
            Scheme::Runnel | Scheme::Runnels => PORT_DEFAULT,
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }

    /// Whether connections are encrypted.
    pub fn is_secure(self) -> bool {
        matches!(self, Scheme::Runnels | Scheme::Https)
    }

    /// Whether this is a web server, which serves files and knows nothing of images.
    pub fn is_http(self) -> bool {
        matches!(self, Scheme::Http | Scheme::Https)
    }
}

impl Server {
    /// Parses `runnel://host[:port]` or `runnels://host[:port]`, with or without a `/` at the end:
    /// what `runnel images` and `runnel status` take.
    ///
    /// # Errors
    /// [`TargetError`], also when an image name follows.
    pub fn parse(text: &str) -> Result<Server, TargetError> {
        if text.is_empty() {
            return Err(TargetError::Empty);
        }
        let ours = Scheme::of(text).filter(|(scheme, _)| !scheme.is_http());
        let (scheme, rest) = ours.ok_or_else(|| TargetError::NotAServer(text.into()))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('/') {
            return Err(TargetError::NotAServer(text.into()));
        }
        Server::parse_authority(scheme, authority, text)
    }

    fn parse_authority(scheme: Scheme, authority: &str, whole: &str) -> Result<Server, TargetError> {
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or_else(|| TargetError::BadHost(authority.into()))?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(TargetError::BadHost(host.into()));
                }
                match after.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if after.is_empty() => (host, None),
                    None => return Err(TargetError::BadHost(authority.into())),
                }
            }
            None => {
                let (host, port) = match authority.split_once(':') {
                    Some((host, port)) => (host, Some(port)),
                    None => (authority, None),
                };
                let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                if port.is_some_and(|port| port.contains(':')) || !host.chars().all(allowed) {
                    return Err(TargetError::BadHost(authority.into()));
                }
                if host.is_empty() {
                    return Err(TargetError::NoHost(whole.into()));
                }
                (host, port)
            }
        };
        if host.len() > HOST_BYTES_MAX {
            return Err(TargetError::BadHost(host.into()));
        }
        let port = match port {
            None => scheme.port(),
            Some(digits) => parse_port(digits).ok_or_else(|| TargetError::BadPort(digits.into()))?,
        };
        Ok(Server { scheme, host: host.into(), port })
    }

    /// Whether it is this machine, as far as the name tells.
    pub fn is_this_machine(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        address.map_or(self.host == "localhost", |address| address.to_canonical().is_loopback())
    }

    /// `host` or `host:port`, with brackets where they are needed.
    pub fn authority(&self) -> String {
        let host = &self.host;
        let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
        if self.port == self.scheme.port() {
            format!("{open}{host}{close}")
        } else {
            format!("{open}{host}{close}:{}", self.port)
        }
    }
}

impl ImageName {
    /// Parses `name`, `name:tag` or `@id`.
    ///
    /// # Errors
    /// [`TargetError::BadName`] or [`TargetError::BadId`].
    pub fn parse(text: &str) -> Result<ImageName, TargetError> {
        if let Some(id) = text.strip_prefix('@') {
            return ImageId::from_hex(id).map(ImageName::Id).ok_or_else(|| TargetError::BadId(text.into()));
        }
        let (name, tag) = text.split_once(':').unwrap_or((text, "latest"));
        let fits = name.len() + 1 + tag.len() <= wire::format::NAME_BYTES_MAX;
        if !fits || !is_name_part(name) || !is_name_part(tag) {
            return Err(TargetError::BadName(text.into()));
        }
        Ok(ImageName::Tagged { name: name.into(), tag: tag.into() })
    }
}

/// A name and a tag are parts of a file name in the server's store: no separators, no hidden files,
/// no `..`.
fn is_name_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    part.len() <= NAME_BYTES_MAX && part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(allowed)
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Only digits: `u16::from_str` alone would also take a sign.
fn parse_port(digits: &str) -> Option<u16> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|port| *port != 0)
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scheme.prefix(), self.authority())
    }
}

impl fmt::Display for HttpFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageName::Tagged { name, tag } => write!(f, "{name}:{tag}"),
            ImageName::Id(id) => write!(f, "@{id}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Remote(remote) => write!(f, "{}/{}", remote.server, remote.image),
            Target::Volume(volume) => write!(f, "{}/{VOLUME_PREFIX}{}", volume.server, volume.name),
            Target::Http(file) => write!(f, "{file}"),
            Target::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn remote(text: &str) -> (String, u16, String) {
        match Target::parse(text).unwrap() {
            Target::Remote(remote) => (remote.server.host, remote.server.port, remote.image.to_string()),
            other => panic!("{other} parsed as something else"),
        }
    }

    #[test]
    fn remote_targets_of_every_form() {
        let id = "ab".repeat(32);
        for (text, host, port, image) in [
            ("runnel://host/app", "host", 7327, "app:latest".to_string()),
            ("runnel://10.0.0.1:80/b-c_1.2:v3", "10.0.0.1", 80, "b-c_1.2:v3".to_string()),
            ("runnel://[::1]/x:y", "::1", 7327, "x:y".to_string()),
            ("runnel://[fe80::2]:9000/x", "fe80::2", 9000, "x:latest".to_string()),
            (&format!("runnel://h/@{id}"), "h", 7327, format!("@{id}")),
        ] {
            assert_eq!(remote(text), (host.to_string(), port, image), "{text}");
        }
    }

    #[test]
    fn files_on_web_servers() {
        for (text, scheme, port, path) in [
            ("http://h/a.rnl", Scheme::Http, 80, "/a.rnl"),
            ("http://h:8080/a/b%20c.rnl?x=1&y=2", Scheme::Http, 8080, "/a/b%20c.rnl?x=1&y=2"),
            ("https://h/a.rnl", Scheme::Https, 443, "/a.rnl"),
        ] {
            let server = Server { scheme, host: "h".into(), port };
            assert_eq!(Target::parse(text), Ok(Target::Http(HttpFile { server, path: path.into() })));
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn volumes_on_servers() {
        let text = "runnel://h/volume/data-1";
        let server = Server { scheme: Scheme::Runnel, host: "h".into(), port: PORT_DEFAULT };
        assert_eq!(Target::parse(text), Ok(Target::Volume(VolumeAt { server, name: "data-1".into() })));
        assert_eq!(Target::parse(text).unwrap().to_string(), text);
        for bad in ["", "..", "a/b", "a:b", "@1"] {
            assert_eq!(Target::parse(&format!("runnel://h/volume/{bad}")), Err(TargetError::BadVolume(bad.into())));
        }
        assert_eq!(remote("runnel://h/volume").2, "volume:latest", "an image of this name");
    }

    #[test]
    fn paths_are_files() {
        for text in ["app.rnl", "/a/b:c.rnl", "./odd name", "a b://c"] {
            assert_eq!(Target::parse(text), Ok(Target::File(PathBuf::from(text))));
        }
    }

    #[test]
    fn mistakes_are_named() {
        use TargetError::*;
        let whole = |text: &str| text.to_string();
        let long = format!("runnel://h/{}", "n".repeat(256));
        for (text, error) in [
            ("", Empty),
            ("ftp://h/x", Scheme(whole("ftp://h/x"))),
            ("http://h", NoImage(whole("http://h"))),
            ("https://h/", NoImage(whole("https://h/"))),
            ("http://user@h/x", BadHost(whole("user@h"))),
            ("http://h/a b", BadPath(whole("http://h/a b"))),
            ("http://h/a#b", BadPath(whole("http://h/a#b"))),
            ("http://h/\r\nX: y", BadPath(whole("http://h/\r\nX: y"))),
            ("runnel://", NoHost(whole("runnel://"))),
            ("runnel:///x", NoHost(whole("runnel:///x"))),
            ("runnel://:80/x", NoHost(whole("runnel://:80/x"))),
            ("runnel://h", NoImage(whole("runnel://h"))),
            ("runnel://h/", NoImage(whole("runnel://h/"))),
            ("runnel://h:0/x", BadPort(whole("0"))),
            ("runnel://h:70000/x", BadPort(whole("70000"))),
            ("runnel://h:+1/x", BadPort(whole("+1"))),
            ("runnel://h:/x", BadPort(whole(""))),
            ("runnel://::1/x", BadHost(whole("::1"))),
            ("runnel://[::1/x", BadHost(whole("[::1"))),
            ("runnel://[nope]/x", BadHost(whole("nope"))),
            ("runnel://[::1]x/x", BadHost(whole("[::1]x"))),
            ("runnel://a b/x", BadHost(whole("a b"))),
            ("runnel://h/../x", BadName(whole("../x"))),
            ("runnel://h/a//b", BadName(whole("a//b"))),
            ("runnel://h/a:", BadName(whole("a:"))),
            ("runnel://h/a:b:c", BadName(whole("a:b:c"))),
            ("runnel://h/a:b/c", BadName(whole("a:b/c"))),
            ("runnel://h/@12", BadId(whole("@12"))),
            (&long, BadName("n".repeat(256))),
        ] {
            assert_eq!(Target::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn servers_alone() {
        let server = |scheme, host: &str, port| Ok(Server { scheme, host: host.into(), port });
        assert_eq!(Server::parse("runnel://h"), server(Scheme::Runnel, "h", PORT_DEFAULT));
        assert_eq!(Server::parse("runnels://h"), server(Scheme::Runnels, "h", PORT_DEFAULT));
        assert_eq!(Server::parse("runnel://[::1]:5/"), server(Scheme::Runnel, "::1", 5));
        assert_eq!(Server::parse("http://h"), Err(TargetError::NotAServer("http://h".into())));
        assert_eq!(Server::parse("runnel://h/x"), Err(TargetError::NotAServer("runnel://h/x".into())));
        assert_eq!(Server::parse("h"), Err(TargetError::NotAServer("h".into())));
    }

    proptest! {
        #[test]
        fn prop_what_is_printed_parses_again(text in "(runnels?|https?)://[a-z0-9.\\[\\]:]{1,12}/[a-zA-Z0-9@:/._-]{1,20}") {
            if let Ok(target) = Target::parse(&text) {
                prop_assert_eq!(Target::parse(&target.to_string()), Ok(target));
            }
        }

        #[test]
        fn prop_no_text_panics(text in ".{0,64}") {
            let _ = Target::parse(&text);
            let _ = Server::parse(&text);
        }
    }
}
