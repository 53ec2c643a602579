//! Number of sessions of each token: a token that many clients have must not keep all other tokens
//! out.
//!
//! A session holds a share of its token. The share ends with the session's last reference, so
//! nothing else must note the session's end.

use std::sync::{Arc, Weak};

use base::{Encode as _, HashMap};
use parking_lot::Mutex;
use wire::Token;

/// A session's share of its token.
pub(crate) type Share = Arc<()>;

/// Shares by the bytes of their token.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<Vec<u8>, Weak<()>>>);

impl Tokens {
    /// Adds a share of a token.
    pub(crate) fn share(&self, token: &Token) -> Share {
        self.share_of(token, usize::MAX).expect("nobody has so many")
    }

    /// Like [`Tokens::share`], if there are fewer than `max`.
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
