//! Damaged objects are refused or rewritten, and never more than that: no panic, no endless loop,
//! no memory by a number in the file.

use super::*;

/// A small generator (xorshift), so that a failure names the seed that makes it again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn sample() -> Vec<u8> {
    let strings = ".section .rodata.str1.1,\"aMS\",@progbits,1\n.LC0: .string \"text\"\n.section .rodata.cst8,\"aM\",@progbits,8\n.quad 1,2\n";
    let tables = ".section __ex_table,\"a\"\n.long entry-., helper-., 1\n.section .orc_unwind_ip,\"a\"\n.long entry-.\n\
                  .section .orc_unwind,\"a\"\n.short 1,2,3\n.section .init.setup,\"aw\"\n.quad .LC0, helper, 0\n\
                  .section .pci_fixup_final,\"a\"\n.short 1,2\n.long 3,4,helper-.\n\
                  .section .altinstructions,\"a\"\n.long entry-., 8f-.\n.long 0\n.byte 5, 5\n.section .altinstr_replacement,\"ax\"\n8: call helper\n";
    let code = [
        function("entry", "call helper\nmov $.LC0,%rdi\nmov array-8(,%rax,8),%rbx\ncall x64_sys_call\nret"),
        function("helper", "ret"),
        function("x64_sys_call", "jmp __x64_sys_read\njmp __x64_sys_ni_syscall"),
        function("__x64_sys_read", "ret"),
        function("__x64_sys_ni_syscall", "mov $-38,%eax\nret"),
        function_in(".init.text", "start", "call once\nret"),
        function("once", "ret"),
        variable(".data..read_mostly", "array", ".quad 1"),
        variable(".data..read_mostly", "other", ".quad entry"),
    ]
    .concat();
    assemble(&[strings, &code, tables].concat())
}

fn all() -> Options {
    Options {
        syscalls: Some(["sys_read".to_string()].into()),
        command_line: Some("quiet".to_string()),
        devices: Some(Vec::new()),
        ..options(Passes::all())
    }
}

#[test]
fn damage_is_an_error_or_another_object() {
    let object = sample();
    assert!(specialise(&object, &all()).is_ok());
    let mut refused = 0;
    for seed in 1..=4000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut damaged = object.clone();
        for _ in 0..=random.below(6) {
            let at = random.below(damaged.len());
            damaged[at] = match random.below(4) {
                0 => 0xff,
                1 => 0,
                2 => damaged[at].wrapping_add(1),
                _ => random.next() as u8,
            };
        }
        if random.below(8) == 0 {
            damaged.truncate(random.below(damaged.len()));
        }
        let result = std::panic::catch_unwind(|| specialise(&damaged, &all()));
        match result {
            Err(_) => panic!("seed {seed} panics"),
            Ok(Err(_)) => refused += 1,
            // What was written can be read.
            Ok(Ok(outcome)) => {
                drop(Object::read(&outcome.object).unwrap_or_else(|error| panic!("seed {seed}: {error}")))
            }
        }
    }
    assert!(refused > 400, "{refused} of 4000 were refused: the damage does not reach the parser");
}

#[test]
fn damage_in_headers_is_survived_byte_by_byte() {
    let object = sample();
    let start = u64::from_le_bytes(*object[40..].first_chunk().unwrap()) as usize;
    for at in (0..64).chain(start..object.len()) {
        for value in [0x00, 0x01, 0x7f, 0xff] {
            let mut damaged = object.clone();
            damaged[at] = value;
            let result = std::panic::catch_unwind(|| specialise(&damaged, &all()).map(|outcome| outcome.object.len()));
            assert!(result.is_ok(), "byte {at} as {value:#x} panics");
        }
    }
}
