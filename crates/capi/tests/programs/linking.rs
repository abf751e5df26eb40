//! What the shared library shows and needs, and what packages say of it.

use std::process::Command;

use object::{Object, ObjectSymbol};

use crate::support::{here, libraries};

/// Libraries that are on every Linux with glibc.
const NEEDED: &[&str] = &["libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

#[test]
fn the_shared_library_shows_its_functions_and_nothing_else() {
    let bytes = std::fs::read(libraries().join("librunnel.so")).expect("built");
    let file = object::File::parse(&*bytes).expect("ELF");
    let header = std::fs::read_to_string(here("include/runnel.h")).expect("there");
    let mut functions = 0;
    for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
        let name = symbol.name().expect("text");
        assert!(name.starts_with("runnel_") && header.contains(&format!("{name}(")), "{name}");
        functions += 1;
    }
    assert!(functions > 30, "{functions}");
}

#[test]
fn the_shared_library_needs_only_what_is_everywhere() {
    let output = Command::new("readelf")
        .args(["--dynamic", "--program-headers", "--wide"])
        .arg(libraries().join("librunnel.so"))
        .output();
    let Ok(output) = output.inspect_err(|error| println!("skipped: readelf: {error}")) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    let bracketed = |line: &str| line.split(['[', ']']).nth(1).unwrap_or_default().to_owned();
    for line in text.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(NEEDED.contains(&bracketed(line).as_str()), "{line}");
    }
    let name = text.lines().find(|line| line.contains("(SONAME)")).map(bracketed);
    assert_eq!(name.as_deref(), Some("librunnel.so.0"));
    assert!(text.contains("NODELETE") && !text.contains("TEXTREL") && !text.contains("RPATH"), "{text}");
    let stack = text.lines().find(|line| line.contains("GNU_STACK")).expect("said");
    assert!(!stack.contains("RWE"), "an executable stack: {stack}");
}

/// The manual page is one, and names every function.
#[test]
fn the_manual_page_is_well_formed_and_complete() {
    let page = here("../../docs/man/librunnel.3");
    let text = std::fs::read_to_string(&page).expect("there");
    let header = std::fs::read_to_string(here("include/runnel.h")).expect("there");
    for name in
        header.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("runnel_"))
    {
        assert!(text.contains(name), "{name} is not in the manual page");
    }
    let mut groff = Command::new("groff");
    match groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output() {
        Err(error) => println!("skipped: groff: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{said}");
        }
    }
}

/// What the package script makes of the libraries links by what its pkg-config file says, and meets
/// nothing of the program's.
#[test]
fn packages_link_and_show_nothing_else() {
    let folder = tempfile::tempdir().expect("folder");
    let package = folder.path().join("package");
    let mut script = Command::new(here("../../scripts/package-library.sh"));
    script.arg(&package).env("built", libraries()).env("PREFIX", &package);
    let output = script.output().expect("bash runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("command not found") {
        println!("skipped: {said}");
        return;
    }
    assert!(output.status.success(), "{said}");

    let bytes = std::fs::read(package.join("lib/librunnel.a")).expect("made");
    let archive = object::read::archive::ArchiveFile::parse(&*bytes).expect("an archive");
    for member in archive.members() {
        let file = object::File::parse(member.expect("listed").data(&*bytes).expect("inside")).expect("ELF");
        for symbol in file.symbols().filter(|symbol| symbol.is_global() && symbol.is_definition()) {
            assert!(symbol.name().expect("text").starts_with("runnel_"), "{:?}", symbol.name());
        }
    }

    for linkage in [&["--static"][..], &[]] {
        let mut pkg_config = Command::new("pkg-config");
        pkg_config.args(linkage).args(["--cflags", "--libs", "runnel"]);
        let flags = pkg_config.env("PKG_CONFIG_PATH", package.join("lib/pkgconfig")).output();
        let Ok(flags) = flags.inspect_err(|error| println!("skipped: pkg-config: {error}")) else { return };
        assert!(flags.status.success(), "{}", String::from_utf8_lossy(&flags.stderr));
        let flags = String::from_utf8_lossy(&flags.stdout).into_owned();
        let program = folder.path().join("cat");
        let mut cc = Command::new("cc");
        cc.arg("-o").arg(&program).arg(here("examples/cat.c")).args(flags.split_whitespace());
        if linkage.is_empty() {
            cc.arg(format!("-Wl,-rpath,{}", package.join("lib").display()));
        } else {
            // The C library of the machine is shared all the same; ours is not.
            std::fs::remove_file(package.join("lib/librunnel.so")).expect("removed");
        }
        let linked = cc.output().expect("cc runs");
        assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
        let ran = Command::new(&program).output().expect("it starts");
        assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
        if !linkage.is_empty() {
            std::os::unix::fs::symlink("librunnel.so.0", package.join("lib/librunnel.so")).expect("put back");
        }
    }
}
