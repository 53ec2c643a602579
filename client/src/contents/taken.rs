//! Little that was written to a file, to go with other changes in one request.
//!
//! The flush is one like any other, begun here: nothing else of the file is sent meanwhile. Where
//! the request does not do the write, the pieces are sent in the background as ever.

use std::sync::Arc;

use base::{Attr, Cred, DirId, SetAttr, Time};
use wire::{ChunkSlices, Write};

use super::state::{FileState, FlushSet, Sent};
use crate::Client;

/// Pieces that were written to a file, and are sent by whoever has this.
pub(crate) struct Taken {
    state: Arc<FileState>,
    set: Arc<FlushSet>,
    chunks: Vec<ChunkSlices>,
}

impl Taken {
    /// The user that has written.
    pub(crate) fn writer(&self) -> &Cred {
        &self.set.writer
    }

    /// When the last of it was written.
    pub(crate) fn at(&self) -> Time {
        self.set.at
    }

    /// How many bytes it is.
    pub(crate) fn bytes(&self) -> u64 {
        self.set.bytes
    }
}

impl Client {
    /// Takes all that was written to a file of a directory that is held, if it is little and nothing
    /// of the file is being sent. The server has the file, or gets it before (`makes`).
    pub(crate) fn take_written(
        &self,
        state: &Arc<FileState>,
        dir: DirId,
        makes: bool,
    ) -> Option<Taken> {
        let began = self.core.files.stamp();
        let bytes_max = self.welcome().fs.inline_bytes_max.into();
        let set = {
            let mut inner = state.lock();
            if inner.held != Some(dir) || inner.is_unmade != makes || inner.lost {
                return None;
            }
            inner.begin_small_flush(bytes_max)?
        };
        let mut plan = self.plan(&set);
        let may = self.core.may_write(set.writer.uid, state.ino, began).is_ok();
        let only = plan.requests.pop().filter(|_| plan.requests.is_empty());
        match only.filter(|_| may && plan.puts.is_empty()) {
            Some((chunks, _)) => Some(Taken { state: Arc::clone(state), set, chunks }),
            None => {
                self.flush_from(state, Some(set));
                None
            }
        }
    }

    /// The request that writes what was taken, and changes attributes after it.
    pub(crate) fn write_of(&self, taken: &Taken, set: Option<SetAttr>) -> Write {
        let Taken { state, set: flush, chunks } = taken;
        Write {
            file: state.lock().file.clone(),
            chunks: chunks.clone(),
            end: flush.end,
            at: Some(flush.at),
            clear_set_id: flush.clear_set_id,
            set,
            blocks: Vec::new(),
        }
    }

    /// The pieces are written, and the file has these attributes since. Returns them with what
    /// was written meanwhile.
    pub(crate) fn has_written(&self, taken: Taken, attr: Attr) -> Attr {
        let Taken { state, set, chunks } = taken;
        self.end_flush(&state, &set, Ok(Sent { attr, written: chunks, set: false }));
        let visible = state.lock().visible(attr);
        if let Some(next) = self.next_flush(&state) {
            self.flush_from(&state, Some(next));
        }
        visible
    }

    /// The pieces are not wanted any more: the file is removed.
    pub(crate) fn is_unwanted(&self, taken: Taken) {
        let attr = taken.state.lock().attr;
        self.has_written(taken, attr);
    }

    /// The pieces are not written: they are sent alone.
    pub(crate) fn is_unwritten(&self, taken: Taken) {
        self.flush_from(&taken.state, Some(taken.set));
    }
}
