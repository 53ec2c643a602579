//! Facts that S3 has of an object beside its contents, as extended attributes.
//!
//! Persisted: `user.s3.etag` has the ETag, and size and modification time of the contents that it
//! is of, in words. `user.s3.headers` and `user.s3.tags` are JSON. `user.s3.object` is on
//! directories whose key ends with a slash. `user.s3.completed` has the id of the upload that an
//! object was put together from.
//!
//! Programs that use a mount may write contents and attributes as they like. So an ETag counts only
//! while size and time are what they were, and a header that could not be sent is left out.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::{Attr, Time};
use http::HeaderValue;
use s3s::{
    S3ErrorCode, S3Result,
    dto::{Checksum, ETag, Metadata, Tag, TagSet, Timestamp, TimestampFormat},
};
use serde::{Deserialize, Serialize};

use crate::{error::invalid, fs::Xattrs};

pub(crate) const ETAG: &str = "user.s3.etag";
pub(crate) const HEADERS: &str = "user.s3.headers";
pub(crate) const TAGS: &str = "user.s3.tags";
pub(crate) const OBJECT: &str = "user.s3.object";
pub(crate) const COMPLETED: &str = "user.s3.completed";
/// ETag of an empty object: MD5 of nothing.
pub(crate) const EMPTY_ETAG: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// Bytes of user metadata at most, as in S3.
const USER_BYTES_MAX: usize = 2048;
/// Sizes of parts that are kept at most, where each part has another size than the one before.
const PART_RUNS_MAX: usize = 1000;
/// Limits of tags, as in S3.
const TAGS_MAX: usize = 10;
const TAG_KEY_CHARS_MAX: usize = 128;
const TAG_VALUE_CHARS_MAX: usize = 256;

/// Headers that come back as they were given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Headers {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_encoding: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_disposition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache_control: Option<String>,
    /// A time, as HTTP writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) website_redirect_location: Option<String>,
    /// `x-amz-meta-*`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user: BTreeMap<String, String>,
    /// Checksums of the contents by their algorithm.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) checksums: BTreeMap<String, String>,
    /// Sizes of the parts that the object was put together from: a size, and how many parts in a
    /// row have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<(u64, u32)>,
}

impl Headers {
    /// Takes the sizes of parts, unless they are too many different ones to be kept.
    pub(crate) fn set_parts(&mut self, sizes: impl Iterator<Item = u64>) {
        self.parts.clear();
        for size in sizes {
            match self.parts.last_mut() {
                Some((last, count)) if *last == size => *count += 1,
                _ => self.parts.push((size, 1)),
            }
        }
        if self.parts.len() > PART_RUNS_MAX {
            self.parts.clear();
        }
    }

    /// Number of parts; `None`: the object was put whole, or the sizes of its parts are not known.
    pub(crate) fn parts_count(&self) -> Option<i32> {
        let count: u64 = self.parts.iter().map(|(_, count)| u64::from(*count)).sum();
        i32::try_from(count).ok().filter(|count| *count > 0)
    }

    /// Whether the sizes of all parts together are this size.
    fn parts_fill(&self, size: u64) -> bool {
        let sum = self.parts.iter().try_fold(0_u64, |sum, (len, count)| {
            sum.checked_add(len.checked_mul(u64::from(*count))?)
        });
        sum == Some(size)
    }

    /// The bytes of a part of an object of `size` bytes. An object without known parts is its own
    /// only part.
    pub(crate) fn part(&self, number: i32, size: u64) -> S3Result<Range<u64>> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| invalid("the first part has the number 1"))?;
        let whole = [(size, 1)];
        let runs = if self.parts.is_empty() { &whole[..] } else { &self.parts };
        let (mut start, mut before) = (0, number - 1);
        for &(len, count) in runs {
            if before < count {
                start += len * u64::from(before);
                return Ok(start..start + len);
            }
            (start, before) = (start + len * u64::from(count), before - count);
        }
        Err(S3ErrorCode::InvalidPart.into())
    }

    /// Takes user metadata.
    pub(crate) fn set_user(&mut self, metadata: Option<Metadata>) -> S3Result<()> {
        self.user = metadata.into_iter().flatten().collect();
        let bytes: usize = self.user.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > USER_BYTES_MAX {
            return Err(S3ErrorCode::MetadataTooLarge.into());
        }
        Ok(())
    }

    pub(crate) fn set_expires(&mut self, expires: Option<Timestamp>) {
        self.expires = expires.and_then(|time| {
            let mut text = Vec::new();
            time.format(TimestampFormat::HttpDate, &mut text).ok()?;
            String::from_utf8(text).ok()
        });
    }

    pub(crate) fn expires(&self) -> Option<Timestamp> {
        Timestamp::parse(TimestampFormat::HttpDate, self.expires.as_deref()?).ok()
    }

    pub(crate) fn user(&self) -> Option<Metadata> {
        (!self.user.is_empty()).then(|| self.user.clone().into_iter().collect())
    }

    pub(crate) fn set_checksums(&mut self, sums: &Checksum) {
        let all = [
            ("crc32", &sums.checksum_crc32),
            ("crc32c", &sums.checksum_crc32c),
            ("crc64nvme", &sums.checksum_crc64nvme),
            ("sha1", &sums.checksum_sha1),
            ("sha256", &sums.checksum_sha256),
        ];
        let given = all.into_iter().filter_map(|(name, sum)| Some((name.to_owned(), sum.clone()?)));
        self.checksums = given.collect();
    }

    pub(crate) fn checksum(&self, name: &str) -> Option<String> {
        self.checksums.get(name).cloned()
    }

    /// Bytes to store; `None`: there is nothing to store.
    pub(crate) fn to_bytes(&self) -> S3Result<Option<Vec<u8>>> {
        if *self == Headers::default() {
            return Ok(None);
        }
        Ok(Some(serde_json::to_vec(self).map_err(s3s::S3Error::internal_error)?))
    }

    /// Headers as they can be sent.
    fn sendable(mut self) -> Headers {
        let good = |value: &String| HeaderValue::from_str(value).is_ok();
        for header in [
            &mut self.content_type,
            &mut self.content_encoding,
            &mut self.content_disposition,
            &mut self.content_language,
            &mut self.cache_control,
            &mut self.expires,
            &mut self.website_redirect_location,
        ] {
            header.take_if(|value| !good(value));
        }
        self.checksums.retain(|_, value| good(value));
        let named =
            |name: &String| http::HeaderName::try_from(format!("x-amz-meta-{name}")).is_ok();
        self.user.retain(|name, value| named(name) && !value.contains(['\r', '\n', '\0']));
        self
    }
}

/// Facts about an object.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) etag: String,
    pub(crate) headers: Headers,
    pub(crate) tags: TagSet,
    /// Of a directory: whether it is an object.
    pub(crate) marked: bool,
    /// The id of the upload that the object was put together from.
    pub(crate) completed: Option<Vec<u8>>,
}

impl Known {
    /// Reads the attributes of a node.
    pub(crate) fn read(attr: &Attr, xattrs: &Xattrs) -> Known {
        let value = |name: &str| {
            let found = xattrs.iter().find(|(found, _)| found == name.as_bytes());
            found.map(|(_, value)| &value[..])
        };
        let headers: Option<Headers> =
            value(HEADERS).and_then(|value| serde_json::from_slice(value).ok());
        let mut headers = headers.unwrap_or_default().sendable();
        // Checksums and parts are of the contents that the ETag is of.
        if stored_etag(attr, xattrs).is_none() {
            headers.checksums.clear();
            headers.parts.clear();
        }
        // A program that uses a mount may have written any sizes.
        if !headers.parts_fill(attr.size) {
            headers.parts.clear();
        }
        Known {
            etag: etag(attr, xattrs),
            headers,
            tags: value(TAGS).map(tags_of).unwrap_or_default(),
            marked: value(OBJECT).is_some(),
            completed: value(COMPLETED).map(<[u8]>::to_vec),
        }
    }
}

/// The ETag of a file: the stored one if the contents are those that it is of.
pub(crate) fn etag(attr: &Attr, xattrs: &Xattrs) -> String {
    if let Some(etag) = stored_etag(attr, xattrs) {
        return etag.to_owned();
    }
    // The hyphens tell clients that this is no MD5.
    let Time { sec, nsec } = attr.mtime;
    format!("{:x}-{:x}{nsec:08x}-{:x}", attr.ino.0, sec, attr.size)
}

/// The stored ETag, if the contents are those that it is of.
fn stored_etag<'x>(attr: &Attr, xattrs: &'x Xattrs) -> Option<&'x str> {
    let (_, value) = xattrs.iter().find(|(name, _)| name == ETAG.as_bytes())?;
    let (etag, of) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    let good = etag.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    (good && of == contents(attr)).then_some(etag)
}

/// The value of [`ETAG`] for these contents.
pub(crate) fn etag_record(etag: &str, attr: &Attr) -> Vec<u8> {
    format!("{etag} {}", contents(attr)).into_bytes()
}

fn contents(attr: &Attr) -> String {
    format!("{} {} {}", attr.size, attr.mtime.sec, attr.mtime.nsec)
}

/// An ETag as S3 sends it.
pub(crate) fn strong(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

/// When an object was written, in whole seconds as HTTP tells it.
pub(crate) fn last_modified(attr: &Attr) -> Timestamp {
    timestamp(attr.mtime)
}

pub(crate) fn timestamp(time: Time) -> Timestamp {
    let since = Duration::from_secs(u64::try_from(time.sec).unwrap_or(0));
    let time: SystemTime = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
    time.into()
}

/// A size as S3 sends it.
pub(crate) fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Tags in the form of a query, as the header `x-amz-tagging` has them.
pub(crate) fn tags_of_header(text: &str) -> S3Result<TagSet> {
    let mut tags = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        tags.push(Tag { key: Some(unescape(key)?), value: Some(unescape(value)?) });
    }
    Ok(tags)
}

/// Text of a query: `+` is a space, `%` begins two hex digits.
fn unescape(text: &str) -> S3Result<String> {
    let bad = || invalid("x-amz-tagging is not a query");
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || {
                    let digit = char::from(rest.next()?).to_digit(16)?;
                    u8::try_from(digit).ok()
                };
                let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
                high * 16 + low
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

/// Bytes to store for tags; `None`: there are none.
pub(crate) fn tags_to_bytes(tags: &TagSet) -> S3Result<Option<Vec<u8>>> {
    if tags.len() > TAGS_MAX {
        return Err(s3s::s3_error!(InvalidTag, "an object has at most 10 tags"));
    }
    let mut pairs = BTreeMap::new();
    for tag in tags {
        let (key, value) = (tag.key.as_deref().unwrap_or(""), tag.value.as_deref().unwrap_or(""));
        let fits = (1..=TAG_KEY_CHARS_MAX).contains(&key.chars().count());
        if !fits || value.chars().count() > TAG_VALUE_CHARS_MAX {
            return Err(s3s::s3_error!(
                InvalidTag,
                "a tag has a key of 1 to 128 characters, and a value of 256 at most"
            ));
        }
        if pairs.insert(key, value).is_some() {
            return Err(s3s::s3_error!(InvalidTag, "a key is there twice"));
        }
    }
    if pairs.is_empty() {
        return Ok(None);
    }
    Ok(Some(serde_json::to_vec(&pairs).map_err(s3s::S3Error::internal_error)?))
}

fn tags_of(bytes: &[u8]) -> TagSet {
    let pairs: BTreeMap<String, String> = serde_json::from_slice(bytes).unwrap_or_default();
    let tag = |(key, value)| Tag { key: Some(key), value: Some(value) };
    pairs.into_iter().map(tag).collect()
}

/// Bytes as hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| u8::try_from(digit.to_digit(16)?).ok()).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use base::{FileKind, Ino};
    use bytes::Bytes;

    use super::*;

    fn attr(size: u64) -> Attr {
        let mtime = Time { sec: 5, nsec: 7 };
        Attr { size, mtime, ..Attr::blank(Ino(9), FileKind::File) }
    }

    fn xattr(name: &'static str, value: Vec<u8>) -> Xattrs {
        vec![(Bytes::from(name), value.into())]
    }

    #[test]
    fn an_etag_counts_while_the_contents_are_those_it_is_of() {
        let xattrs = xattr(ETAG, etag_record(EMPTY_ETAG, &attr(3)));
        assert_eq!(etag(&attr(3), &xattrs), EMPTY_ETAG);
        let other = etag(&attr(4), &xattrs);
        assert!(other != EMPTY_ETAG && other.contains('-'), "{other}");
        assert_ne!(other, etag(&attr(5), &xattrs));
    }

    #[test]
    fn checksums_count_as_long_as_the_etag() {
        let mut headers = Headers::default();
        headers.checksums.insert("crc32".into(), "AAAAAA==".into());
        let mut xattrs = xattr(ETAG, etag_record(EMPTY_ETAG, &attr(3)));
        xattrs.extend(xattr(HEADERS, headers.to_bytes().unwrap().unwrap()));
        assert_eq!(Known::read(&attr(3), &xattrs).headers, headers);
        assert_eq!(Known::read(&attr(4), &xattrs).headers, Headers::default());
    }

    #[test]
    fn parts_are_found_by_their_numbers() {
        let mut headers = Headers::default();
        assert_eq!((headers.part(1, 9).ok(), headers.parts_count()), (Some(0..9), None));
        assert!(headers.part(2, 9).is_err() && headers.part(0, 9).is_err());
        headers.set_parts([5, 5, 5, 2].into_iter());
        assert_eq!((headers.parts.len(), headers.parts_count()), (2, Some(4)));
        for (number, range) in [(1, 0..5), (3, 10..15), (4, 15..17)] {
            assert_eq!(headers.part(number, 17).ok(), Some(range));
        }
        assert!(headers.parts_fill(17) && !headers.parts_fill(18));
        assert!(!Headers { parts: vec![(u64::MAX, 2)], ..Headers::default() }.parts_fill(0));
        assert!(headers.part(5, 17).is_err() && headers.part(-1, 17).is_err());
        headers.set_parts(1..=2000);
        assert!(headers.parts.is_empty(), "too many sizes are not kept");
    }

    #[test]
    fn headers_come_back_and_what_cannot_be_sent_does_not() {
        let mut headers = Headers { content_type: Some("text/x".into()), ..Headers::default() };
        headers.user.insert("colour".into(), "red".into());
        let known = |headers: &Headers| {
            let bytes = headers.to_bytes().unwrap().unwrap();
            Known::read(&attr(0), &xattr(HEADERS, bytes)).headers
        };
        assert_eq!(known(&headers), headers);
        let mut bad = headers.clone();
        bad.content_language = Some("a\r\nx: y".into());
        bad.user.insert("no name".into(), "x".into());
        bad.user.insert("lines".into(), "a\nb".into());
        assert_eq!(known(&bad), headers);
        let broken = xattr(HEADERS, b"{".to_vec());
        assert_eq!(Known::read(&attr(0), &broken).headers, Headers::default());
    }

    #[test]
    fn tags_of_a_header_are_read_as_a_query() {
        let tags = tags_of_header("a=1&b%2F=x+y&c").unwrap();
        let pairs: Vec<_> = tags.iter().map(|tag| (tag.key.clone(), tag.value.clone())).collect();
        let pair = |key: &str, value: &str| (Some(key.to_owned()), Some(value.to_owned()));
        assert_eq!(pairs, [pair("a", "1"), pair("b/", "x y"), pair("c", "")]);
        assert!(tags_of_header("a=%2").is_err());
        assert!(tags_to_bytes(&tags_of_header("a=1&a=2").unwrap()).is_err());
        let stored = tags_to_bytes(&tags).unwrap().unwrap();
        assert_eq!(tags_of(&stored).len(), 3);
    }

    #[test]
    fn hex_digits_are_bytes() {
        assert_eq!(unhex(&hex(b"\0\xff7")), Some(b"\0\xff7".to_vec()));
        assert_eq!((unhex("0"), unhex("0g")), (None, None));
    }
}
