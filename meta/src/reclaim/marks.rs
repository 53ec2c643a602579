//! Marks of blocks to delete, as a whole: what a backup asks of an engine that it begins with.

use std::ops::ControlFlow;

use bytes::Bytes;
use store::{Batch, Engine};

use super::notes::{CHUNKS_A_STEP, Garbage, HeldFor};
use crate::{
    OpenError,
    record::{Key, Record as _, key},
};

/// The greatest mark, 0 for none. Numbers of bases go on above it.
///
/// Cost: one pass over all notes.
pub(crate) fn newest(engine: &dyn Engine) -> Result<u64, OpenError> {
    let mut newest = 0;
    let notes = key::works(b'G');
    engine.scan(&notes, &key::end_of(&notes), &mut |_, value| {
        newest = newest.max(mark(value).unwrap_or_default());
        ControlFlow::Continue(())
    })?;
    Ok(newest)
}

/// Takes all marks away: in a copy, whose bases are numbered anew, they mean nothing.
pub(crate) fn clear(engine: &dyn Engine) -> Result<(), OpenError> {
    let mut from = key::works(b'G');
    loop {
        let mut marked: Vec<Key> = Vec::new();
        engine.scan(&from, &key::end_of(&key::works(b'G')), &mut |key, value| {
            marked.extend(mark(value).map(|_| Key::from_slice(key)));
            let is_full = marked.len() >= CHUNKS_A_STEP;
            if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some(last) = marked.last() else { return Ok(()) };
        from = key::end_of(last);
        let mut batch = Batch::default();
        for key in &marked {
            batch.put(key, &Garbage { held_for: HeldFor(None) }.to_record());
        }
        engine.write(batch)?;
    }
}

/// The mark of a note. A note that cannot be read has none; `pando fsck` finds it.
fn mark(value: &[u8]) -> Option<u64> {
    Garbage::from_record(&Bytes::copy_from_slice(value)).unwrap_or_default().held_for.0
}
