//! How many sessions each token has: one that everybody was given must not keep all others out.
//!
//! A session has a share of its token. When it is gone and nobody has it in use any more, so is the share; nothing else has
//! to be told of its end.

use std::sync::{Arc, Weak};

use base::{Encode as _, HashMap};
use parking_lot::Mutex;
use wire::Token;

/// What a session has of its token.
pub(crate) type Share = Arc<()>;

/// The table, by the bytes of the token.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<Vec<u8>, Weak<()>>>);

impl Tokens {
    /// One more share of a token.
    pub(crate) fn share(&self, token: &Token) -> Share {
        self.share_of(token, usize::MAX).expect("nobody has so many")
    }

    /// As [`Tokens::share`], if there are fewer than `max`.
    pub(crate) fn share_of(&self, token: &Token, max: usize) -> Option<Share> {
        let mut tokens = self.0.lock();
        let key = token.to_vec();
        if let Some(share) = tokens.get(&key).and_then(Weak::upgrade) {
            return (Arc::strong_count(&share) <= max).then_some(share);
        }
        if tokens.len() == tokens.capacity() {
            tokens.retain(|_, share| share.strong_count() > 0);
        }
        let share = Share::default();
        tokens.insert(key, Arc::downgrade(&share));
        (max > 0).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_so_many_shares_at_a_time() {
        let tokens = Tokens::default();
        let of = |path: &str| Token { path: path.to_owned(), ..Token::administrator() };
        let (one, two) = (tokens.share_of(&of("/a"), 2), tokens.share_of(&of("/a"), 2));
        assert!(one.is_some() && two.is_some());
        assert_eq!(tokens.share_of(&of("/a"), 2), None);
        assert!(tokens.share_of(&of("/b"), 2).is_some());
        drop(one);
        assert!(tokens.share_of(&of("/a"), 2).is_some());
        for path in 0..10_000 {
            tokens.share(&of(&format!("/{path}")));
        }
        assert!(tokens.0.lock().capacity() < 1000, "those that nobody has are forgotten");
    }
}
