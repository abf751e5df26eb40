//! The examples, and a program that checks the header's promises, against a real server.

use std::path::Path;

use units::{Rng, SplitMix64};

use crate::support::{Linked, Server, compile, run};

const BOTH: [Linked; 2] = [Linked::Statically, Linked::Dynamically];

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut rng = SplitMix64(seed);
    (0..count).map(|_| rng.below(256) as u8).collect()
}

/// Runs a program, which must succeed; its standard output.
fn ok(program: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run(program, arguments, input);
    assert!(output.status.success(), "{arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn files_are_copied_in_and_out() {
    let folder = tempfile::tempdir().expect("folder");
    let server = Server::start();
    for linked in BOTH {
        let (Some(put), Some(cat)) =
            (compile("examples/put.c", linked, folder.path()), compile("examples/cat.c", linked, folder.path()))
        else {
            return;
        };
        let (url, name) = (server.url(), format!("{linked:?}.bin"));
        for size in [0, 1, 300_000] {
            let content = bytes(size, size as u64);
            ok(&put, &[&url, &name], &content);
            assert_eq!(std::fs::read(server.data().join(&name)).expect("there"), content, "on the server at once");
            assert_eq!(ok(&cat, &[&url, &name], b""), content);
        }
        let refused = run(&put, &["-n", &url, &name], b"new");
        assert_eq!(refused.status.code(), Some(1));
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(text.contains(&name) && text.contains("already"), "{text}");
        let missing = run(&cat, &[&url, "no/such"], b"");
        let text = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert!(missing.status.code() == Some(1) && text.contains("no/such"), "{text}");
    }
}

#[test]
fn records_are_read_in_a_foretold_order() {
    let folder = tempfile::tempdir().expect("folder");
    let server = Server::start();
    let content = bytes(1 << 20, 7);
    std::fs::write(server.data().join("table.bin"), &content).expect("written");
    for linked in BOTH {
        let Some(scatter) = compile("examples/scatter.c", linked, folder.path()) else { return };
        let mut state = 88_172_645_463_325_252_u64;
        let mut sum = 0_u64;
        for _ in 0..200 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = (state % 1024 * 1024) as usize;
            sum += content[at..at + 1024].iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
        let url = server.url();
        for deadline in ["0", "1000"] {
            let printed = ok(&scatter, &[&url, "table.bin", "200", deadline], b"");
            assert_eq!(String::from_utf8_lossy(&printed), format!("sum {sum}\n"));
        }
    }
}

#[test]
fn the_header_keeps_its_promises() {
    let folder = tempfile::tempdir().expect("folder");
    for linked in BOTH {
        let Some(contract) = compile("tests/programs/contract.c", linked, folder.path()) else { return };
        let server = Server::start();
        let output = run(&contract, &[&server.url()], b"");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{linked:?}: {}: {said}", output.status);
        assert_eq!(output.stdout, b"all kept\n");
    }
}
