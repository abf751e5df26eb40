//! Container images: OCI layouts and `docker save` archives, as directories and as tars of them.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256, Sha512};

use super::archive::entry;
use super::build::*;
use crate::{Layout, PackError, Silent, Source, TarInput, pack};

/// A digest in hexadecimal digits.
fn hex<D: Digest>(bytes: &[u8]) -> String {
    D::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layout being built in a directory.
struct Builder<'a> {
    base: &'a Path,
}

impl Builder<'_> {
    /// Writes a blob and returns its digest.
    fn blob(&self, bytes: &[u8]) -> String {
        let hex = hex::<Sha256>(bytes);
        write(&self.base.join("blobs/sha256").join(&hex), bytes);
        format!("sha256:{hex}")
    }

    fn manifest(&self, layers: &[&[u8]]) -> String {
        let config = self.blob(b"{}");
        let layers: Vec<String> = layers
            .iter()
            .map(|layer| format!(r#"{{"digest":"{}","size":{}}}"#, self.blob(layer), layer.len()))
            .collect();
        let text = format!(r#"{{"schemaVersion":2,"config":{{"digest":"{config}"}},"layers":[{}]}}"#, layers.join(","));
        self.blob(text.as_bytes())
    }

    fn index(&self, manifests: &[String]) {
        write(&self.base.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#);
        write(&self.base.join("index.json"), format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, manifests.join(",")));
    }
}

fn descriptor(digest: &str, rest: &str) -> String {
    format!(r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"{digest}","size":1{rest}}}"#)
}

fn layer(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

/// Three layers that use everything layers can do.
fn layers() -> [Vec<u8>; 3] {
    let file = |name: &[u8], data: &[u8]| entry(b'0', name, b"", data);
    let base = layer(&[
        entry(b'5', b"bin/", b"", b""),
        file(b"bin/tool", b"v1"),
        file(b"etc/keep", b"kept"),
        file(b"etc/gone", b"gone"),
        file(b"etc/dir/a", b"a"),
        file(b"var/old", b"old"),
        file(b"var/sub/old", b"old"),
        entry(b'1', b"linked", b"bin/tool", b""),
        entry(b'2', b"lib", b"usr/lib", b""),
    ]);
    let middle = layer(&[
        file(b"bin/tool", b"v2"),
        file(b"etc/.wh.gone", b""),
        file(b"etc/.wh.dir", b""),
        // The marker may come after what the same layer puts into the directory.
        file(b"var/new", b"new"),
        file(b"var/.wh..wh..opq", b""),
        file(b"lib/through", b"symlink"),
    ]);
    let top = layer(&[
        file(b".wh.bin", b""),
        file(b"bin/tool", b"v3"),
        file(b"nowhere/.wh.x", b""),
        file(b".wh..wh.plnk/x", b""),
        file(b".wh..wh.aufs", b""),
    ]);
    [base, middle, top]
}

const EXPECTED: [&str; 11] = [
    "bin/",
    "bin/tool = v3",
    "etc/",
    "etc/keep = kept",
    "lib -> usr/lib",
    "linked = v1",
    "usr/",
    "usr/lib/",
    "usr/lib/through = symlink",
    "var/",
    "var/new = new",
];

/// What comes out without the directory that a whiteout of the layering file system's own would
/// have to lie in.
fn result(source: Source) -> Vec<String> {
    let scratch = scratch();
    listing(&round_trip(source, scratch.path(), &quick()))
}

fn image(path: &Path, select: Option<&str>) -> Source {
    let layout = Layout::Image { select: select.map(str::to_owned) };
    if path.is_dir() {
        return Source::Directory { path: path.into(), one_file_system: false, layout };
    }
    Source::Tar { input: TarInput::File(path.into()), layout }
}

/// A tar of everything in a directory, as `skopeo copy` or `docker save` would write it.
fn tar_of(base: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.follow_symlinks(false);
    builder.append_dir_all("", base).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn layers_are_applied_in_order_with_whiteouts() {
    let scratch = scratch();
    let base = scratch.path().join("layout");
    let builder = Builder { base: &base };
    let [bottom, middle, top] = layers();
    let manifest = builder.manifest(&[&bottom, &gzip(&middle), &zstd::encode_all(&*top, 1).unwrap()]);
    builder.index(&[descriptor(&manifest, "")]);
    let mut expected: Vec<String> = EXPECTED.map(String::from).to_vec();
    expected.sort();
    assert_eq!(result(Source::detect(&base).unwrap()), expected);
    let bytes = tar_of(&base);
    let file = scratch.path().join("image.tar");
    fs::write(&file, &bytes).unwrap();
    assert_eq!(result(Source::detect(&file).unwrap()), expected);
    assert_eq!(result(tar_stream(bytes.clone())), expected);
    assert_eq!(result(tar_stream(gzip(&bytes))), expected);
    // As plain files it is just that.
    let files = result(Source::Directory { path: base.clone(), one_file_system: false, layout: Layout::Files });
    assert!(files.iter().any(|line| line == "blobs/sha256/"), "{files:?}");
}

#[test]
fn all_ways_to_read_an_image_give_the_same_bytes() {
    let scratch = scratch();
    let base = scratch.path().join("layout");
    let builder = Builder { base: &base };
    let [bottom, middle, _] = layers();
    builder.index(&[descriptor(&builder.manifest(&[&bottom, &gzip(&middle)]), "")]);
    let out = scratch.path().join("out.rnl");
    let first = packed(image(&base, None), &out, &quick()).id;
    assert_eq!(first, packed(tar_stream(tar_of(&base)), &out, &quick()).id);
}

#[test]
fn docker_save_archives_are_read_in_their_old_form() {
    let scratch = scratch();
    let base = scratch.path().join("saved");
    let [bottom, middle, top] = layers();
    let configuration = |layers: &[&Vec<u8>]| {
        let digests: Vec<String> = layers.iter().map(|layer| format!("\"sha256:{}\"", hex::<Sha256>(layer))).collect();
        format!(r#"{{"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#, digests.join(","))
    };
    write(&base.join("whole.json"), configuration(&[&bottom, &middle, &top]));
    write(&base.join("base.json"), configuration(&[&bottom]));
    write(&base.join("1/layer.tar"), &bottom);
    write(&base.join("2/layer.tar"), gzip(&middle));
    write(&base.join("3/real.tar"), &top);
    // Old versions wrote a symlink for a layer that two images share.
    std::os::unix::fs::symlink("../3/real.tar", base.join("2/shared.tar")).unwrap();
    let image_of = |config: &str, tag: &str, layers: &str| {
        format!(r#"{{"Config":"{config}","RepoTags":["{tag}"],"Layers":[{layers}]}}"#)
    };
    let whole = image_of("whole.json", "app:1", r#""1/layer.tar","2/layer.tar","2/shared.tar""#);
    write(&base.join("manifest.json"), format!("[{whole}]"));
    let mut expected: Vec<String> = EXPECTED.map(String::from).to_vec();
    expected.sort();
    assert_eq!(result(tar_stream(tar_of(&base))), expected);
    assert_eq!(result(Source::detect(&base).unwrap()), expected);

    write(&base.join("manifest.json"), format!("[{whole},{}]", image_of("base.json", "base:1", r#""1/layer.tar""#)));
    let error = pack(image(&base, None), &scratch.path().join("x"), &quick(), &Silent).unwrap_err();
    assert!(error.to_string().contains("app:1, base:1"), "{error}");
    assert!(result(image(&base, Some("base:1"))).contains(&"bin/tool = v1".to_string()));

    // A layer, or the configuration, that is not what it is said to be.
    let refused = |expected: &str| {
        let error = pack(image(&base, None), &scratch.path().join("x"), &quick(), &Silent).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let manifest = |config: &str| {
        let one = image_of(config, "app:1", r#""1/layer.tar","2/layer.tar""#);
        write(&base.join("manifest.json"), format!("[{one}]"));
    };
    manifest("whole.json");
    refused("whole.json speaks of 3 layers, manifest.json of 2");
    write(&base.join("whole.json"), configuration(&[&bottom, &top]));
    refused("2/layer.tar is damaged");
    write(&base.join("whole.json"), configuration(&[&bottom, &middle]).replace("sha256:", "SHA256:"));
    refused("is no digest that can be checked");
    let text = configuration(&[&bottom, &middle]);
    let named = format!("{}.json", hex::<Sha256>(text.as_bytes()));
    manifest(&named);
    write(&base.join(&named), &text);
    pack(image(&base, None), &scratch.path().join("x"), &quick(), &Silent).unwrap();
    write(&base.join(&named), format!("{text} "));
    refused("is damaged");
}

#[test]
fn regress_layers_of_every_digest_are_checked_or_refused() {
    let scratch = scratch();
    let base = scratch.path().join("layout");
    let builder = Builder { base: &base };
    let [bottom, ..] = layers();
    let long = hex::<Sha512>(&bottom);
    write(&base.join("blobs/sha512").join(&long), &bottom);
    let manifest_of = |digest: &str| {
        let text = format!(r#"{{"schemaVersion":2,"layers":[{{"digest":"{digest}","size":1}}]}}"#);
        builder.index(&[descriptor(&builder.blob(text.as_bytes()), "")]);
    };
    let packing = || pack(image(&base, None), &scratch.path().join("x"), &quick(), &Silent);
    manifest_of(&format!("sha512:{long}"));
    packing().unwrap();
    write(&base.join("blobs/sha512").join(&long), [&bottom[..], &[0; 512]].concat());
    assert!(packing().unwrap_err().to_string().contains("is damaged"));

    let short = hex::<Sha256>(&bottom);
    for folder in ["sha256", "SHA256", "sha1", "md5", "sha384"] {
        for name in [short.clone(), short.to_uppercase(), short[..40].into()] {
            write(&base.join("blobs").join(folder).join(&name), &bottom);
        }
    }
    for digest in [
        format!("SHA256:{short}"),
        format!("sha256:{}", short.to_uppercase()),
        format!("sha256:{}", &short[..40]),
        format!("sha1:{}", &short[..40]),
        format!("sha384:{short}"),
        format!("md5:{short}"),
        short.clone(),
        String::new(),
    ] {
        manifest_of(&digest);
        let error = packing().unwrap_err().to_string();
        assert!(error.contains("is no digest that can be checked"), "{digest}: {error}");
    }
    // The same for what stands above the layers.
    for digest in [format!("SHA256:{short}"), format!("sha1:{}", &short[..40])] {
        builder.index(&[descriptor(&digest, "")]);
        let error = packing().unwrap_err().to_string();
        assert!(error.contains("is no digest that can be checked"), "{digest}: {error}");
    }
    // And for docker save archives that name layers by digests.
    fs::remove_file(base.join("index.json")).unwrap();
    for path in [format!("blobs/SHA256/{short}"), format!("blobs/sha1/{}", &short[..40])] {
        write(&base.join("manifest.json"), format!(r#"[{{"Layers":["{path}"]}}]"#));
        let error = packing().unwrap_err().to_string();
        assert!(error.contains("is no digest that can be checked"), "{path}: {error}");
    }
}

#[test]
fn one_of_several_images_is_selected_by_name_digest_or_platform() {
    let scratch = scratch();
    let base = scratch.path().join("layout");
    let builder = Builder { base: &base };
    let one = |text: &[u8]| builder.manifest(&[&layer(&[entry(b'0', b"which", b"", text)])]);
    let name = |name: &str| format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{name}"}}"#);
    let platform = |os: &str, arch: &str| format!(r#","platform":{{"os":"{os}","architecture":"{arch}"}}"#);
    let (first, second) = (one(b"first"), one(b"second"));
    builder.index(&[descriptor(&first, &name("v1")), descriptor(&second, &name("v2"))]);
    assert_eq!(result(image(&base, Some("v2"))), ["which = second"]);
    assert_eq!(result(image(&base, Some(&first))), ["which = first"]);
    let refused = |select| pack(image(&base, select), &scratch.path().join("x"), &quick(), &Silent).unwrap_err();
    assert!(refused(None).to_string().contains("2 images, name one of: v1, v2"), "{}", refused(None));
    assert!(refused(Some("v3")).to_string().contains("no image called \"v3\""), "{}", refused(Some("v3")));

    // An index within the index, as builders for several platforms write it, with an attestation.
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let inner = format!(
        r#"{{"manifests":[{},{},{}]}}"#,
        descriptor(&first, &platform("linux", "riscv-of-nobody")),
        descriptor(&second, &platform("linux", here)),
        descriptor(&one(b"attestation"), &platform("unknown", "unknown")),
    );
    let inner = builder.blob(inner.as_bytes());
    let outer =
        format!(r#"{{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"{inner}"{}}}"#, name("app"));
    builder.index(&[outer]);
    assert_eq!(result(image(&base, None)), ["which = second"]);
    assert_eq!(result(image(&base, Some("app"))), ["which = second"]);
    assert_eq!(result(image(&base, Some("linux/riscv-of-nobody"))), ["which = first"]);
}

#[test]
fn damaged_images_are_refused() {
    let scratch = scratch();
    let base = scratch.path().join("layout");
    let builder = Builder { base: &base };
    let [bottom, ..] = layers();
    let manifest = builder.manifest(&[&bottom]);
    builder.index(&[descriptor(&manifest, "")]);
    let refused = |select| pack(image(&base, select), &scratch.path().join("x"), &quick(), &Silent).unwrap_err();

    let blob = base.join("blobs/sha256").join(hex::<Sha256>(&bottom));
    let mut damaged = bottom.clone();
    damaged[600] ^= 1;
    fs::write(&blob, damaged).unwrap();
    assert!(refused(None).to_string().contains("is damaged"), "{}", refused(None));
    fs::remove_file(&blob).unwrap();
    assert!(refused(None).to_string().contains("no file blobs/sha256/"), "{}", refused(None));
    builder.index(&[descriptor("sha256:../../../../etc/passwd", "")]);
    assert!(refused(None).to_string().contains("is no digest"), "{}", refused(None));
    fs::write(base.join("index.json"), "{").unwrap();
    assert!(matches!(refused(None), PackError::Oci { .. }));
    fs::remove_file(base.join("index.json")).unwrap();
    assert!(refused(None).to_string().contains("neither an OCI layout nor"), "{}", refused(None));
}
