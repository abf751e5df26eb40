//! The module's BLAKE3, compiled as a program: whatever vectors it uses, its hashes are those of
//! the crate that the packer uses.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use units::{Rng, SplitMix64};

use crate::root;

/// What the module's files take from the kernel, for this test and its neighbours.
const KERNEL: &str = r"
#ifndef KERNEL
#define KERNEL
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
typedef uint16_t __le16;
typedef uint32_t __le32;
typedef uint64_t __le64;
#define __packed __attribute__((packed))
#define __force
#define noinline
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define noinline_for_stack
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define cond_resched()
#define le32_to_cpu(x) (x)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define max_t(type, a, b) max((type)(a), (type)(b))
#define DIV_ROUND_UP(n, d) (((n) + (d) - 1) / (d))
#define DIV_ROUND_UP_ULL DIV_ROUND_UP
#define GENMASK_ULL(high, low) (~0ULL >> (63 - (high)) & ~0ULL << (low))
#define sizeof_field(type, field) sizeof(((type *)0)->field)
#define PAGE_SIZE 4096
#define GFP_KERNEL 0
#define kmalloc(bytes, flags) malloc(bytes)
#define vmalloc malloc
static inline int fls64(u64 x) { return x ? 64 - __builtin_clzll(x) : 0; }
static inline u32 ror32(u32 x, int bits) { return x >> bits | x << (32 - bits); }
#define get_unaligned(from) ({ __typeof__(*(from) + 0) x_; memcpy(&x_, (from), sizeof(x_)); x_; })
#define put_unaligned(x, to) ({ __typeof__(*(to)) x_ = (x); memcpy((to), &x_, sizeof(x_)); })
static inline u32 get_unaligned_be32(const u8 *from) { u32 x; memcpy(&x, from, 4); return __builtin_bswap32(x); }
static inline u32 get_unaligned_le32(const u8 *from) { u32 x; memcpy(&x, from, 4); return x; }
static inline u16 get_unaligned_le16(const u8 *from) { u16 x; memcpy(&x, from, 2); return x; }
static inline u64 get_unaligned_le64(const u8 *from) { u64 x; memcpy(&x, from, 8); return x; }
static inline void put_unaligned_le64(u64 x, u8 *to) { memcpy(to, &x, 8); }
static inline void put_unaligned_le32(u32 x, u8 *to) { memcpy(to, &x, 4); }
#endif
";

/// Headers that the module's files include; all are the same.
const HEADERS: [&str; 9] =
    ["bitops.h", "build_bug.h", "kernel.h", "mm.h", "sched.h", "slab.h", "string.h", "types.h", "vmalloc.h"];

/// A program of files of the module, in a folder of its own.
pub(super) struct Program {
    folder: PathBuf,
    module: PathBuf,
}

impl Program {
    /// Writes `source` as `program.c`.
    pub(super) fn new(name: &str, source: &str) -> anyhow::Result<Program> {
        let folder = root().join("target/runnelfs").join(name);
        fs::create_dir_all(folder.join("linux"))?;
        for header in HEADERS {
            fs::write(folder.join("linux").join(header), KERNEL)?;
        }
        fs::write(folder.join("program.c"), source)?;
        Ok(Program { folder, module: root().join("kernel/runnelfs") })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn compiler(&self) -> Command {
        let mut compiler = Command::new("cc");
        // A table says first what most are, then what some are.
        compiler.args(["-O2", "-Wall", "-Werror", "-Wno-override-init"]);
        compiler.arg("-I").arg(&self.folder).arg("-I").arg(&self.module);
        compiler
    }

    /// Compiles the program so that it checks its own accesses.
    pub(super) fn compile_checked(&self) -> anyhow::Result<()> {
        let mut link = self.compiler();
        link.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"]);
        self.run(link.arg(self.path("program")).arg(self.path("program.c"))).map(drop)
    }

    /// The compiled program. Nothing is said about what is never freed.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(self.path("program"));
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }

    /// What a command prints.
    pub(super) fn run(&self, command: &mut Command) -> anyhow::Result<Vec<u8>> {
        let output = command.output()?;
        ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    }
}

/// Prints the hash of each prefix whose length is an argument, in each way that this processor has.
const PROGRAM: &str = r#"
#define RUNNELFS_H
#include "hash.c"
#include <stdio.h>
#include <stdlib.h>

static rnl_hash_many *many;
rnl_hash_many *rnl_hash_begin(void) { return many; }
void rnl_hash_end(rnl_hash_many *used) { (void)used; }

static u8 data[1 << 20];

static void print_all(const char *way, rnl_hash_many *used, int count, char **lengths)
{
	u8 hash[32];

	many = used;
	for (int i = 0; i < count; i++) {
		/* At an odd address. */
		rnl_hash(data + 1, strtoul(lengths[i], NULL, 10), hash);
		printf("%s %s ", way, lengths[i]);
		for (int byte = 0; byte < 32; byte++)
			printf("%02x", hash[byte]);
		printf("\n");
	}
}

int main(int count, char **lengths)
{
	if (!fread(data + 1, 1, sizeof(data) - 1, stdin))
		return 1;
	print_all("scalar", rnl_hash_scalar, count - 1, lengths + 1);
#ifdef __x86_64__
	if (__builtin_cpu_supports("ssse3"))
		print_all("ssse3", rnl_hash_ssse3, count - 1, lengths + 1);
	if (__builtin_cpu_supports("avx2"))
		print_all("avx2", rnl_hash_avx2, count - 1, lengths + 1);
#elif defined(__aarch64__)
	print_all("neon", rnl_hash_neon, count - 1, lengths + 1);
#endif
	return 0;
}
"#;

/// Files with vectors, and what makes the compiler use them.
#[cfg(target_arch = "x86_64")]
const VECTORS: &[(&str, &str)] = &[("hash_avx2", "-mavx2"), ("hash_ssse3", "-mssse3")];
#[cfg(target_arch = "aarch64")]
const VECTORS: &[(&str, &str)] = &[("hash_neon", "-O2")];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const VECTORS: &[(&str, &str)] = &[];

/// Bytes that are hashed, at most: longer than a stored block of 64 KiB ever is.
const BYTES_MAX: usize = 200_001;

/// All lengths up to some that fill all lanes of the widest vectors, and some longer ones.
fn lengths() -> impl Iterator<Item = usize> {
    let slices = (1..=12).flat_map(|slices| [slices * 16384 - 1, slices * 16384, slices * 16384 + 1]);
    let chunks = (9..=36).flat_map(|chunks| [chunks * 1024, chunks * 1024 + 63]);
    (0..=9 << 10).chain(chunks).chain(slices).chain([100_000, BYTES_MAX])
}

#[test]
fn hashes_are_those_of_the_crate_in_every_way() -> anyhow::Result<()> {
    let program = Program::new("hashes", PROGRAM)?;
    let mut link = program.compiler();
    link.arg("-o").arg(program.path("program")).arg(program.path("program.c"));
    for (file, flag) in VECTORS {
        let object = program.path(&format!("{file}.o"));
        let source = program.module.join(format!("{file}.c"));
        program.run(program.compiler().args([flag, "-c", "-o"]).arg(&object).arg(source))?;
        link.arg(&object);
    }
    program.run(&mut link)?;

    let mut random = SplitMix64(24);
    let data: Vec<u8> = (0..BYTES_MAX).map(|_| random.below(256) as u8).collect();
    fs::write(program.path("data"), &data)?;
    let mut command = Command::new(program.path("program"));
    command.args(lengths().map(|length| length.to_string())).stdin(fs::File::open(program.path("data"))?);
    let text = String::from_utf8(program.run(&mut command)?)?;
    let mut ways: Vec<&str> = Vec::new();
    for line in text.lines() {
        let [way, length, hash] = line.split(' ').collect::<Vec<_>>()[..] else {
            anyhow::bail!("the program printed {line:?}");
        };
        let expected = blake3::hash(data.get(..length.parse()?).context("length")?).to_hex();
        ensure!(hash == expected.as_str(), "{way} hashes {length} bytes to {hash}, not {expected}");
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ensure!(text.lines().count() == ways.len() * lengths().count() && !ways.is_empty(), "hashes are missing");
    eprintln!("   {} lengths, {}: as by the crate", lengths().count(), ways.join(", "));
    Ok(())
}
