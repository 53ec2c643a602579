//! Handling of failed assertions: one line instead of a backtrace, and servers stop.
//!
//! A runtime catches the panic of a task and goes on; a server must not, as it cannot vouch for its
//! state any more. So every panic also wakes the waiters of [`happened`].

use std::sync::LazyLock;

use tokio::sync::watch;

static PANICKED: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));

/// From now on a panic is one line in the log.
pub(crate) fn report_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(said, place, "internal error");
        PANICKED.send_replace(true);
    }));
}

/// Returns once any thread or task has panicked.
pub(crate) async fn happened() {
    // The sender is static, so it is never gone.
    let _ = PANICKED.subscribe().wait_for(|panicked| *panicked).await;
}
