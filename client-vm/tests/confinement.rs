//! The confinement, tried from inside: this program itself, started once more, confines itself and then tries what it must
//! not be able to do; so do a thread and a program that it starts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixStream;
use std::process::Command;

use client_vm::confinement::confine;
use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::{get_dumpable, get_no_new_privs};
use nix::sys::resource::{Resource, getrlimit};

/// What the started program is: see [`inside`].
const PART: &str = "SPLITDROP_TEST_PART";
/// A program that was started by one that has confined itself.
const CHILD: &str = "child";
/// A program that confines itself.
const CONFINED: &str = "confined";
/// What a program that got to the end says.
const DONE: &str = "everything was tried";
/// The bit for the other way to make system calls on x86-64.
const X32: i64 = 0x4000_0000;

/// Makes a system call with three numbers and gives its error.
#[expect(unsafe_code, reason = "there is no other way to make a call that no library offers")]
fn call(number: i64, arguments: [i64; 3]) -> Option<Errno> {
    let [first, second, third] = arguments;
    // SAFETY: the calls made here take numbers, or a pointer that is null, which the kernel refuses.
    let result = unsafe { libc::syscall(number, first, second, third) };
    (result == -1).then(Errno::last)
}

fn socket(family: i32) -> Option<Errno> {
    call(libc::SYS_socket, [family.into(), libc::SOCK_DGRAM.into(), 0])
}

const FAMILIES: [i32; 8] = [
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_PACKET,
    libc::AF_NETLINK,
    libc::AF_VSOCK,
    libc::AF_BLUETOOTH,
    libc::AF_UNSPEC,
    // None yet.
    4711,
];

fn try_everything() {
    for family in FAMILIES {
        assert_eq!(socket(family), Some(Errno::EACCES), "{family}");
        let pair = call(libc::SYS_socketpair, [family.into(), libc::SOCK_STREAM.into(), 0]);
        assert_eq!(pair, Some(Errno::EACCES), "{family}");
    }
    // The kernel reads 32 bits of the family, and so must the filter.
    let high = (1 << 32) | i64::from(libc::AF_INET);
    assert_eq!(call(libc::SYS_socket, [high, libc::SOCK_STREAM.into(), 0]), Some(Errno::EACCES));
    assert_eq!(call(libc::SYS_io_uring_setup, [1, 0, 0]), Some(Errno::EACCES));
    if cfg!(target_arch = "x86_64") {
        for number in [libc::SYS_socket, libc::SYS_io_uring_setup] {
            let arguments = [libc::AF_INET.into(), libc::SOCK_STREAM.into(), 0];
            assert_eq!(call(number | X32, arguments), Some(Errno::EACCES));
        }
    }
    assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
    // And what is needed works.
    assert_eq!(socket(libc::AF_UNIX), None);
    UnixStream::pair().unwrap();
    assert_eq!(get_no_new_privs(), Ok(true));
    assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
}

fn start(part: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inside", "--nocapture"])
        .env(PART, part)
        .output()
        .unwrap();
    assert!(output.status.success(), "{part}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the started program does; without its variable, nothing.
#[test]
fn inside() {
    match std::env::var(PART).as_deref() {
        Ok(CONFINED) => {
            assert_eq!((socket(libc::AF_INET), get_dumpable()), (None, Ok(true)), "before it is confined");
            confine().unwrap();
            try_everything();
            assert_eq!(get_dumpable(), Ok(false));
            std::thread::spawn(try_everything).join().unwrap();
            assert!(start(CHILD).contains(DONE));
            // Filters add up: the daemon that a command starts confines itself once more.
            confine().unwrap();
            try_everything();
        }
        Ok(CHILD) => try_everything(),
        _nothing => return,
    }
    println!("{DONE}");
}

#[test]
fn neither_this_program_nor_what_it_starts_makes_a_socket_of_another_family() {
    assert!(start(CONFINED).contains(DONE));
}
