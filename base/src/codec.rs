//! Encoding of values as bytes, in messages and in records alike.
//!
//! Integers are LEB128 varints (signed ones zigzag), except `u8` and `u128`, which have fixed
//! width; byte strings and lists carry their length. Decoding never panics and never allocates more
//! than the input could fill. The bytes are a contract: golden tests in `wire` and `meta` hold
//! them.

use bytes::Bytes;
use smallvec::{Array, SmallVec};

/// A value that can be written as bytes.
pub trait Encode {
    /// Appends the value to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// The value's bytes, on their own.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        self.encode(&mut out);
        out
    }
}

/// A value that can be read back.
pub trait Decode: Sized {
    /// Takes the value from the front of `input`.
    ///
    /// # Errors
    /// When the bytes are not what [`Encode`] writes.
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Reads a value that must fill `bytes` exactly.
    ///
    /// # Errors
    /// As [`Decode::decode`], and when bytes are left over.
    fn from_bytes(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        if reader.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }
}

/// Why bytes could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The input ends inside a value.
    #[error("input ends inside a value")]
    Short,
    /// Bytes are left after the last value.
    #[error("bytes left after the value")]
    Trailing,
    /// A number does not fit its type.
    #[error("number out of range")]
    Range,
    /// No variant has this tag.
    #[error("unknown tag for {what} tag={tag}")]
    Tag {
        /// The type that was read.
        what: &'static str,
        /// The tag that was found.
        tag: u8,
    },
    /// The bytes break a rule of the type, such as a name with a slash.
    #[error("invalid {0}")]
    Invalid(&'static str),
}

/// A cursor over bytes; byte strings come out as slices that share them.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a Bytes) -> Self {
        Reader { bytes, at: 0 }
    }

    /// Whether everything was taken.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Number of bytes left.
    #[must_use]
    #[inline]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next byte, which is not taken.
    #[must_use]
    #[inline]
    pub fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next `len` bytes, borrowed.
    ///
    /// # Errors
    /// When fewer are left.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        if self.left() < len {
            return Err(DecodeError::Short);
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    /// The next `len` bytes, sharing the input.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn take_shared(&mut self, len: usize) -> Result<Bytes, DecodeError> {
        if self.left() < len {
            return Err(DecodeError::Short);
        }
        let taken = self.bytes.slice(self.at..self.at + len);
        self.at += len;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, DecodeError> {
        // Most numbers are small.
        match self.bytes.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(DecodeError::Short)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Range);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Range)
    }
}

#[inline]
fn put_varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value.to_le_bytes()[0]);
    } else {
        put_long_varint(out, value);
    }
}

fn put_long_varint(out: &mut Vec<u8>, mut value: u64) {
    let mut bytes = [0; 10];
    let mut len = 0;
    while value >= 0x80 {
        bytes[len] = value.to_le_bytes()[0] | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value.to_le_bytes()[0];
    out.extend_from_slice(&bytes[..=len]);
}

macro_rules! varints {
    ($($t:ty),*) => {$(
        impl Encode for $t {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                put_varint(out, u64::from(*self));
            }
        }

        impl Decode for $t {
            #[inline]
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                <$t>::try_from(input.varint()?).map_err(|_| DecodeError::Range)
            }
        }
    )*};
}
varints!(u16, u32, u64);

impl Encode for i64 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, ((self << 1) ^ (self >> 63)).cast_unsigned());
    }
}

impl Decode for i64 {
    #[inline]
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let raw = input.varint()?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }
}

impl Encode for u8 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
}

impl Decode for u8 {
    #[inline]
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(input.take(1)?[0])
    }
}

impl Encode for bool {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode for bool {
    #[inline]
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::Tag { what: "bool", tag }),
        }
    }
}

impl Encode for u128 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
}

impl Decode for u128 {
    #[inline]
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = input.take(16)?;
        Ok(u128::from_le_bytes(bytes.try_into().expect("16 bytes were taken")))
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) {}
}

impl Decode for () {
    fn decode(_: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    put_varint(out, u64::try_from(len).expect("lengths fit in 64 bits"));
}

fn take_len(input: &mut Reader<'_>) -> Result<usize, DecodeError> {
    let len = usize::try_from(input.varint()?).map_err(|_| DecodeError::Range)?;
    // Every element takes at least one byte, so a longer list cannot be in what is left.
    if len > input.left() { Err(DecodeError::Short) } else { Ok(len) }
}

impl Encode for [u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        put_len(out, self.len());
        out.extend_from_slice(self);
    }
}

impl Encode for Bytes {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_ref().encode(out);
    }
}

impl Decode for Bytes {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = take_len(input)?;
        input.take_shared(len)
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Decode for String {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = take_len(input)?;
        let bytes = input.take(len)?;
        Ok(std::str::from_utf8(bytes).map_err(|_| DecodeError::Invalid("utf-8"))?.to_owned())
    }
}

/// An enum that [`codec!`](crate::codec) declared: its variants by the tags that stand for them in
/// the bytes.
pub trait Tagged {
    /// Tag and name of every variant, in the order they were declared.
    const VARIANTS: &'static [(u8, &'static str)];

    /// The tag of this value.
    fn tag(&self) -> u8;
}

/// Marks what may stand in a list: everything that takes at least one byte, except `u8`, whose
/// lists are [`Bytes`].
pub trait Element {}

macro_rules! elements {
    ($($t:ty),*) => {$(impl Element for $t {})*};
}
elements!(u16, u32, u64, i64, u128, String, Bytes);

impl<A: Element, B> Element for (A, B) {}
impl<T: Element> Element for Option<T> {}

impl<T: Encode + Element> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_len(out, self.len());
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Decode + Element> Decode for Vec<T> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = take_len(input)?;
        let mut items = Vec::with_capacity(len.min(1024));
        for _ in 0..len {
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl<A: Array<Item: Encode + Element>> Encode for SmallVec<A> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_len(out, self.len());
        for item in self {
            item.encode(out);
        }
    }
}

impl<A: Array<Item: Decode + Element>> Decode for SmallVec<A> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let len = take_len(input)?;
        let mut items = SmallVec::with_capacity(len.min(1024));
        for _ in 0..len {
            items.push(A::Item::decode(input)?);
        }
        Ok(items)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.encode(out);
            }
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if bool::decode(input)? { Ok(Some(T::decode(input)?)) } else { Ok(None) }
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

/// Declares a struct whose bytes are its fields in order, or an enum whose bytes are a tag and,
/// unless the variant is bare, one value.
#[macro_export]
macro_rules! codec {
    (
        $(#[$meta:meta])* $vis:vis struct $name:ident {
            $($(#[$fmeta:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$fmeta])* pub $field: $type,)* }

        impl $crate::codec::Element for $name {}

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                let _ = &out;
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(
                input: &mut $crate::codec::Reader<'_>,
            ) -> std::result::Result<Self, $crate::codec::DecodeError> {
                let _ = &input;
                Ok(Self { $($field: $crate::codec::Decode::decode(input)?,)* })
            }
        }
    };
    (
        $(#[$meta:meta])* $vis:vis enum $name:ident {
            $($(#[$vmeta:meta])* $variant:ident $(($type:ty))? = $tag:literal,)*
        }
    ) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$vmeta])* $variant $(($type))?,)* }

        impl $crate::codec::Element for $name {}

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($crate::codec!(@bind $name, $variant, value $(, $type)?) => {
                        out.push($tag);
                        $crate::codec!(@put out, value $(, $type)?);
                    })*
                }
            }
        }

        impl $crate::codec::Tagged for $name {
            const VARIANTS: &'static [(u8, &'static str)] = &[$(($tag, stringify!($variant)),)*];

            fn tag(&self) -> u8 {
                match self {
                    $($name::$variant { .. } => $tag,)*
                }
            }
        }

        impl $crate::codec::Decode for $name {
            fn decode(
                input: &mut $crate::codec::Reader<'_>,
            ) -> std::result::Result<Self, $crate::codec::DecodeError> {
                match <u8 as $crate::codec::Decode>::decode(input)? {
                    $($tag => Ok($crate::codec!(@take $name, $variant, input $(, $type)?)),)*
                    tag => Err($crate::codec::DecodeError::Tag { what: stringify!($name), tag }),
                }
            }
        }
    };
    (@bind $name:ident, $variant:ident, $value:ident, $type:ty) => { $name::$variant($value) };
    (@bind $name:ident, $variant:ident, $value:ident) => { $name::$variant };
    (@put $out:ident, $value:ident, $type:ty) => { $crate::codec::Encode::encode($value, $out) };
    (@put $out:ident, $value:ident) => {};
    (@take $name:ident, $variant:ident, $input:ident, $type:ty) => {
        $name::$variant($crate::codec::Decode::decode($input)?)
    };
    (@take $name:ident, $variant:ident, $input:ident) => { $name::$variant };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    codec! {
        #[derive(Debug, PartialEq, Clone)]
        struct Point { pub x: i64, pub tags: Vec<u32>, pub data: Bytes, pub name: Option<String>, }
    }
    codec! {
        #[derive(Debug, PartialEq, Clone)]
        enum Shape { Empty = 1, At(Point) = 2, }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(x: i64, tags: Vec<u32>, data: Vec<u8>, name: Option<String>) {
            let point = Point { x, tags, data: data.into(), name };
            prop_assert_eq!(&Point::from_bytes(&point.to_vec().into()).unwrap(), &point);
            let shape = Shape::At(point);
            prop_assert_eq!(&Shape::from_bytes(&shape.to_vec().into()).unwrap(), &shape);
        }

        #[test]
        fn any_bytes_decode_or_fail_without_a_panic(bytes: Vec<u8>) {
            let _ = Shape::from_bytes(&bytes.into());
        }
    }

    #[test]
    fn a_list_longer_than_its_input_is_refused_before_it_is_allocated() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, u64::MAX / 2);
        assert_eq!(Vec::<u64>::from_bytes(&bytes.into()), Err(DecodeError::Short));
    }

    #[test]
    fn a_variant_has_the_tag_that_its_bytes_begin_with() {
        assert_eq!(Shape::VARIANTS, [(1, "Empty"), (2, "At")]);
        assert_eq!(Shape::Empty.tag(), Shape::Empty.to_vec()[0]);
    }

    #[test]
    fn numbers_have_known_bytes() {
        assert_eq!(300u32.to_vec(), [0xac, 0x02]);
        assert_eq!((-2i64).to_vec(), [3]);
        assert_eq!(i64::from_bytes(&i64::MIN.to_vec().into()), Ok(i64::MIN));
        assert_eq!(u64::from_bytes(&u64::MAX.to_vec().into()), Ok(u64::MAX));
    }
}
