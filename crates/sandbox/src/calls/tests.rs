use syscalls::number;

use super::*;

const ROLES: [Role; 7] =
    [Role::Server, Role::RemoteServer, Role::Archive, Role::Tree, Role::Converter, Role::LocalMount, Role::RemoteMount];
const PROCESSORS: [Arch; 3] = [Arch::X86_64, Arch::Aarch64, Arch::Arm];

const ALLOW: u32 = 0x7fff_0000;
const NOT_PERMITTED: u32 = 0x0005_0000 | EPERM;
const NOT_IMPLEMENTED: u32 = 0x0005_0000 | ENOSYS;

/// What the filter of a role answers; `None` where the processor has no such call.
fn answer(role: Role, arch: Arch, name: &str, arguments: [u64; 6]) -> Option<u32> {
    let filter = Filter::new(&profile(role), arch).expect("a filter");
    filter.answer(arch, number(arch, name)?, arguments)
}

#[test]
fn every_name_in_the_lists_is_one_of_a_system_call() {
    let lists = [RUN, DESCRIPTORS, NAMES, CONNECTIONS, CONNECT, UNPACK, REFUSED];
    for name in lists.into_iter().flatten() {
        assert!(PROCESSORS.iter().any(|arch| number(*arch, name).is_some()), "{name}");
    }
}

#[test]
fn each_role_may_do_its_work_and_no_more() {
    // family, kind, protocol
    let (tcp, udp, local) = ([2, 0x80801, 6, 0, 0, 0], [10, 2, 0, 0, 0, 0], [1, 0x80001, 0, 0, 0, 0]);
    let (raw, netlink, packet) = ([2, 3, 0, 0, 0, 0], [16, 3, 0, 0, 0, 0], [17, 3, 0, 0, 0, 0]);
    for (role, arch) in ROLES.into_iter().flat_map(|role| PROCESSORS.map(|arch| (role, arch))) {
        let says = |name: &str, arguments: [u64; 6]| answer(role, arch, name, arguments).unwrap_or(NOT_PERMITTED);
        let is = |allowed: bool| if allowed { ALLOW } else { NOT_PERMITTED };
        let (serves, converter) = (matches!(role, Role::Server | Role::RemoteServer), role == Role::Converter);
        let remote = matches!(role, Role::RemoteMount | Role::RemoteServer);
        let speaks = serves || matches!(role, Role::LocalMount | Role::RemoteMount);
        for name in ["read", "openat", "futex", "setpriority", "exit_group"] {
            assert_eq!(says(name, [0; 6]), ALLOW, "{role:?} {arch:?} {name}");
        }
        for name in ["ptrace", "mount", "umount2", "unshare", "setns", "bpf", "init_module", "listen", "pivot_root"] {
            assert_eq!(says(name, [0; 6]), NOT_PERMITTED, "{role:?} {arch:?} {name}");
        }
        for name in ["clone3", "io_setup", "quotactl", "swapon"] {
            assert_eq!(says(name, [0; 6]), NOT_IMPLEMENTED, "{role:?} {arch:?} {name}");
        }
        for socket in [tcp, udp] {
            assert_eq!(says("socket", socket), is(remote), "{role:?} {arch:?} {socket:?}");
        }
        for socket in [local, raw, netlink, packet] {
            assert_eq!(says("socket", socket), NOT_PERMITTED, "{role:?} {arch:?} {socket:?}");
        }
        assert_eq!(says("connect", [0; 6]), is(remote), "{role:?} {arch:?}");
        assert_eq!(says("accept4", [0; 6]) == ALLOW, speaks, "{role:?} {arch:?}");
        assert_eq!(says("socketpair", local), is(serves), "{role:?} {arch:?}");
        assert_eq!(says("socketpair", [1, 0x80002, 0, 0, 0, 0]), NOT_PERMITTED, "{role:?} {arch:?}");
        assert_eq!(says("execve", [0; 6]), is(converter), "{role:?} {arch:?}");
        let mounts = matches!(role, Role::LocalMount | Role::RemoteMount);
        assert_eq!(says("unshare", [0x400, 0, 0, 0, 0, 0]), is(mounts), "{role:?} {arch:?}: descriptors");
        assert_eq!(says("unshare", [0x1000_0400, 0, 0, 0, 0, 0]), NOT_PERMITTED, "{role:?} {arch:?}: users");
        assert_eq!(says("clone", [0x003d_0f00, 0, 0, 0, 0, 0]), ALLOW, "{role:?} {arch:?}: a thread");
        assert_eq!(says("clone", [17, 0, 0, 0, 0, 0]), is(converter), "{role:?} {arch:?}: a process");
        assert_eq!(says("clone", [0x1000_0011, 0, 0, 0, 0, 0]), NOT_PERMITTED, "{role:?} {arch:?}: a name space");
        assert_eq!(says("ioctl", [0, 0x5413, 0, 0, 0, 0]), ALLOW, "{role:?} {arch:?}");
        assert_ne!(says("ioctl", [0, 0x5412, 0, 0, 0, 0]), ALLOW, "{role:?} {arch:?}: TIOCSTI");
        assert_eq!(says("prctl", [15, 0, 0, 0, 0, 0]), ALLOW, "{role:?} {arch:?}");
        assert_eq!(says("prctl", [4, 1, 0, 0, 0, 0]) == ALLOW, converter, "{role:?} {arch:?}: dumpable");
    }
}
