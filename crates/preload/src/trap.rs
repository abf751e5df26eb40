//! Goes on past breakpoints whose tracer is gone.
//!
//! `runnel launch` writes breakpoint instructions into a program and removes each when it is hit. A
//! tracer killed by SIGKILL cannot, and the next hit would end the program with SIGTRAP. With
//! `RUNNEL_TRAP` in the environment (`1`; or `once`, and then the variable and our entry of
//! LD_PRELOAD are removed, so that children start without this library) this module handles
//! SIGTRAP: if memory has a breakpoint where the mapped file has another instruction, the
//! instruction is copied back from the file (through /proc/self/mem, which may write to read-only
//! code) and executed. The same is done if another thread has just restored it. Every other SIGTRAP
//! goes to the program's own action.
//!
//! The program's own action keeps its meaning: `sigaction` and `signal` are interposed, for SIGTRAP
//! only. What they set is remembered and called with the requested flags and mask; what they report
//! is what the program set. Not covered are programs that ignore SIGTRAP (the kernel kills them at
//! any trap, so nothing is installed), threads that block SIGTRAP (likewise), programs that set it
//! by a raw system call (their handler replaces ours), and static programs (nothing can be
//! preloaded).
//!
//! A handler may interrupt anything, so it allocates nothing, and reads and writes by raw system
//! calls: this very library may interpose `read` and its relatives.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// The breakpoint instruction, and how the processor reports it.
#[cfg(target_arch = "x86_64")]
mod arch {
    /// `si_code` of INT3; single steps have another.
    pub(super) const TRAP_CODE: i32 = libc::SI_KERNEL;

    /// INT3.
    pub(super) const BREAKPOINT: &[u8] = &[0xcc];

    /// The processor has stepped past the INT3.
    pub(super) fn trap_address(context: &libc::ucontext_t) -> usize {
        (context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize).wrapping_sub(1)
    }

    /// Sets where the program goes on.
    pub(super) fn go_on_at(context: &mut libc::ucontext_t, address: usize) {
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
    }
}

/// The breakpoint instruction, and how the processor reports it.
#[cfg(target_arch = "aarch64")]
mod arch {
    /// `si_code` of BRK; single steps have another.
    pub(super) const TRAP_CODE: i32 = libc::TRAP_BRKPT;

    /// BRK #0 (0xd4200000), little-endian.
    pub(super) const BREAKPOINT: &[u8] = &[0x00, 0x00, 0x20, 0xd4];

    /// The program counter stays on the BRK.
    pub(super) fn trap_address(context: &libc::ucontext_t) -> usize {
        context.uc_mcontext.pc as usize
    }

    /// Sets where the program goes on.
    pub(super) fn go_on_at(context: &mut libc::ucontext_t, address: usize) {
        context.uc_mcontext.pc = address as u64;
    }
}

/// Longest line of /proc/self/maps that is understood: addresses, a path of PATH_MAX bytes and its
/// escapes.
const LINE_BYTES_MAX: usize = 8192;

/// Longest instruction that a breakpoint replaces.
const INSTRUCTION_BYTES_MAX: usize = 4;

/// `sigaction` of the C library, found when first needed.
static REAL_SIGACTION: AtomicUsize = AtomicUsize::new(0);
/// Whether our handler stands in the kernel.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// What the program wants: its handler (or SIG_DFL) and the flags it gave.
static PROGRAM_HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PROGRAM_FLAGS: AtomicI32 = AtomicI32::new(0);

/// The one line buffer; threads take turns. Not on the stack: alternate signal stacks may have 2
/// KiB.
struct Line {
    taken: AtomicBool,
    bytes: UnsafeCell<[u8; LINE_BYTES_MAX]>,
}

// SAFETY: `bytes` is only touched by the thread that has set `taken`.
unsafe impl Sync for Line {}

static LINE: Line = Line { taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; LINE_BYTES_MAX]) };

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

unsafe extern "C" {
    /// The environment of the process: pointers to `NAME=value`, ended by null.
    static environ: *mut *mut c_char;
}

/// Makes the environment what it was without the launcher, for the program to see and its children
/// to inherit: our two variables go, and what the user preloads, which stands behind a colon, is
/// all that LD_PRELOAD names.
fn leave_environment() {
    // SAFETY: the C library keeps this list of strings that end with NUL, all of them writable; the
    // program's threads and its own changes of the environment come after its libraries were
    // initialised.
    unsafe {
        let (mut from, mut to) = (environ, environ);
        while !from.is_null() && !(*from).is_null() {
            let entry = *from;
            from = from.add(1);
            let text = CStr::from_ptr(entry).to_bytes_with_nul();
            if text.starts_with(b"RUNNEL_TRAP=") {
                continue;
            }
            if let Some(list) = text.strip_prefix(b"LD_PRELOAD=") {
                let Some(colon) = list.iter().position(|byte| *byte == b':') else { continue };
                let value = entry.add(text.len() - list.len());
                ptr::copy(value.add(colon + 1), value, list.len() - colon - 1);
            }
            *to = entry;
            to = to.add(1);
        }
        if !to.is_null() {
            *to = ptr::null_mut();
        }
    }
}

type Sigaction = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;

extern "C" fn start() {
    // SAFETY: the name ends with NUL; nothing changes the environment while libraries are being
    // loaded.
    let value = unsafe { libc::getenv(c"RUNNEL_TRAP".as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: getenv gave a string that ends with NUL.
    match unsafe { CStr::from_ptr(value) }.to_bytes() {
        b"1" => {}
        b"once" => leave_environment(),
        _ => return,
    }
    let Some(old) = call_real(None) else { return };
    if old.sa_sigaction == libc::SIG_IGN {
        return;
    }
    remember(&old);
    if call_real(Some(&ours(&old))).is_some() {
        INSTALLED.store(true, Ordering::Release);
    }
}

/// Sets (or with None only asks for) the kernel's action for SIGTRAP; returns the one before.
fn call_real(action: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let real = real_sigaction()?;
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both pointers are null or lead to a struct of the right type, and `real` is the C
    // library's function.
    let status = unsafe { real(libc::SIGTRAP, action, old.as_mut_ptr()) };
    // SAFETY: all fields are integers, pointers or options of functions, for which zero is a value.
    (status == 0).then(|| unsafe { old.assume_init() })
}

fn real_sigaction() -> Option<Sigaction> {
    let mut address = REAL_SIGACTION.load(Ordering::Relaxed);
    if address == 0 {
        // SAFETY: the name ends with NUL.
        address = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) } as usize;
        REAL_SIGACTION.store(address, Ordering::Relaxed);
    }
    // SAFETY: not null, and the C library's `sigaction` has this type.
    (address != 0).then(|| unsafe { mem::transmute::<usize, Sigaction>(address) })
}

fn remember(action: &libc::sigaction) {
    PROGRAM_FLAGS.store(action.sa_flags, Ordering::Release);
    PROGRAM_HANDLER.store(action.sa_sigaction, Ordering::Release);
}

/// The kernel's action for SIGTRAP while the program wants `program`: our handler, under its mask
/// and flags.
fn ours(program: &libc::sigaction) -> libc::sigaction {
    let mut action = *program;
    action.sa_sigaction = handler as *const () as usize;
    // A handler that is to run once is taken away by `chain`; ours stays.
    action.sa_flags = (action.sa_flags & !libc::SA_RESETHAND) | libc::SA_SIGINFO;
    if program.sa_sigaction == libc::SIG_DFL {
        // Nothing of the program runs in the handler: calls go on, and threads with small stacks
        // keep them.
        action.sa_flags |= libc::SA_RESTART | libc::SA_ONSTACK;
    }
    action
}

/// `sigaction` for the whole program; differs from the C library's for SIGTRAP only.
///
/// # Safety
/// As `sigaction(2)`: both pointers are null or valid.
#[unsafe(no_mangle)]
// SAFETY: the caller keeps the contract of sigaction(2).
pub unsafe extern "C" fn sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let Some(real) = real_sigaction() else { return -1 };
    if signal != libc::SIGTRAP || !INSTALLED.load(Ordering::Acquire) {
        // SAFETY: the caller's pointers, under the same contract.
        return unsafe { real(signal, action, old) };
    }
    let (handler, flags) = (PROGRAM_HANDLER.load(Ordering::Acquire), PROGRAM_FLAGS.load(Ordering::Acquire));
    // SAFETY: null or valid by the contract of the caller.
    let wanted = unsafe { action.as_ref() }.copied();
    let before = match wanted {
        None => call_real(None),
        Some(wanted) if wanted.sa_sigaction == libc::SIG_IGN => {
            INSTALLED.store(false, Ordering::Release);
            call_real(Some(&wanted))
        }
        Some(wanted) => {
            remember(&wanted);
            call_real(Some(&ours(&wanted)))
        }
    };
    let Some(mut before) = before else { return -1 };
    before.sa_sigaction = handler;
    before.sa_flags = flags;
    if !old.is_null() {
        // SAFETY: not null, so valid by the contract of the caller.
        unsafe { old.write(before) };
    }
    0
}

/// `signal` for the whole program: as in the C library, handlers stay and calls are restarted.
///
/// # Safety
/// As `signal(2)`: `handler` is SIG_DFL, SIG_IGN or a function that takes a signal number.
#[unsafe(no_mangle)]
// SAFETY: the caller keeps the contract of signal(2).
pub unsafe extern "C" fn signal(number: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: all fields are integers, pointers or options of functions, for which zero is a value.
    let (mut action, mut old) = unsafe { (mem::zeroed::<libc::sigaction>(), mem::zeroed::<libc::sigaction>()) };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: both lead to structs of ours; sigaddset fails on bad numbers, and so does sigaction.
    let status = unsafe {
        libc::sigaddset(&mut action.sa_mask, number);
        sigaction(number, &action, &mut old)
    };
    if status == 0 { old.sa_sigaction } else { libc::SIG_ERR }
}

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO both structs; errno is the thread's own.
    let (code, errno) = unsafe { ((*info).si_code, *libc::__errno_location()) };
    // SAFETY: as above; nobody else knows this frame.
    let frame = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let address = arch::trap_address(frame);
    let left_over = code == arch::TRAP_CODE && undo(address);
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    if left_over {
        arch::go_on_at(frame, address);
    } else {
        chain(signal, info, context);
    }
}

/// What the program wanted to happen.
fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let (wanted, flags) = (PROGRAM_HANDLER.load(Ordering::Acquire), PROGRAM_FLAGS.load(Ordering::Acquire));
    if wanted == libc::SIG_DFL {
        // The end by SIGTRAP, as without us: it is blocked here and comes when this handler
        // returns. SAFETY: all fields are integers, pointers or options of functions, for which
        // zero is a value.
        let default = unsafe { mem::zeroed::<libc::sigaction>() };
        INSTALLED.store(false, Ordering::Release);
        call_real(Some(&default));
        // SAFETY: sends a signal to this thread.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal) };
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        PROGRAM_HANDLER.store(libc::SIG_DFL, Ordering::Release);
    }
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program gave this handler as one of three arguments.
        let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = unsafe { mem::transmute(wanted) };
        function(signal, info, context);
    } else {
        // SAFETY: the program gave this handler as one of one argument.
        let function: extern "C" fn(c_int) = unsafe { mem::transmute(wanted) };
        function(signal);
    }
}

/// Takes a left-over breakpoint at `address` away; false if there is none.
fn undo(address: usize) -> bool {
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // No other handler may run while the line buffer is taken: a breakpoint in it would wait for
    // us. SAFETY: both sets are ours.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    while LINE.taken.swap(true, Ordering::Acquire) {
        // SAFETY: takes no arguments.
        unsafe { libc::syscall(libc::SYS_sched_yield) };
    }
    // SAFETY: `taken` is ours until it is cleared below, and this is the only reference.
    let found = undo_with(unsafe { &mut *LINE.bytes.get() }, address);
    LINE.taken.store(false, Ordering::Release);
    // SAFETY: the set that the call above filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    found.is_some()
}

fn undo_with(line: &mut [u8; LINE_BYTES_MAX], address: usize) -> Option<()> {
    let (offset, inode, path) = mapping_of(line, address)?;
    let mut original = [0u8; INSTRUCTION_BYTES_MAX];
    let original = original.get_mut(..arch::BREAKPOINT.len())?;
    let file = Descriptor::open(path.as_ptr(), libc::O_RDONLY)?;
    if file.inode()? != inode || !file.read_at(original, offset) || original == arch::BREAKPOINT {
        return None;
    }
    let memory = Descriptor::open(c"/proc/self/mem".as_ptr().cast(), libc::O_RDWR)?;
    let mut current = [0u8; INSTRUCTION_BYTES_MAX];
    let current = current.get_mut(..arch::BREAKPOINT.len())?;
    if !memory.read_at(current, address as u64) {
        return None;
    }
    if current == arch::BREAKPOINT {
        return memory.write_at(original, address as u64).then_some(());
    }
    // Restored by another thread since this one trapped.
    (current == original).then_some(())
}

/// Finds the executable mapping of `address`: the offset of that address in its file, the inode,
/// and the path with a NUL.
fn mapping_of(line: &mut [u8; LINE_BYTES_MAX], address: usize) -> Option<(u64, u64, &[u8])> {
    let maps = Descriptor::open(c"/proc/self/maps".as_ptr().cast(), libc::O_RDONLY)?;
    let mut held = 0;
    let found = loop {
        let count = maps.read(line.get_mut(held..)?)?;
        held += count;
        let mut from = 0;
        let mut found = None;
        while let Some(length) = line.get(from..held)?.iter().position(|byte| *byte == b'\n') {
            if let Some((offset, inode, path)) = parse(line.get(from..from + length)?, address) {
                found = Some((offset, inode, from + path, from + length));
                break;
            }
            from += length + 1;
        }
        if found.is_some() {
            break found;
        }
        // A line longer than the buffer leaves no room, and the next read reports zero bytes.
        if count == 0 {
            return None;
        }
        line.copy_within(from..held, 0);
        held -= from;
    };
    let (offset, inode, path, end) = found?;
    *line.get_mut(end)? = 0;
    Some((offset, inode, line.get(path..=end)?))
}

/// One line of maps, `start-end perms offset dev inode path`: if it covers `address`, the offset in
/// the file, the inode and where the path begins in the line.
fn parse(line: &[u8], address: usize) -> Option<(u64, u64, usize)> {
    let mut at = 0;
    let start = number(line, &mut at, 16, b'-')?;
    let end = number(line, &mut at, 16, b' ')?;
    let address = address as u64;
    if address < start || address >= end || *line.get(at + 2)? != b'x' {
        return None;
    }
    at += 5;
    let offset = number(line, &mut at, 16, b' ')?;
    at += line.get(at..)?.iter().position(|byte| *byte == b' ')? + 1;
    let inode = number(line, &mut at, 10, b' ')?;
    let path = at + line.get(at..)?.iter().position(|byte| *byte == b'/')?;
    Some((offset + (address - start), inode, path))
}

/// Reads digits up to `end` and steps past it.
fn number(line: &[u8], at: &mut usize, radix: u32, end: u8) -> Option<u64> {
    let mut value = 0u64;
    loop {
        let byte = *line.get(*at)?;
        *at += 1;
        if byte == end {
            return Some(value);
        }
        value = value.checked_mul(radix.into())?.checked_add((byte as char).to_digit(radix)?.into())?;
    }
}

/// An open file, by raw system calls.
struct Descriptor(c_int);

impl Descriptor {
    /// Opens the path, which ends with NUL.
    fn open(path: *const u8, flags: c_int) -> Option<Descriptor> {
        // SAFETY: every caller hands in a string that ends with NUL.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_CLOEXEC, 0) };
        (fd >= 0).then_some(Descriptor(fd as c_int))
    }

    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: the buffer is as long as said.
        let count = unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) };
        usize::try_from(count).ok()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> bool {
        // SAFETY: the buffer is as long as said.
        let count = unsafe { libc::syscall(libc::SYS_pread64, self.0, buffer.as_mut_ptr(), buffer.len(), offset) };
        count == buffer.len() as c_long
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> bool {
        // SAFETY: the bytes are as many as said.
        let count = unsafe { libc::syscall(libc::SYS_pwrite64, self.0, bytes.as_ptr(), bytes.len(), offset) };
        count == bytes.len() as c_long
    }

    fn inode(&self) -> Option<u64> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the struct has the type that fstat fills.
        let done = unsafe { libc::fstat(self.0, status.as_mut_ptr()) };
        // SAFETY: all fields are integers, for which zero is a value.
        (done == 0).then(|| unsafe { status.assume_init() }.st_ino)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: opened by `open` and closed once.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}
