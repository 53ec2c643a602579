//! `libpando_region.so`: by it the programs of a region reach it beside the mount.
//!
//! `pando region run`, and `exec`, have it loaded into the programs that they start (`LD_PRELOAD`).
//! The library's functions take the places of those of the C library (`calls`). A call whose path leads into
//! the region ([`place`]) becomes one message to the region's process ([`channel`]), and everything
//! else goes on to the C library: calls elsewhere, and all that the region answers with "ask the
//! mount". A program sees the same file system in both ways, so it is never wrong to ask the mount,
//! only slower. That holds for programs without this library, too.
//!
//! A file that was opened by a message has a *virtual descriptor* ([`files`]): a number that the
//! kernel has for nothing, and this process for a handle. Before the kernel or another process must
//! know it, it is *swapped* for a descriptor of the mount's: for a lock, a mapping, a copy of the
//! descriptor, a child.
//!
//! No function here allocates, takes a lock that a signal handler could meet taken by its own thread, or
//! runs before it is asked. Calls that the kernel makes anew after a signal are made anew.
//!
//! Invariant: a number that the program has closed is not taken for a virtual descriptor.

#![expect(
    unsafe_code,
    reason = "this takes the places of functions of C, and follows C's pointers"
)]
#![expect(unreachable_pub, reason = "functions are exported by their names")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod calls;
mod channel;
mod files;
mod next;
mod place;
mod process;
mod raw;
mod site;
mod swap;
