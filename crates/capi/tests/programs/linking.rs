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
