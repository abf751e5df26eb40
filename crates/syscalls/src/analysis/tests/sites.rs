//! Places where the kernel is entered, with known answers.

use super::build::{BARE, alone, gcc, numbers, with};
use crate::analysis::{Options, Report, Why};

fn assembled(source: &str) -> Option<Report> {
    Some(alone(&gcc("S", source, BARE)?))
}

#[test]
fn constants_come_straight_over_blocks_and_from_the_stack() {
    let source = "
        .globl _start
    _start: mov $39, %eax
        syscall
        xor %eax, %eax
        add $110, %eax
        syscall
        push $102
        pop %rax
        syscall
        sub $32, %rsp
        movl $104, 12(%rsp)
        mov $7, %edx
        movl %edx, 8(%rsp)
        mov 12(%rsp), %eax
        syscall
        test %edi, %edi
        mov $107, %eax
        je 1f
        mov $108, %eax
    1:  syscall
        mov $3, %ecx
    2:  mov $24, %eax
        syscall
        dec %ecx
        jnz 2b
        or $-1, %eax
        and $60, %eax
        syscall
        hlt
    ";
    let Some(report) = assembled(source) else { return };
    assert_eq!(numbers(&report), [24, 39, 60, 102, 104, 107, 108, 110]);
    assert_eq!((report.sites, report.resolved), (7, 7));
    assert!(report.is_complete());
}

#[test]
fn wrappers_get_their_numbers_at_each_call() {
    // As syscall(3) of the C library, through one more function, and with the number on the stack
    // as Go passes it.
    let source = "
        .globl _start
        .type _start, @function
    _start: mov $39, %edi
        call wrapper
        mov $102, %edi
        call outer
        mov $104, %edi
        call outer
        push $107
        call stacked
        pop %rax
        mov $60, %edi
        jmp wrapper
        .size _start, .-_start
        .type wrapper, @function
    wrapper: mov %rdi, %rax
        mov %rsi, %rdi
        mov %rdx, %rsi
        syscall
        cmp $-4095, %rax
        ret
        .size wrapper, .-wrapper
        .type outer, @function
    outer: push %rbx
        mov %edi, %ebx
        call nothing
        mov %ebx, %edi
        call wrapper
        pop %rbx
        ret
        .size outer, .-outer
        .type nothing, @function
    nothing: ret
        .size nothing, .-nothing
        .type stacked, @function
    stacked: mov 8(%rsp), %rax
        syscall
        ret
        .size stacked, .-stacked
        .type never, @function
    never: mov $160, %edi
        call wrapper
        ret
        .size never, .-never
    ";
    let Some(report) = assembled(source) else { return };
    assert_eq!(numbers(&report), [39, 60, 102, 104, 107], "160 is not reached");
    assert_eq!((report.sites, report.resolved), (2, 2));
    let sources =
        |number: u32| report.calls[&number].sources.iter().map(|source| source.function.clone()).collect::<Vec<_>>();
    assert_eq!(sources(104), ["_start"], "who chose it");
}

#[test]
fn a_number_in_a_structure_is_found_where_the_structure_is_filled() {
    // As the C library changes the user in all threads: a command on the stack, kept in a variable
    // for a signal handler.
    let source = "
        struct command { int number; long id[3]; };
        static struct command *volatile current;
        __attribute__((noipa)) static long enter(long number, long one) {
            long result;
            __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number), \"D\"(one) : \"rcx\", \"r11\", \"memory\");
            return result;
        }
        __attribute__((noipa)) static void handler(int signal) { enter(current->number, current->id[0]); }
        void (*volatile handlers[2])(int) = { handler };
        __attribute__((noipa)) static long broadcast(struct command *command) {
            current = command;
            handlers[0](3);
            return enter(command->number, command->id[0]);
        }
        __attribute__((noipa)) static long set_user(long id) {
            struct command command = { .number = 105, .id = { id } };
            return broadcast(&command);
        }
        __attribute__((noipa)) static long set_group(long id) {
            struct command command = { .number = 106, .id = { id } };
            return broadcast(&command);
        }
        void _start(void) { set_user(1); set_group(2); enter(60, 0); for (;;) { } }
    ";
    for level in ["-O1", "-O2", "-Os"] {
        for pic in ["-fno-pic", "-fPIC"] {
            let Some(bytes) = gcc("c", source, &[BARE, &[level, pic]].concat()) else { return };
            let report = alone(&bytes);
            assert_eq!(numbers(&report), [60, 105, 106], "{level} {pic} {:?}", report.unresolved);
            assert!(report.is_complete(), "{level} {pic}");
        }
    }
}

#[test]
fn a_switch_over_numbers_keeps_them_apart() {
    let source = "
        __attribute__((noipa)) static long enter(long number) {
            long result;
            __asm__ volatile(\"syscall\" : \"=a\"(result) : \"a\"(number) : \"rcx\", \"r11\", \"memory\");
            return result;
        }
        __attribute__((noipa)) static void pick(int what) {
            switch (what) {
            case 0: enter(39); break;
            case 1: enter(102); *(volatile int *)8 = 1; break;
            case 2: enter(104); *(volatile int *)9 = 1; break;
            case 3: enter(107); *(volatile int *)7 = 1; break;
            case 4: enter(108); *(volatile int *)6 = 1; break;
            case 5: enter(110); *(volatile int *)5 = 1; break;
            case 6: enter(111); *(volatile int *)4 = 1; break;
            default: enter(24);
            }
        }
        void _start(int argument) { pick(argument); for (;;) { } }
    ";
    for pic in ["-fno-pic", "-fPIC"] {
        let Some(bytes) = gcc("c", source, &[BARE, &["-O2", pic]].concat()) else { return };
        let report = alone(&bytes);
        assert_eq!(numbers(&report), [24, 39, 102, 104, 107, 108, 110, 111], "{pic}");
        assert!(report.is_complete());
    }
}

#[test]
fn what_is_not_known_means_every_call_until_somebody_vouches() {
    let source = "
        .globl _start
        .type _start, @function
    _start: mov $39, %eax
        syscall
        call computed
        lea table(%rip), %rbx
        call *(%rbx)
        hlt
        .size _start, .-_start
        .type computed, @function
    computed: rdtsc
        and $127, %eax
        syscall
        ret
        .size computed, .-computed
        .type pointed, @function
    pointed: mov %edi, %eax
        syscall
        ret
        .size pointed, .-pointed
        .type old, @function
    old: mov $20, %eax
        int $0x80
        ret
        .size old, .-old
        .data
    table: .quad pointed, old
    ";
    let Some(bytes) = gcc("S", source, BARE) else { return };
    let report = alone(&bytes);
    assert_eq!((report.sites, report.resolved), (4, 1));
    let mut why: Vec<(&str, Why)> =
        report.unresolved.iter().map(|site| (site.function.as_str(), site.why.clone())).collect();
    why.sort();
    assert_eq!(why, [("computed", Why::Computed), ("old", Why::Interrupt), ("pointed", Why::Pointer)]);
    assert!(!report.is_complete());
    assert!(report.names().contains("kexec_load"), "any call may be made");
    let rule = |function: &str, calls: &str| {
        format!("[[site]]\nobject = \"program\"\nfunction = \"{function}\"\ncalls = [{calls}]\n")
    };
    let text = [rule("computed", "\"getuid\""), rule("old", ""), rule("pointed", "\"getgid\", \"sync\"")].concat();
    let options = Options { policy: crate::analysis::Policy::parse(&text).unwrap(), ..Options::default() };
    let report = with(&bytes, &options);
    assert_eq!((report.unresolved.len(), report.vouched), (0, 3));
    assert_eq!(numbers(&report), [39, 102, 104, 162]);
    assert_eq!(report.names().len(), 5, "and execve: {:?}", report.names());
    let mut options = Options::default();
    options
        .policy
        .trace("101 12:00:01 getpid() = 7\n<... nanosleep resumed>) = 0\n  0.00 0.0 0 3 write\n+++ exited +++\n")
        .unwrap();
    let report = with(&bytes, &options);
    assert!(report.is_complete());
    assert_eq!(
        report.names().into_iter().collect::<Vec<_>>(),
        ["execve", "getpid", "nanosleep", "restart_syscall", "write"]
    );
}

#[test]
fn arguments_are_told_where_they_are_constants() {
    let source = "
        .globl _start
        .type _start, @function
    _start: mov $2, %esi
        call control
        mov $4, %esi
        call control
        mov $231, %eax
        xor %edi, %edi
        syscall
        hlt
        .size _start, .-_start
        .type control, @function
    control: mov $72, %eax
        mov $-100, %rdi
        syscall
        ret
        .size control, .-control
    ";
    let Some(bytes) = gcc("S", source, BARE) else { return };
    let report = with(&bytes, &Options { with_arguments: true, ..Options::default() });
    let argument = |call: u32, number: usize| {
        report.calls[&call].arguments[number].as_ref().map(|all| all.iter().copied().collect::<Vec<u64>>())
    };
    assert_eq!(argument(72, 0), Some(vec![-100i64 as u64]));
    assert_eq!(argument(72, 1), Some(vec![2, 4]));
    assert_eq!(argument(72, 2), None, "what it was at the start");
    assert_eq!(argument(231, 0), Some(vec![0]));
}

#[test]
fn values_do_not_survive_what_may_change_them() {
    // A callee that gets the address of a place may write there; calls clobber registers; unknown
    // stores do not reach the stack.
    let source = "
        .globl _start
        .type _start, @function
    _start: sub $24, %rsp
        movl $39, 8(%rsp)
        lea 8(%rsp), %rdi
        call change
        mov 8(%rsp), %eax
        syscall
        mov $102, %ecx
        call change
        mov %ecx, %eax
        syscall
        mov $104, %ebx
        call change
        mov %ebx, %eax
        syscall
        movl $107, (%rsp)
        mov %rsi, %rax
        movl $1, (%rax)
        hlt
        .size _start, .-_start
        .type change, @function
    change: movl $60, (%rdi)
        rdtsc
        ret
        .size change, .-change
    ";
    let Some(report) = assembled(source) else { return };
    assert_eq!((report.sites, report.resolved), (3, 1));
    assert_eq!(numbers(&report), [104], "what a callee keeps");
}

#[test]
fn an_address_that_is_only_compared_is_not_called() {
    // As musl's handler of cancellation looks whether it interrupted the wrapper.
    let source = |last: &str| {
        format!(
            "
        .globl _start
        .type _start, @function
    _start: mov $39, %edi
        call wrapper
        lea wrapper(%rip), %rcx
        cmp %rcx, %rsi
        jb 1f
        {last}
    1:  mov $102, %eax
        syscall
        hlt
        .size _start, .-_start
        .type wrapper, @function
    wrapper: mov %edi, %eax
        syscall
        ret
        .size wrapper, .-wrapper
    "
        )
    };
    for (last, is_complete) in
        [("nop", true), ("call *%rcx", false), ("mov %rcx, 8(%rsp)", false), ("jmp wrapper", false)]
    {
        let Some(report) = assembled(&source(last)) else { return };
        assert_eq!(report.is_complete(), is_complete, "{last}: {:?}", report.unresolved);
    }
}
