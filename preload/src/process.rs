//! Calls that make processes, or hand descriptors on in ways of their own: the kernel must know all
//! descriptors before.

use std::{
    arch::naked_asm,
    ffi::{c_int, c_long},
};

use crate::{calls::rest, next::Next, swap};

/// Before a call that hands descriptors on.
extern "C" fn swap_all(_: c_long) {
    swap::all();
}

/// Before syscall(2), of which this is the number.
extern "C" fn before_syscall(number: c_long) {
    // Called often, and nothing to do with descriptors.
    const HARMLESS: [c_long; 14] = [
        libc::SYS_futex,
        libc::SYS_gettid,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_membarrier,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_tgkill,
        libc::SYS_getcpu,
        libc::SYS_rseq,
        libc::SYS_madvise,
    ];
    const OTHER_RIGHTS: [c_long; 16] = [
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setfsuid,
        libc::SYS_setfsgid,
        libc::SYS_capset,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_chroot,
        libc::SYS_pivot_root,
        libc::SYS_prctl,
        libc::SYS_seccomp,
        libc::SYS_landlock_restrict_self,
    ];
    if OTHER_RIGHTS.contains(&number) {
        rest();
    } else if !HARMLESS.contains(&number) {
        swap::all();
    }
}

/// Before prctl(2), of which this is the option.
extern "C" fn before_prctl(option: c_long) {
    let restricts = [libc::PR_SET_SECCOMP, libc::PR_SET_NO_NEW_PRIVS, libc::PR_CAPBSET_DROP];
    if restricts.into_iter().any(|restricts| c_long::from(restricts) == option) {
        rest();
    }
}

/// Functions before which something is done, and that go on as the ones whose places they take, with
/// all arguments where they are: some return twice, or take any number of them.
macro_rules! passes {
    ($($name:ident $text:literal $next:ident $before:ident;)*) => {
        $(
            extern "C" fn $next() -> *mut std::ffi::c_void {
                static NEXT: Next = Next::new($text);
                NEXT.get()
            }

            /// # Safety
            ///
            /// The same as of the function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() -> c_int {
                // Words and vectors that may have arguments. With the return address the stack is
                // aligned to 16 bytes for the calls.
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "sub rsp, 128",
                    "movups [rsp], xmm0",
                    "movups [rsp + 16], xmm1",
                    "movups [rsp + 32], xmm2",
                    "movups [rsp + 48], xmm3",
                    "movups [rsp + 64], xmm4",
                    "movups [rsp + 80], xmm5",
                    "movups [rsp + 96], xmm6",
                    "movups [rsp + 112], xmm7",
                    "call {before}",
                    "call {next}",
                    "mov r11, rax",
                    "movups xmm0, [rsp]",
                    "movups xmm1, [rsp + 16]",
                    "movups xmm2, [rsp + 32]",
                    "movups xmm3, [rsp + 48]",
                    "movups xmm4, [rsp + 64]",
                    "movups xmm5, [rsp + 80]",
                    "movups xmm6, [rsp + 96]",
                    "movups xmm7, [rsp + 112]",
                    "add rsp, 128",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    before = sym $before,
                    next = sym $next,
                )
            }
        )*
    };
}

passes! {
    fork c"fork" next_fork swap_all;
    _Fork c"_Fork" next_bare_fork swap_all;
    forkpty c"forkpty" next_forkpty swap_all;
    vfork c"vfork" next_vfork swap_all;
    clone c"clone" next_clone swap_all;
    posix_spawn c"posix_spawn" next_posix_spawn swap_all;
    posix_spawnp c"posix_spawnp" next_posix_spawnp swap_all;
    system c"system" next_system swap_all;
    popen c"popen" next_popen swap_all;
    execl c"execl" next_execl swap_all;
    execle c"execle" next_execle swap_all;
    execlp c"execlp" next_execlp swap_all;
    execv c"execv" next_execv swap_all;
    execve c"execve" next_execve swap_all;
    execvp c"execvp" next_execvp swap_all;
    execvpe c"execvpe" next_execvpe swap_all;
    execveat c"execveat" next_execveat swap_all;
    fexecve c"fexecve" next_fexecve swap_all;
    sendmsg c"sendmsg" next_sendmsg swap_all;
    sendmmsg c"sendmmsg" next_sendmmsg swap_all;
    select c"select" next_select swap_all;
    pselect c"pselect" next_pselect swap_all;
    __poll_chk c"__poll_chk" next_poll_chk_ swap_all;
    __ppoll_chk c"__ppoll_chk" next_ppoll_chk_ swap_all;
    aio_read c"aio_read" next_aio_read swap_all;
    aio_read64 c"aio_read64" next_aio_read64 swap_all;
    aio_write c"aio_write" next_aio_write swap_all;
    aio_write64 c"aio_write64" next_aio_write64 swap_all;
    aio_fsync c"aio_fsync" next_aio_fsync swap_all;
    aio_fsync64 c"aio_fsync64" next_aio_fsync64 swap_all;
    lio_listio c"lio_listio" next_lio_listio swap_all;
    lio_listio64 c"lio_listio64" next_lio_listio64 swap_all;
    daemon c"daemon" next_daemon swap_all;
    dprintf c"dprintf" next_dprintf swap_all;
    vdprintf c"vdprintf" next_vdprintf swap_all;
    __dprintf_chk c"__dprintf_chk" next_dprintf_chk_ swap_all;
    __vdprintf_chk c"__vdprintf_chk" next_vdprintf_chk_ swap_all;
    syscall c"syscall" next_syscall before_syscall;
    prctl c"prctl" next_prctl before_prctl;
}
