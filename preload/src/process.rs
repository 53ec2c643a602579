//! Calls that make processes, or make this one another: the kernel must know all descriptors before.

use std::{arch::naked_asm, ffi::c_int};

use crate::{next::Next, swap};

extern "C" fn swap_all() {
    swap::all();
}

/// Functions that have the kernel know all descriptors, and go on as the ones whose places they
/// take, with all arguments where they are: some return twice, or take any number of them.
macro_rules! passes {
    ($($name:ident $text:literal $next:ident;)*) => {
        $(
            extern "C" fn $next() -> *mut std::ffi::c_void {
                static NEXT: Next = Next::new($text);
                NEXT.get()
            }

            /// # Safety
            ///
            /// As of the function of this name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() -> c_int {
                // Seven words, so that the stack stays aligned to 16 bytes for the calls.
                naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    "push rcx",
                    "push r8",
                    "push r9",
                    "push rax",
                    "call {swap}",
                    "call {next}",
                    "mov r11, rax",
                    "pop rax",
                    "pop r9",
                    "pop r8",
                    "pop rcx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    "jmp r11",
                    swap = sym swap_all,
                    next = sym $next,
                )
            }
        )*
    };
}

passes! {
    fork c"fork" next_fork;
    vfork c"vfork" next_vfork;
    clone c"clone" next_clone;
    posix_spawn c"posix_spawn" next_posix_spawn;
    posix_spawnp c"posix_spawnp" next_posix_spawnp;
    system c"system" next_system;
    popen c"popen" next_popen;
    execl c"execl" next_execl;
    execle c"execle" next_execle;
    execlp c"execlp" next_execlp;
    execv c"execv" next_execv;
    execve c"execve" next_execve;
    execvp c"execvp" next_execvp;
    execvpe c"execvpe" next_execvpe;
    execveat c"execveat" next_execveat;
    fexecve c"fexecve" next_fexecve;
    syscall c"syscall" next_syscall;
    sendmsg c"sendmsg" next_sendmsg;
    sendmmsg c"sendmmsg" next_sendmmsg;
    select c"select" next_select;
    pselect c"pselect" next_pselect;
    aio_read c"aio_read" next_aio_read;
    aio_write c"aio_write" next_aio_write;
    lio_listio c"lio_listio" next_lio_listio;
    daemon c"daemon" next_daemon;
}
