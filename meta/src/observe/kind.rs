//! Names of the kinds of requests.

use base::Tagged as _;
use wire::Request;

/// The name of a kind of request: `block_put` for `BlockPut`.
pub(crate) fn name_of(kind: u8) -> String {
    let known = Request::VARIANTS.iter().find(|(tag, _)| *tag == kind);
    let mut name = String::new();
    for letter in known.map_or("unknown", |(_, name)| name).chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
