//! Conditions of requests: `If-Match` and the like.

use http::{HeaderMap, HeaderValue, header};
use s3s::{
    S3Error, S3ErrorCode, S3Result,
    dto::{ETag, ETagCondition, Timestamp},
};

/// Conditions of a request on the object that is there.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) matches: Option<ETagCondition>,
    pub(crate) none_match: Option<ETagCondition>,
    pub(crate) modified_since: Option<Timestamp>,
    pub(crate) unmodified_since: Option<Timestamp>,
}

impl Conditions {
    /// Checks an object that is to be read; `unchanged` is the answer when the reader has it
    /// already. As in S3, `If-Match` goes before `If-Unmodified-Since`, and `If-None-Match` before
    /// `If-Modified-Since`.
    pub(crate) fn check(
        &self,
        etag: &str,
        modified: &Timestamp,
        unchanged: S3ErrorCode,
    ) -> S3Result<()> {
        let late = |since: &Option<Timestamp>| since.as_ref().is_some_and(|since| modified > since);
        let stale = match &self.matches {
            Some(condition) => !meets(condition, etag),
            None => late(&self.unmodified_since),
        };
        if stale {
            return Err(S3ErrorCode::PreconditionFailed.into());
        }
        let known = match &self.none_match {
            Some(condition) => meets(condition, etag),
            None => self.modified_since.is_some() && !late(&self.modified_since),
        };
        if !known {
            return Ok(());
        }
        let mut error = S3Error::from(unchanged);
        // A reader is told again what it has, as RFC 9110 asks.
        if *error.code() == S3ErrorCode::NotModified
            && let Ok(etag) = HeaderValue::from_str(&format!("\"{etag}\""))
        {
            error.set_headers(HeaderMap::from_iter([(header::ETAG, etag)]));
        }
        Err(error)
    }
}

/// Whether an object with this ETag is what a condition names.
pub(crate) fn meets(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => ETag::value(wanted) == etag,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(sec: u64) -> Timestamp {
        (UNIX_EPOCH + Duration::from_secs(sec)).into()
    }

    fn check(conditions: &Conditions) -> Option<S3ErrorCode> {
        let checked = conditions.check("e", &at(10), S3ErrorCode::NotModified);
        checked.err().map(|error| error.code().clone())
    }

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::ETag(ETag::Strong(text.to_owned())))
    }

    #[test]
    fn an_etag_goes_before_a_time() {
        let (failed, unchanged) = (S3ErrorCode::PreconditionFailed, S3ErrorCode::NotModified);
        let none = Conditions::default();
        assert_eq!(check(&none), None);
        let matches = Conditions { matches: tag("e"), unmodified_since: Some(at(5)), ..none };
        assert_eq!(check(&matches), None);
        let other = Conditions { matches: tag("x"), ..Conditions::default() };
        assert_eq!(check(&other), Some(failed.clone()));
        let late = Conditions { unmodified_since: Some(at(9)), ..Conditions::default() };
        assert_eq!(check(&late), Some(failed));
        let known = Conditions { none_match: tag("e"), ..Conditions::default() };
        assert_eq!(check(&known), Some(unchanged.clone()));
        let since = Conditions { modified_since: Some(at(10)), ..Conditions::default() };
        assert_eq!(check(&since), Some(unchanged));
        let changed = Conditions { modified_since: Some(at(9)), ..Conditions::default() };
        assert_eq!(check(&changed), None);
    }
}
