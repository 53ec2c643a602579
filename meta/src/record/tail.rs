//! The end of a record to which a value was added later: nothing while there is none, so that
//! records of before are read as they are; otherwise a tag and the value.

use base::{Decode, DecodeError, Encode, Reader};

/// The tag before the value.
const TAG: u8 = 1;

/// Writes the value, if there is one.
pub(crate) fn encode<T: Encode>(value: Option<&T>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        out.push(TAG);
        value.encode(out);
    }
}

/// Reads the value, if there is one.
///
/// # Errors
/// When something else stands there.
pub(crate) fn decode<T: Decode>(input: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
    if input.is_empty() {
        return Ok(None);
    }
    match u8::decode(input)? {
        TAG => Ok(Some(T::decode(input)?)),
        tag => Err(DecodeError::Tag { what: "end of a record", tag }),
    }
}
