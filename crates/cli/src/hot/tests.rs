//! Files of every kind, good and bad, given to `load`.

use image::fixture::{Fixture, Node};
use profile::MergeConfig;
use trace::{Event, Header, How, Source, Writer};
use units::{Moment, PageId, Token};

use super::*;

struct Folder {
    folder: tempfile::TempDir,
    id: ImageId,
    file: InodeId,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        let bytes = Fixture::default().pack(&[Node::dir(b"a"), Node::file(b"a/b", &[1; 9000])]).unwrap();
        std::fs::write(folder.path().join("app.rnl"), &bytes).unwrap();
        let other = Fixture::default().pack(&[Node::file(b"x", b"y")]).unwrap();
        std::fs::write(folder.path().join("other.rnl"), &other).unwrap();
        let metadata = Metadata::open(&bytes, &Limits::default()).unwrap();
        Folder { folder, id: metadata.id(), file: metadata.resolve(b"/a/b").unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.at(name), bytes).unwrap();
        self.at(name)
    }

    /// A trace that touches `pages` of the file, which it names if `named`.
    fn trace(&self, name: &str, named: bool, pages: &[u32]) -> PathBuf {
        let mut writer = Writer::new(&Header { image: self.id, source: Source::Mount });
        let at = Moment(0);
        writer.push(&Event::Start { token: Token(1), at, name: Vec::new() }).unwrap();
        if named {
            writer.push(&Event::File { inode: self.file, size: 9000, path: b"a/b".to_vec() }).unwrap();
        }
        for index in pages {
            let page = PageId::new(self.file, *index);
            writer.push(&Event::Touch { token: Token(1), at, page, how: How::Demand }).unwrap();
        }
        writer.finish().unwrap();
        self.put(name, &writer.take())
    }

    fn actions(&self, name: &str, pages: &[u32]) -> PathBuf {
        let mut set = ActionSet::new(self.id);
        let run: Vec<PageId> = pages.iter().map(|index| PageId::new(self.file, *index)).collect();
        set.learn(&run, &MergeConfig::default());
        self.put(name, &set.encode())
    }

    fn load(&self, files: &[PathBuf], image: Option<&str>) -> Result<Hot, String> {
        let image = image.map(|name| self.at(name));
        load(files, image.as_deref(), 1).map_err(|error| format!("{error:#}"))
    }
}

fn pages(hot: &Hot) -> Vec<(u32, u32)> {
    hot.order.iter().map(|page| (page.page, page.runs)).collect()
}

#[test]
fn traces_and_actions_are_told_apart_and_merged() {
    let folder = Folder::new();
    let named = folder.trace("named", true, &[2, 0]);
    let bare = folder.trace("bare", false, &[2, 1]);
    let actions = folder.actions("actions", &[2]);
    assert_eq!(pages(&folder.load(std::slice::from_ref(&named), None).unwrap()), [(2, 1), (0, 1)]);
    let hot = folder.load(&[named, bare, actions], Some("app.rnl")).unwrap();
    assert_eq!((pages(&hot), hot.runs), (vec![(2, 3), (0, 1), (1, 1)], 3));
    assert_eq!((hot.files[0].path.as_slice(), hot.files[0].size), (&b"a/b"[..], 9000));
    assert_eq!(folder.load(&[], None), Ok(Hot::default()));
}

#[test]
fn what_is_wrong_and_what_to_do_is_said_with_the_name_of_the_file() {
    let folder = Folder::new();
    let (bare, actions) = (folder.trace("bare", false, &[0]), folder.actions("actions", &[0]));
    let behind = folder.trace("behind", true, &[3]);
    let text = folder.put("text", b"hello, I am a text");
    let mut bytes = std::fs::read(&bare).unwrap();
    let middle = bytes.len() - 20;
    bytes[middle] ^= 1;
    let damaged = folder.put("damaged", &bytes);
    let cases: [(PathBuf, Option<&str>, &str); 8] = [
        (bare.clone(), None, "needs --trace-image"),
        (actions.clone(), None, "needs --trace-image"),
        (bare.clone(), Some("other.rnl"), "was recorded on image"),
        (actions, Some("other.rnl"), "was recorded on image"),
        (behind, None, "page 3 of a/b"),
        (text, None, "neither a trace nor learned actions"),
        (damaged, None, "runnel record"),
        (folder.at("missing"), None, "No such file"),
    ];
    for (path, image, what) in cases {
        let error = folder.load(std::slice::from_ref(&path), image).unwrap_err();
        assert!(error.contains(what) && error.contains(&path.display().to_string()), "{error}");
    }
    let error = folder.load(&[bare], Some("none.rnl")).unwrap_err();
    assert!(error.contains("none.rnl"), "{error}");
}

#[test]
fn options_that_mean_nothing_are_told() {
    assert_eq!(warnings(None, 1, 1), [""; 0]);
    assert_eq!(warnings(None, 3, 3), [""; 0]);
    let told = warnings(Some(Path::new("app.rnl")), 4, 3);
    assert!(told[0].contains("--trace-image app.rnl is not used"), "{told:?}");
    assert!(told[1].contains("--min-runs is 4") && told[1].contains("runs is 3"), "{told:?}");
    // The image is no longer needed for a trace that names its files, so it may be another.
    let folder = Folder::new();
    let named = folder.trace("named", true, &[2, 0]);
    assert_eq!(pages(&folder.load(&[named], Some("other.rnl")).unwrap()), [(2, 1), (0, 1)]);
}

#[test]
fn a_cut_trace_is_used_up_to_its_cut() {
    let folder = Folder::new();
    let path = folder.trace("cut", true, &[0, 2]);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 18]).unwrap();
    assert_eq!(pages(&folder.load(&[path], None).unwrap()), [(0, 1), (2, 1)]);
}
