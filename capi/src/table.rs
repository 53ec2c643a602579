//! Handles that C holds, and what each stands for.
//!
//! A handle has the type of a pointer and is none: a slot's number, the number of its user, and a
//! kind. Nothing is ever read through it. A handle that was closed, or is of another kind, is found
//! out instead of being followed, and closing one while another thread uses it is harmless: that
//! thread has its own reference.

use std::{
    marker::PhantomData,
    ptr,
    sync::{Arc, atomic::AtomicU32},
};

use parking_lot::{RawRwLock, RwLock, lock_api::RawRwLock as _};

/// Number of forks that lead from the first process to this one: what a handle stands for belongs to
/// the process of the same number. (Asking for the process id would be a system call.)
pub(crate) static FORKS: AtomicU32 = AtomicU32::new(0);

/// Bits of a handle below the slot's number; they tell the kind.
const KIND_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = 32;
const SLOTS_MAX: usize = 1 << (GENERATION_SHIFT - KIND_BITS);

const _: () = assert!(usize::BITS == 64, "a handle needs 64 bits");

/// All open handles of one kind; `H` is the type by which C knows them.
pub(crate) struct Table<H, T> {
    kind: usize,
    slots: RwLock<Slots<T>>,
    handle: PhantomData<fn(H)>,
}

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    /// Counts the users of the slot, from 1.
    generation: u32,
    value: Option<Arc<T>>,
}

impl<H, T> Table<H, T> {
    /// An empty table for a kind from 1 to 15.
    pub(crate) const fn new(kind: usize) -> Table<H, T> {
        assert!(kind > 0 && kind < 1 << KIND_BITS);
        let slots = Slots { all: Vec::new(), free: Vec::new() };
        Table { kind, slots: RwLock::new(slots), handle: PhantomData }
    }

    /// A new handle; `None` when there are too many.
    pub(crate) fn insert(&self, value: Arc<T>) -> Option<*mut H> {
        let mut slots = self.slots.write();
        let index = match slots.free.pop() {
            Some(index) => index,
            None if slots.all.len() < SLOTS_MAX => {
                slots.all.push(Slot { generation: 0, value: None });
                slots.all.len() - 1
            }
            None => return None,
        };
        let slot = &mut slots.all[index];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.value = Some(value);
        let generation = (slot.generation as usize) << GENERATION_SHIFT;
        Some(ptr::without_provenance_mut(generation | index << KIND_BITS | self.kind))
    }

    /// Finds the value that an open handle stands for.
    pub(crate) fn get(&self, handle: *mut H) -> Option<Arc<T>> {
        let (index, generation) = self.split(handle)?;
        let slots = self.slots.read();
        let slot = slots.all.get(index)?;
        if slot.generation == generation { slot.value.clone() } else { None }
    }

    /// Closes a handle.
    pub(crate) fn remove(&self, handle: *mut H) -> Option<Arc<T>> {
        let (index, generation) = self.split(handle)?;
        let mut slots = self.slots.write();
        let slot = slots.all.get_mut(index)?;
        if slot.generation != generation {
            return None;
        }
        let value = slot.value.take()?;
        slots.free.push(index);
        Some(value)
    }

    /// Takes the lock of the table, until [`Table::release`].
    pub(crate) fn hold(&self) {
        std::mem::forget(self.slots.write());
    }

    /// Gives back the lock that [`Table::hold`] has taken.
    pub(crate) fn release(&self) {
        // SAFETY: `hold` has taken the lock for writing and has forgotten its guard, and only the
        // thread that did comes here.
        unsafe { self.slots.raw().unlock_exclusive() };
    }

    /// Makes the lock anew in a child of the thread that has it: those that wait for it in the
    /// parent are no threads here, and it would be handed to one of them.
    pub(crate) fn renew(&self) {
        // SAFETY: nobody locks or unlocks meanwhile: a child has one thread.
        let lock = ptr::from_ref(unsafe { self.slots.raw() }).cast_mut();
        // SAFETY: as above; a lock is all atomic cells, and nothing borrows it.
        unsafe { lock.write(RawRwLock::INIT) };
    }

    fn split(&self, handle: *mut H) -> Option<(usize, u32)> {
        let bits = handle.addr();
        let kind = bits & ((1 << KIND_BITS) - 1);
        let generation = u32::try_from(bits >> GENERATION_SHIFT).ok()?;
        let index = (bits & ((1 << GENERATION_SHIFT) - 1)) >> KIND_BITS;
        (kind == self.kind).then_some((index, generation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Opaque;

    #[test]
    fn a_closed_handle_is_found_out_also_when_its_slot_is_used_again() {
        let table = Table::<Opaque, u32>::new(3);
        let first = table.insert(Arc::new(1)).unwrap();
        assert_eq!(table.get(first).as_deref(), Some(&1));
        assert_eq!(table.remove(first).as_deref(), Some(&1));
        assert_eq!((table.get(first), table.remove(first)), (None, None));
        let second = table.insert(Arc::new(2)).unwrap();
        assert_eq!((table.get(first), table.get(second).as_deref()), (None, Some(&2)));
    }

    #[test]
    fn handles_of_another_kind_and_pointers_are_none() {
        let (files, dirs) = (Table::<Opaque, u32>::new(1), Table::<Opaque, u32>::new(2));
        let file = files.insert(Arc::new(1)).unwrap();
        assert!(!file.is_null());
        assert_eq!((dirs.get(file), files.get(ptr::null_mut())), (None, None));
        let mut local = Opaque;
        assert_eq!(files.get(&raw mut local), None);
    }
}
