//! PID 1 of every pod sandbox: holds the pod's namespaces open and reaps orphans.
//!
//! Compiled by the build script to a static binary without libc, so that the pause image is one small
//! file. It blocks SIGINT, SIGTERM and SIGCHLD and takes them with `rt_sigtimedwait`: the kernel drops
//! signals that PID 1 neither handles nor blocks, and a blocked signal needs no handler, hence no
//! signal trampoline, which without libc would be ours to write.
#![no_std]
#![no_main]

use core::arch::asm;
use core::panic::PanicInfo;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const SIGPROCMASK: usize = 135;
    pub const WAIT4: usize = 260;
    pub const SIGTIMEDWAIT: usize = 137;
    pub const EXIT_GROUP: usize = 94;
}

const SIGINT: i64 = 2;
const SIGTERM: i64 = 15;
const SIGCHLD: i64 = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
/// The kernel's sigset: one 64-bit word, whose size the calls want to hear.
const SIGSET_BYTES: usize = 8;

#[cfg(target_arch = "x86_64")]
fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> i64 {
    let result: i64;
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") a, in("rsi") b,
             in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
fn syscall(number: usize, a: usize, b: usize, c: usize, d: usize) -> i64 {
    let result: i64;
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as i64 => result, in("x1") b,
             in("x2") c, in("x3") d, options(nostack));
    }
    result
}

// The stack is 16-byte aligned when the kernel jumps here and `extern "C"` code expects it to be off by
// one return address. Nothing below spills vector registers at this size, so no prologue repairs it.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let wanted: u64 = (1 << (SIGINT - 1)) | (1 << (SIGTERM - 1)) | (1 << (SIGCHLD - 1));
    let set = &raw const wanted as usize;
    syscall(number::SIGPROCMASK, SIG_BLOCK, set, 0, SIGSET_BYTES);
    loop {
        match syscall(number::SIGTIMEDWAIT, set, 0, 0, SIGSET_BYTES) {
            SIGINT | SIGTERM => exit(),
            // Signals of one kind merge while pending: reap until nobody is left.
            SIGCHLD => while syscall(number::WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {},
            // EINTR (stop and continue): wait again.
            _ => {}
        }
    }
}

fn exit() -> ! {
    loop {
        syscall(number::EXIT_GROUP, 0, 0, 0, 0);
    }
}

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    exit()
}
