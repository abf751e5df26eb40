//! Tests of the whole crate: each part by its own facts, readers with damaged input.

mod counters;
mod file;
mod kernel;
mod merging;
mod qemu;

use crate::{Block, Coverage, Function, How, Scenario};

fn block(offset: u32, bytes: u32, phases: &str) -> Block {
    Block { offset, bytes, boot: phases.contains('b'), service: phases.contains('s') }
}

/// A function with the phases of its blocks.
fn function(name: &str, bytes: u64, order: u32, blocks: &[Block]) -> Function {
    let (boot, service) = (blocks.iter().any(|block| block.boot), blocks.iter().any(|block| block.service));
    Function { name: name.to_string(), bytes, order, boot, service, blocks: blocks.to_vec() }
}

fn scenario(name: &str, how: How) -> Scenario {
    Scenario { name: name.to_string(), how, functions: 2, blocks: 3 }
}

fn coverage(name: &str, functions: Vec<Function>) -> Coverage {
    Coverage { release: "6.12.117".to_string(), scenarios: vec![scenario(name, How::Qemu)], functions }
}

/// Two functions, three blocks.
fn sample() -> Coverage {
    let read = function("vfs_read", 300, 1, &[block(0, 40, "bs"), block(60, 10, "s")]);
    coverage("web server", vec![function("start_kernel", 1000, 2, &[block(0, 1000, "b")]), read])
}
