//! Lines of JSON, made by hand: a line is made for each change, and must cost next to nothing.
//!
//! Names are bytes. One that is UTF-8 stands under its key, as JSON escapes it; any other stands in
//! hex under the key with `_hex` behind it, and not under the key itself. So no two names look the
//! same.

use base::Time;

const HEX: &[u8; 16] = b"0123456789abcdef";
/// The numbers from 0 to 99, two digits each.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut number = 0;
    while number < 100 {
        pairs[number * 2] = b"0123456789"[number / 10];
        pairs[number * 2 + 1] = b"0123456789"[number % 10];
        number += 1;
    }
    pairs
};

/// Fields of a JSON object, each with its comma in front.
pub struct Text<'a>(pub &'a mut Vec<u8>);

impl Text<'_> {
    fn key(&mut self, key: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// A number.
    pub fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        let mut digits = [0; 20];
        let (mut at, mut left) = (digits.len(), number);
        while left >= 10 {
            let pair = usize::try_from(left % 100).expect("two digits") * 2;
            at -= 2;
            digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
            left /= 100;
        }
        if left > 0 || number == 0 {
            at -= 1;
            digits[at] = b'0' + u8::try_from(left).expect("a digit");
        }
        self.0.extend_from_slice(&digits[at..]);
    }

    /// A number, if there is one.
    pub fn number_if(&mut self, key: &str, number: Option<impl Into<u64>>) {
        if let Some(number) = number {
            self.number(key, number.into());
        }
    }

    /// A boolean, if it is true.
    pub fn flag_if(&mut self, key: &str, is_so: bool) {
        if is_so {
            self.key(key);
            self.0.extend_from_slice(b"true");
        }
    }

    /// Permission bits, as chmod(1) takes them.
    pub fn mode(&mut self, key: &str, mode: u32) {
        self.key(key);
        self.0.push(b'"');
        for shift in [9, 6, 3, 0] {
            self.0.push(b'0' + u8::try_from(mode >> shift & 7).expect("three bits"));
        }
        self.0.push(b'"');
    }

    /// Text that needs no escapes.
    pub fn plain(&mut self, key: &str, text: &str) {
        self.key(key);
        self.0.push(b'"');
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(b'"');
    }

    /// An id of 16 hex digits.
    pub fn id(&mut self, key: &str, id: u64) {
        self.key(key);
        self.0.push(b'"');
        hex(self.0, &id.to_be_bytes());
        self.0.push(b'"');
    }

    /// Text, escaped.
    pub fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        self.0.push(b'"');
        escape(self.0, text);
        self.0.push(b'"');
    }

    /// Bytes that should be UTF-8: as text, or in hex under another key.
    pub fn bytes(&mut self, key: &str, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.text(key, text),
            Err(_) => {
                self.key_hex(key);
                hex(self.0, bytes);
                self.0.push(b'"');
            }
        }
    }

    fn key_hex(&mut self, key: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"_hex\":\"");
    }
}

fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

fn escape(out: &mut Vec<u8>, text: &str) {
    let is_plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\' && *byte != 0x7f;
    if text.as_bytes().iter().all(is_plain) {
        return out.extend_from_slice(text.as_bytes());
    }
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend_from_slice(format!("\\{letter}").as_bytes()),
            '\n' => out.extend_from_slice(b"\\n"),
            // Letters that a terminal would obey, and those that turn the direction of text.
            '\0'..' ' | '\x7f'..'\u{a0}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(letter)).as_bytes());
            }
            _ => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// The latest moment that a line has told, as text: lines of one group have the same.
#[derive(Default)]
pub(crate) struct Moment {
    latest: Option<(Time, [u8; 27])>,
}

impl Moment {
    /// Appends a time as RFC 3339 has it, in UTC, with microseconds.
    pub(super) fn put(&mut self, out: &mut Vec<u8>, time: Time) {
        let text = match self.latest {
            Some((of, text)) if of == time => text,
            Some((of, mut text)) if of.sec == time.sec => {
                digits(&mut text[20..26], i64::from(time.nsec / 1000));
                text
            }
            Some(_) | None => {
                let mut text = *b"0000-00-00T00:00:00.000000Z";
                text[..19].copy_from_slice(&second(time.sec));
                digits(&mut text[20..26], i64::from(time.nsec / 1000));
                text
            }
        };
        self.latest = Some((time, text));
        out.extend_from_slice(&text);
    }
}

/// A time as RFC 3339 has it, in UTC, with microseconds.
#[must_use]
pub fn moment(time: Time) -> String {
    let mut out = Vec::new();
    Moment::default().put(&mut out, time);
    String::from_utf8(out).expect("digits and signs")
}

fn digits(out: &mut [u8], mut number: i64) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number.rem_euclid(10)).expect("a digit");
        number = number.div_euclid(10);
    }
}

/// The date and time of day of a second since the epoch, of the years 0 to 9999.
fn second(sec: i64) -> [u8; 19] {
    let (days, of_day) = (sec.div_euclid(86400), sec.rem_euclid(86400));
    let (year, month, day) = date(days);
    let mut text = *b"0000-00-00T00:00:00";
    digits(&mut text[0..4], year.clamp(0, 9999));
    digits(&mut text[5..7], month);
    digits(&mut text[8..10], day);
    digits(&mut text[11..13], of_day / 3600);
    digits(&mut text[14..16], of_day / 60 % 60);
    digits(&mut text[17..19], of_day % 60);
    text
}

/// Year, month and day of a number of days since the epoch. The years of this count begin in March,
/// so that a leap day is the last day of its year.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day)
}
