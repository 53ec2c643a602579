//! Steps: small operations of the server itself, which a mechanism has executed among the requests.
//!
//! `core` executes a step within its groups ([`Core::step`](crate::Core::step)); `transact` runs
//! one that needs other servers. Neither knows what a step does.
//!
//! Always true: a step may be executed several times. Only what its last run has written, and the
//! facts that it states, join a group. What a step does to memory besides it does each time.

use std::rc::Rc;

use wire::TxnId;

use crate::{error::Result, txn::Txn};

type StepFn = dyn Fn(&mut Txn<'_>) -> Result<()>;

/// A small operation of the server itself.
#[derive(Clone)]
pub(crate) struct Step {
    run: Rc<StepFn>,
    part_of: Option<TxnId>,
}

impl Step {
    pub(crate) fn new(run: impl Fn(&mut Txn<'_>) -> Result<()> + 'static) -> Step {
        Step { run: Rc::new(run), part_of: None }
    }

    /// Makes the step a part of a transaction over several servers: keys that this transaction
    /// holds are not in its way.
    pub(crate) fn part_of(self, txn: TxnId) -> Step {
        Step { part_of: Some(txn), ..self }
    }

    pub(crate) fn execute(&self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(own) = self.part_of {
            txn.be_part_of(own);
        }
        (self.run)(txn)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use base::FsError;
    use wire::Retry;

    use super::*;
    use crate::{coordinator::tests::several::in_cluster, error::Fault, txn::Unwritten};

    #[test]
    fn a_step_gives_the_result_of_its_last_run_and_none_when_it_is_refused() {
        in_cluster(async |three| {
            let core = &three.node(1).core;
            let runs = Rc::new(Cell::new(0));
            let counted = Rc::clone(&runs);
            let waits_once = move |_: &mut Txn<'_>| {
                counted.set(counted.get() + 1);
                if counted.get() == 1 { Err(Unwritten.into()) } else { Ok(counted.get()) }
            };
            assert_eq!(core.step(waits_once).await, Some(2));
            assert_eq!(runs.get(), 2);
            let refusals: [fn() -> Fault; 2] =
                [|| Fault::Retry(Retry::Busy), || FsError::NotFound.into()];
            for refusal in refusals {
                assert_eq!(core.step(move |_| Err::<(), Fault>(refusal())).await, None);
            }
        });
    }
}
