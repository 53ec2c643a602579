//! Whether the program that waits for an answer is dying.
//!
//! The kernel tells of every signal that comes while a program waits for us (INTERRUPT), of each
//! request once. Answering EINTR to all of them would break programs: `mkdir` and `stat` are not
//! expected to end so, and what was asked may happen all the same. So only a program that will
//! never see the answer is given up: one that a signal has killed. Otherwise an operation waits for
//! its server, however long.
//!
//! Over io_uring the kernel forgets to tell of a signal that is pending when a request begins (one
//! that came during an earlier request of the same call), or that comes before the request has
//! arrived here. Such a program cannot even be killed, so programs that wait are looked at now and
//! then.

use std::{fs, pin::pin, time::Duration};

use fuse::Reply;
use futures::future::select;
use tokio::time::sleep;

/// Pause between two looks whether a thread is dying: a kill that comes after another signal is
/// noticed within this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Pause between two looks at a program of whose signals the kernel may not tell.
const UNTOLD_PAUSE: Duration = Duration::from_secs(1);

/// Signals without effect where no handler is set: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
const HARMLESS: u64 = bit(17) | bit(18) | bit(19) | bit(20) | bit(21) | bit(22) | bit(23) | bit(28);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Returns when the thread `pid`, which waits for this answer, is dying.
pub(crate) async fn killed(reply: &Reply, pid: u32) {
    signalled(reply, pid).await;
    while !is_dying(pid) {
        sleep(PAUSE).await;
    }
}

/// Returns when a signal came for the thread `pid`, which waits for this answer: one that the kernel
/// tells of, or one that is seen to wait for the thread.
pub(crate) async fn signalled(reply: &Reply, pid: u32) {
    if !reply.is_over_io_uring() {
        return reply.interrupted().await;
    }
    let told = pin!(reply.interrupted());
    let seen = pin!(async {
        loop {
            sleep(UNTOLD_PAUSE).await;
            let status = fs::read_to_string(format!("/proc/{pid}/status"));
            if status.is_ok_and(|status| pending(&status) != 0) {
                break;
            }
        }
    });
    select(told, seen).await;
}

/// A thread that we cannot see (0: it is in another pid namespace, or it has gone) is taken for
/// dying: that it can be killed matters more.
fn is_dying(pid: u32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => will_end(&status),
        Err(_) => true,
    }
}

/// Whether a signal is on its way that ends the process. SIGKILL can be neither blocked nor
/// handled, so it is only ever in the first two sets.
fn will_end(status: &str) -> bool {
    pending(status) & !set(status, "SigCgt") != 0
}

/// Signals on their way that have an effect on the process: they end it, or it handles them.
fn pending(status: &str) -> u64 {
    let pending = set(status, "SigPnd") | set(status, "ShdPnd");
    let harmless = HARMLESS & !set(status, "SigCgt");
    pending & !set(status, "SigBlk") & !set(status, "SigIgn") & !harmless
}

/// A set of signals in `/proc/PID/status`.
fn set(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pending: u64, blocked: u64, ignored: u64, caught: u64) -> String {
        format!(
            "Name:\tcat\nSigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000\nSigBlk:\t{blocked:016x}\n\
             SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        )
    }

    #[test]
    fn a_kill_ends_whatever_is_blocked_or_caught() {
        let kill = bit(9);
        assert!(will_end(&status(kill, !kill, !kill, !kill)));
    }

    #[test]
    fn a_signal_that_is_handled_or_harmless_ends_nothing() {
        let (alarm, child) = (bit(14), bit(17));
        assert!(will_end(&status(alarm, 0, 0, 0)));
        assert!(!will_end(&status(alarm, 0, 0, alarm)));
        assert!(!will_end(&status(alarm, alarm, 0, 0)));
        assert!(!will_end(&status(alarm, 0, alarm, 0)));
        assert!(!will_end(&status(child, 0, 0, 0)));
        assert!(!will_end(&status(child, 0, 0, child)));
        assert!(!will_end(&status(0, 0, 0, 0)));
    }

    #[test]
    fn a_signal_that_is_handled_is_pending_and_one_without_effect_is_not() {
        let (alarm, child) = (bit(14), bit(17));
        assert_eq!(pending(&status(alarm | child, 0, 0, alarm)), alarm);
        assert_eq!(pending(&status(child, 0, 0, child)), child);
        assert_eq!(pending(&status(alarm, alarm, 0, alarm)), 0);
    }

    #[test]
    fn a_thread_that_cannot_be_seen_counts_as_dying() {
        assert!(is_dying(0));
        assert!(!is_dying(std::process::id()));
    }
}
