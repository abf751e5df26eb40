//! The header is what cbindgen makes of the source, and C and C++ compilers take it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// In the order in which a reader of the header needs them.
const SOURCES: &[&str] = &[
    "options.rs",
    "volume.rs",
    "info.rs",
    "file.rs",
    "file/hints.rs",
    "names.rs",
    "folder.rs",
    "sync.rs",
    "status.rs",
    "error.rs",
];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// With RUNNEL_HEADER=write it is written, not compared.
#[test]
fn the_header_is_up_to_date() {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).expect("a good configuration");
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(here("src").join(source))
    });
    let mut header = Vec::new();
    builder.generate().expect("readable sources").write(&mut header);
    let header = String::from_utf8(header).expect("text");
    let place = here("include/runnel.h");
    if std::env::var_os("RUNNEL_HEADER").is_some_and(|what| what == "write") {
        std::fs::write(&place, &header).expect("written");
    }
    let committed = std::fs::read_to_string(&place).expect("there");
    let hint = "RUNNEL_HEADER=write cargo test -p runnel-capi --test header";
    assert!(committed == header, "include/runnel.h is out of date; bring it up to date with {hint}");
}

/// Every function of the source that C can see is in the header.
#[test]
fn nothing_is_missing_in_the_header() {
    let header = std::fs::read_to_string(here("include/runnel.h")).expect("there");
    let mut open = vec![here("src")];
    let mut functions = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).expect("listed").map(|entry| entry.expect("entry").path()));
            continue;
        }
        let text = std::fs::read_to_string(path).expect("source");
        for name in text.split("pub extern \"C\" fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
            functions += 1;
            assert!(header.contains(&format!("{name}(")), "{name}");
        }
    }
    assert!(functions > 30, "only {functions} functions found");
}

#[test]
fn compilers_take_the_header_without_a_word() {
    let folder = tempfile::tempdir().expect("folder");
    for (compiler, file, options) in [
        ("cc", "a.c", &["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror"][..]),
        ("c++", "a.cc", &["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"][..]),
    ] {
        let source = folder.path().join(file);
        let text =
            "#include <runnel.h>\n#include <runnel.h>\nint use(void);\nint use(void) { return runnel_close(0); }\n";
        std::fs::write(&source, text).expect("written");
        let mut command = Command::new(compiler);
        command.args(options).arg("-I").arg(here("include")).args(["-c", "-o"]).arg(folder.path().join("a.o"));
        match command.arg(&source).output() {
            Err(error) => println!("skipped: {compiler}: {error}"),
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}
