use super::*;
use crate::names;

const ALLOW: u32 = 0x7fff_0000;
const NO_SUCH_CALL: u32 = 0x0005_0026;

fn filter(text: &str) -> Filter {
    Filter::new(&Profile::parse(text).unwrap(), Arch::X86_64).unwrap()
}

/// A profile that denies all but one call under one condition on its second argument.
fn condition_of(op: &str, value: u64, two: u64) -> Filter {
    filter(&format!(
        r#"{{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"syscalls":[{{"names":["ioctl"],"action":"SCMP_ACT_ALLOW",
        "args":[{{"index":1,"value":{value},"valueTwo":{two},"op":"{op}"}}]}}]}}"#
    ))
}

#[test]
fn exactly_the_named_calls_are_allowed() {
    let allowed = ["read", "write", "execve", "exit_group", "mseal", "getpid", "restart_syscall"];
    for arch in [Arch::X86_64, Arch::Aarch64, Arch::Arm] {
        let profile = Profile::allowing(arch, allowed);
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(Profile::parse(&text).unwrap(), profile);
        let filter = Filter::new(&profile, arch).unwrap();
        for (number, name) in names(arch) {
            let expected = if allowed.contains(&name) { ALLOW } else { NO_SUCH_CALL };
            assert_eq!(filter.answer(arch, number, [7; 6]), Some(expected), "{arch:?} {name}");
        }
        for number in [500, 10_000, 0x4000_0000, 0x4000_0001, u32::MAX] {
            assert_eq!(filter.answer(arch, number, [0; 6]), Some(NO_SUCH_CALL), "{arch:?} {number}");
        }
        let other = if arch == Arch::Arm { Arch::X86_64 } else { Arch::Arm };
        assert_eq!(filter.answer(other, 0, [0; 6]), Some(NO_SUCH_CALL), "calls of another architecture");
        assert!(filter.may_allow(&profile, arch, "execve") && !filter.may_allow(&profile, arch, "socket"));
    }
}

#[test]
fn arguments_are_compared_with_all_their_bits() {
    let big = 0x1_0000_0005u64;
    let values = [0, 4, 5, 6, 0xffff_ffff, big - 1, big, big + 1, 0x2_0000_0000, u64::MAX];
    for bound in [0, 5, 0xffff_ffff, big, u64::MAX] {
        for value in values {
            let cases: [(&str, bool); 6] = [
                ("SCMP_CMP_NE", value != bound),
                ("SCMP_CMP_LT", value < bound),
                ("SCMP_CMP_LE", value <= bound),
                ("SCMP_CMP_EQ", value == bound),
                ("SCMP_CMP_GE", value >= bound),
                ("SCMP_CMP_GT", value > bound),
            ];
            for (op, holds) in cases {
                let answer = condition_of(op, bound, 0).answer(Arch::X86_64, 16, [0, value, 0, 0, 0, 0]);
                assert_eq!(answer, Some(if holds { ALLOW } else { NO_SUCH_CALL }), "{value:#x} {op} {bound:#x}");
            }
        }
    }
    let masked = condition_of("SCMP_CMP_MASKED_EQ", 0xff_0000_00f0, 0x12_0000_0030);
    for (value, holds) in [(0x12_0000_0030, true), (0xab12_5555_053f, true), (0x12_0000_0040, false), (0x30, false)] {
        let answer = masked.answer(Arch::X86_64, 16, [0, value, 0, 0, 0, 0]);
        assert_eq!(answer, Some(if holds { ALLOW } else { NO_SUCH_CALL }), "{value:#x}");
    }
}

#[test]
fn all_conditions_of_a_rule_must_hold_and_one_rule_of_several() {
    let text = r#"{"defaultAction":"SCMP_ACT_KILL_PROCESS","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_X86"],"syscalls":[
        {"names":["socket"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"},
            {"index":1,"value":2,"op":"SCMP_CMP_EQ"}]},
        {"names":["socket"],"action":"SCMP_ACT_ERRNO","errnoRet":97,"args":[{"index":0,"value":16,"op":"SCMP_CMP_EQ"}]},
        {"names":["personality"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":0,"op":"SCMP_CMP_EQ"},
            {"index":0,"value":8,"op":"SCMP_CMP_EQ"}]}]}"#;
    let filter = filter(text);
    let socket = |family, kind| filter.answer(Arch::X86_64, 41, [family, kind, 0, 0, 0, 0]).unwrap();
    assert_eq!((socket(1, 2), socket(1, 3), socket(2, 2)), (ALLOW, 0x8000_0000, 0x8000_0000));
    assert_eq!(socket(16, 2), 0x0005_0061);
    let personality = |value| filter.answer(Arch::X86_64, 135, [value, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!((personality(0), personality(8), personality(1)), (ALLOW, ALLOW, 0x8000_0000));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let with = |change: &str| {
        format!(
            r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{{"names":["read"],"action":"SCMP_ACT_ALLOW"}}]{change}}}"#
        )
    };
    let refused = |text: &str| match Profile::parse(text).and_then(|profile| Filter::new(&profile, Arch::X86_64)) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    };
    assert!(Profile::parse(&with("")).is_ok());
    assert!(refused(&with(r#","listenerPath":"/x""#)).contains("listenerPath"));
    assert!(refused(&with(r#","flags":["SECCOMP_FILTER_FLAG_TSYNC"]"#)).contains("TSYNC"));
    assert!(refused(&with(r#","architectures":["SCMP_ARCH_ARM"]"#)).contains("SCMP_ARCH_ARM"));
    assert!(refused(r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#).contains("SCMP_ACT_NOTIFY"));
    assert!(refused(r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":70000}"#).contains("70000"));
    assert!(refused("[1, 2").contains("not a seccomp profile"));
    let rule = |rule: &str| format!(r#"{{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{rule}]}}"#);
    let wrong = rule(r#"{"names":["red"],"action":"SCMP_ACT_ERRNO"}"#);
    assert!(refused(&wrong).contains("red"), "a call that no architecture has is not denied by leaving it out");
    let index = r#"{"names":["read"],"action":"SCMP_ACT_ERRNO","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}"#;
    assert!(refused(&rule(index)).contains('6'));
    let op = r#"{"names":["read"],"action":"SCMP_ACT_ERRNO","args":[{"index":0,"value":0,"op":"SCMP_CMP_XX"}]}"#;
    assert!(refused(&rule(op)).contains("SCMP_CMP_XX"));
    let twice = r#"{"names":["read"],"action":"SCMP_ACT_ERRNO"},{"names":["read"],"action":"SCMP_ACT_TRAP"}"#;
    assert!(refused(&rule(twice)).contains("twice"));
}

#[test]
fn calls_of_other_interfaces_never_pass_a_profile_that_allows_by_default() {
    let filter = filter(
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["ptrace","swapon"],"action":"SCMP_ACT_ERRNO"}]}"#,
    );
    assert_eq!(filter.answer(Arch::X86_64, 101, [0; 6]), Some(0x0005_0001));
    assert_eq!(filter.answer(Arch::X86_64, 100, [0; 6]), Some(ALLOW));
    assert_eq!(filter.answer(Arch::X86_64, 0x4000_0000 + 521, [0; 6]), Some(NO_SUCH_CALL), "x32");
    assert_eq!(filter.answer(Arch::Arm, 26, [0; 6]), Some(NO_SUCH_CALL));
}

#[test]
fn a_profile_of_every_other_call_with_conditions_fits() {
    let rules: Vec<String> = names(Arch::X86_64)
        .step_by(2)
        .map(|(_, name)| {
            let condition = r#"{"index":2,"value":4294967301,"op":"SCMP_CMP_LE"}"#;
            format!(r#"{{"names":["{name}"],"action":"SCMP_ACT_ALLOW","args":[{condition}]}}"#)
        })
        .collect();
    let filter = filter(&format!(r#"{{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{}]}}"#, rules.join(",")));
    assert!(filter.instructions().len() > 1000 && filter.instructions().len() <= INSTRUCTIONS_MAX);
    for (position, (number, name)) in names(Arch::X86_64).enumerate() {
        let answers = [0, u64::MAX].map(|value| filter.answer(Arch::X86_64, number, [0, 0, value, 0, 0, 0]).unwrap());
        let expected = if position % 2 == 0 { [ALLOW, 0x0005_0001] } else { [0x0005_0001; 2] };
        assert_eq!(answers, expected, "{name}");
    }
}
