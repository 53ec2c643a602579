//! A terminal that shows one page and hears keys.
//!
//! `top` takes it. What the terminal was before is put back when the [`Screen`] is dropped, however
//! that comes; after SIGKILL `reset` helps.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

use crate::output::Lost;

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const CTRL_C: u8 = 3;
/// A thread that waits for keys looks up so often, so that the process can end.
const KEY_WAIT_NANOS: i64 = 100_000_000;

/// The terminal, while it is ours.
pub(crate) struct Screen {
    /// Settings of stdin before ours, when it is a terminal.
    keys: Option<Termios>,
}

impl Screen {
    /// Takes the terminal on stdout, and the keys of the one on stdin. Needs a runtime.
    pub(crate) fn take() -> anyhow::Result<Screen> {
        let mut screen = Screen { keys: None };
        if io::stdin().is_terminal() {
            let before = tcgetattr(io::stdin()).context("cannot read the terminal's settings")?;
            let mut ours = before.clone();
            // Key by key, unseen; Ctrl-C and Ctrl-Z are keys, so that nothing leaves the terminal
            // as it is now.
            ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            screen.keys = Some(before);
            tcsetattr(io::stdin(), OptionalActions::Now, &ours)
                .context("cannot set the terminal")?;
        }
        put(ENTER)?;
        Ok(screen)
    }

    /// Shows a page: as much of it as there is room for.
    pub(crate) fn draw(&mut self, text: &str) -> anyhow::Result<()> {
        // A terminal that does not know its size says 0.
        let size =
            tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        let (rows, columns) = (usize::from(rows), usize::from(columns));
        let mut page = String::from("\x1b[H");
        for (at, line) in text.lines().take(rows).enumerate() {
            let shown: String = line.chars().take(columns).collect();
            // Each line clears what is right of it, the last one what is below.
            page += if at == 0 { "" } else { "\r\n" };
            page += &shown;
            page += "\x1b[K";
        }
        put(&(page + "\x1b[J"))
    }

    /// Returns when q or Ctrl-C is pressed; never, if there are no keys.
    pub(crate) async fn quit(&mut self) {
        if self.keys.is_none() {
            return std::future::pending().await;
        }
        loop {
            // A thread of its own waits for a key, but reads none: dropping this future loses no
            // key.
            match tokio::task::spawn_blocking(wait_for_key).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => return,
            }
            let mut pressed = [0; 64];
            match rustix::io::read(io::stdin(), &mut pressed) {
                // The terminal is gone.
                Ok(0) | Err(_) => return,
                Ok(count) => {
                    let quits = |key: &u8| matches!(*key, b'q' | b'Q' | CTRL_C);
                    if pressed[..count].iter().any(quits) {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether a key is pressed within a moment; also when the terminal is gone.
fn wait_for_key() -> bool {
    let stdin = io::stdin();
    let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
    let moment = Timespec { tv_sec: 0, tv_nsec: KEY_WAIT_NANOS };
    poll(&mut waiting, Some(&moment)).map_or(true, |ready| ready > 0)
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = put(LEAVE);
        if let Some(before) = &self.keys {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn put(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(written.map_err(Lost)?)
}
