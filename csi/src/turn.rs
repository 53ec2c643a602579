//! One call at a time for each volume: another that comes meanwhile is told to come again.
//!
//! A call that its client gives up goes on to its end, since half of a mount helps nobody.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tonic::Status;

use crate::error::Answer;

/// The volumes that a call is about just now.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// Held while a call is about a volume.
pub(crate) struct HeldTurn {
    turns: Turns,
    volume: String,
}

impl Turns {
    /// The turn of a volume; `None` while another call has it.
    pub(crate) fn take(&self, volume: &str) -> Option<HeldTurn> {
        let taken = self.busy.lock().insert(volume.to_owned());
        taken.then(|| HeldTurn { turns: self.clone(), volume: volume.to_owned() })
    }

    /// Does something to a volume, to the end, also when the caller goes.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<T> {
        let turn = self.take(volume).ok_or_else(|| {
            Status::aborted(format!("another call is about the volume {volume} just now"))
        })?;
        let worked = tokio::spawn(async move {
            let worked = work.await;
            drop(turn);
            worked
        });
        worked.await.map_err(|error| Status::internal(format!("the call has failed: {error}")))?
    }
}

impl Drop for HeldTurn {
    fn drop(&mut self) {
        self.turns.busy.lock().remove(&self.volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_volume_has_one_call_at_a_time() {
        let turns = Turns::default();
        let held = turns.take("a").unwrap();
        let refused = turns.run("a", async { Ok(()) }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        turns.run("b", async { Ok(()) }).await.unwrap();
        drop(held);
        turns.run("a", async { Ok(()) }).await.unwrap();
    }
}
