//! The search classes of a table: each is kept once, under a number, for as long as entries use it.
//!
//! Users choose what is in a class, so classes are found in an ordered map: no choice makes it
//! slow.

use std::{collections::BTreeMap, sync::Arc};

use crate::SearchClass;

/// Number of a class in a table, below [`CLASSES_MAX`].
pub(super) type ClassNumber = u32;

/// Entries have 28 bits for the number of a class.
pub(super) const CLASSES_MAX: u32 = 1 << 28;
/// Number of the class that grants nobody. The class is always there.
pub(super) const NOTHING: ClassNumber = 0;
/// Number of the class that grants everybody. The class is always there.
pub(super) const ALL: ClassNumber = 1;

/// Bytes that a class takes beside its names: the class and its two counts, its places in the list
/// and in the map, and what the allocator adds to three allocations (estimated).
const CLASS_BYTES: usize = 192;
/// Bytes of one name of a class.
const NAME_BYTES: usize = 8;

#[derive(Debug, Clone)]
pub(super) struct Classes {
    kept: Vec<Kept>,
    free: Vec<ClassNumber>,
    numbers: BTreeMap<Arc<SearchClass>, ClassNumber>,
    bytes: usize,
}

#[derive(Debug, Clone)]
struct Kept {
    class: Arc<SearchClass>,
    /// Number of places in the table that hold the class; 0 for a free number.
    used: u32,
}

impl Classes {
    pub(super) fn new() -> Classes {
        let always = [SearchClass::Nothing, SearchClass::All];
        let kept = always.map(|class| Kept { class: Arc::new(class), used: 1 }).into();
        Classes { kept, free: Vec::new(), numbers: BTreeMap::new(), bytes: 0 }
    }

    pub(super) fn get(&self, number: ClassNumber) -> &SearchClass {
        &self.kept[number as usize].class
    }

    /// The number of a class for one more place; `None` where the class is new and does not fit in
    /// `room` bytes, or numbers have run out.
    pub(super) fn take(&mut self, class: &SearchClass, room: usize) -> Option<ClassNumber> {
        match class {
            SearchClass::Nothing => return Some(NOTHING),
            SearchClass::All => return Some(ALL),
            SearchClass::Some(_) => {}
        }
        if let Some(number) = self.numbers.get(class) {
            self.kept[*number as usize].used += 1;
            return Some(*number);
        }
        let bytes = Classes::bytes_of(class);
        if bytes > room {
            return None;
        }
        let kept = Kept { class: Arc::new(class.clone()), used: 1 };
        let shared = Arc::clone(&kept.class);
        let number = match self.free.pop() {
            Some(number) => {
                self.kept[number as usize] = kept;
                number
            }
            None => {
                let number = u32::try_from(self.kept.len()).ok().filter(|at| *at < CLASSES_MAX)?;
                self.kept.push(kept);
                number
            }
        };
        self.numbers.insert(shared, number);
        self.bytes += bytes;
        Some(number)
    }

    /// One place of the table does not hold the class any more.
    pub(super) fn put_back(&mut self, number: ClassNumber) {
        if number == NOTHING || number == ALL {
            return;
        }
        let nothing = Arc::clone(&self.kept[NOTHING as usize].class);
        let kept = &mut self.kept[number as usize];
        kept.used -= 1;
        if kept.used == 0 {
            let class = std::mem::replace(&mut kept.class, nothing);
            self.bytes -= Classes::bytes_of(&class);
            self.numbers.remove(&class);
            self.free.push(number);
        }
    }

    /// Estimated bytes of all classes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of classes that entries use, without the two that are always there.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    fn bytes_of(class: &SearchClass) -> usize {
        CLASS_BYTES + NAME_BYTES * class.names()
    }

    /// Number of places that hold each class, for [`check`](super::PermissionTable::check).
    pub(super) fn uses(&self) -> impl Iterator<Item = (ClassNumber, u32)> {
        let numbers = self.numbers.values();
        numbers.map(|number| (*number, self.kept[*number as usize].used))
    }
}
