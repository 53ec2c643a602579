//! One call at a time for each volume: another that comes meanwhile is told to come again. For the
//! periodic look at the mounts, which nobody has asked for, calls wait.
//!
//! A call that its client gives up goes on to its end, since half of a mount helps nobody.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

use crate::error::Answer;

/// The kind of work that has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnOf {
    Call,
    Look,
}

/// The volumes that a call or a look is about just now.
#[derive(Clone, Default)]
pub(crate) struct Turns {
    busy: Arc<Mutex<BTreeMap<String, TurnOf>>>,
    ended: Arc<Notify>,
}

/// Held while a call or a look is about a volume.
pub(crate) struct HeldTurn {
    turns: Turns,
    volume: String,
}

impl Turns {
    /// The turn of a volume for a look; `None` while it is another's.
    pub(crate) fn look(&self, volume: &str) -> Option<HeldTurn> {
        self.take(volume, TurnOf::Look).ok()
    }

    /// The turn of a volume, or whose it is.
    fn take(&self, volume: &str, by: TurnOf) -> Result<HeldTurn, TurnOf> {
        let mut busy = self.busy.lock();
        if let Some(other) = busy.get(volume) {
            return Err(*other);
        }
        busy.insert(volume.to_owned(), by);
        Ok(HeldTurn { turns: self.clone(), volume: volume.to_owned() })
    }

    /// The turn of a volume for a call.
    async fn call(&self, volume: &str) -> Answer<HeldTurn> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // Race: a look that ends after the next line is heard of.
            ended.as_mut().enable();
            match self.take(volume, TurnOf::Call) {
                Ok(turn) => return Ok(turn),
                Err(TurnOf::Look) => ended.await,
                Err(TurnOf::Call) => {
                    return Err(Status::aborted(format!(
                        "another call is about the volume {volume} just now"
                    )));
                }
            }
        }
    }

    /// Does something to a volume, to the end, also when the caller goes.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl Future<Output = Answer<T>> + Send + 'static,
    ) -> Answer<T> {
        let turn = self.call(volume).await?;
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
        self.turns.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_volume_has_one_call_at_a_time_and_calls_wait_for_a_look() {
        let turns = Turns::default();
        let held = turns.call("a").await.unwrap();
        let refused = turns.run("a", async { Ok(()) }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert!(turns.look("a").is_none());
        turns.run("b", async { Ok(()) }).await.unwrap();
        drop(held);
        let look = turns.look("a").unwrap();
        let call = turns.run("a", async { Ok(()) });
        let ends = async {
            tokio::task::yield_now().await;
            drop(look);
        };
        let (called, ()) = tokio::join!(call, ends);
        called.unwrap();
    }
}
