//! The functions whose places this library takes.

use std::{
    ffi::{CStr, c_void},
    sync::atomic::{AtomicPtr, Ordering},
};

/// A function of the C library, or of another one that comes after this.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The address of the function.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // A program calls by this name what the C library does not have.
            std::process::abort();
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Functions in the places of others; `next` calls the one whose place it is.
macro_rules! calls {
    ($next:ident: $(fn $name:ident($($arg:ident: $of:ty),* $(,)?) -> $to:ty $body:block)*) => {
        $(
            /// # Safety
            ///
            /// The same as of the function of this name.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $of),*) -> $to {
                #[allow(unused_variables, reason = "a function that is never passed on")]
                let $next = |$($arg: $of),*| -> $to {
                    const NAME: &std::ffi::CStr =
                        match std::ffi::CStr::from_bytes_with_nul(
                            concat!(stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => c"",
                        };
                    static NEXT: $crate::next::Next = $crate::next::Next::new(NAME);
                    // SAFETY: the function of this name has this type.
                    let function: unsafe extern "C" fn($($of),*) -> $to =
                        unsafe { std::mem::transmute(NEXT.get()) };
                    // SAFETY: as of this function.
                    unsafe { function($($arg),*) }
                };
                $body
            }
        )*
    };
}
/// Functions before which something is done with their first argument, and that go on then.
macro_rules! calls_after {
    ($before:path: $(
        fn $name:ident($first:ident: $of_first:ty $(, $arg:ident: $of:ty)* $(,)?) -> $to:ty;
    )*) => {
        $crate::next::calls! { next:
            $(
                fn $name($first: $of_first $(, $arg: $of)*) -> $to {
                    $before($first);
                    next($first $(, $arg)*)
                }
            )*
        }
    };
}
pub(crate) use {calls, calls_after};
