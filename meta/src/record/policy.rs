//! The policy of a directory: how it is to be divided, and which contents rest in its entries. It
//! was set on the directory, or where it was made.

use base::{
    Decode, DecodeError, Encode, Layout, Reader, Splits, Spread, Subsets, codec,
    limits::INLINE_BYTES_MAX,
};

/// The values that were set. Every partition of the directory repeats them.
///
/// Persisted: nothing when nothing was set, so only fields with other tags stand behind it in its
/// record; otherwise a tag and the values. A record without one has the bytes that it had before
/// directories could be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Policy {
    /// The way of dividing; `None` for that of the file system.
    pub(crate) spread: Option<Spread>,
    /// Number of partitions from the start; 0 if none was set, which means one.
    pub(crate) large_dir: u16,
    /// Whether directories that are made in this one have the same policy.
    pub(crate) inherit: bool,
    /// Number of entries at which a partition is too large; 0 if none was set.
    pub(crate) split_threshold: u32,
    /// The limit on inline contents of files that are made in the directory.
    pub(crate) inline_max: InlineMax,
}

/// The tag before a policy. 1 is the tag of a quota.
const TAG: u8 = 2;
/// The tag before a policy with a limit on inline contents, whose number stands last.
const TAG_INLINE: u8 = 3;

/// Most bytes of a file's contents that rest in its entry, unless the file system allows fewer;
/// `None` for the file system's limit.
///
/// Persisted: nothing for `None`, so it stands last in its record; otherwise a tag and the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct InlineMax(pub(crate) Option<u32>);

impl InlineMax {
    /// The file system's limit.
    pub(crate) const NONE: InlineMax = InlineMax(None);

    fn decode_number(input: &mut Reader<'_>) -> Result<InlineMax, DecodeError> {
        match u32::decode(input)? {
            number if number <= INLINE_BYTES_MAX => Ok(InlineMax(Some(number))),
            _ => Err(DecodeError::Invalid("inline_max")),
        }
    }
}

impl Encode for InlineMax {
    fn encode(&self, out: &mut Vec<u8>) {
        if let Some(number) = self.0 {
            out.push(TAG_INLINE);
            number.encode(out);
        }
    }
}

impl Decode for InlineMax {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        if input.peek() != Some(TAG_INLINE) {
            return Ok(InlineMax::NONE);
        }
        input.take(1)?;
        InlineMax::decode_number(input)
    }
}

codec! {
    /// The stored values of a policy.
    struct Values {
        pub spread: Option<Spread>,
        pub large_dir: u16,
        pub inherit: bool,
        pub split_threshold: u32,
    }
}

impl Policy {
    /// The policy where nothing was set.
    pub(crate) const NONE: Policy = Policy {
        spread: None,
        large_dir: 0,
        inherit: false,
        split_threshold: 0,
        inline_max: InlineMax::NONE,
    };

    /// Whether anything is set about how the directory is divided.
    pub(crate) fn divides(&self) -> bool {
        Policy { inherit: false, inline_max: InlineMax::NONE, ..*self } != Policy::NONE
    }

    /// The way of dividing where none was set.
    const SPREAD: Spread = Spread::Extendible;

    /// Number of entries at which a partition is too large; `default` where none was set.
    pub(crate) fn threshold(&self, default: u64) -> u64 {
        if self.split_threshold == 0 { default } else { self.split_threshold.into() }
    }

    /// The way in which the directory is divided when it is.
    pub(crate) fn spread(&self) -> Spread {
        self.spread.unwrap_or(Policy::SPREAD)
    }

    /// Number of partitions into which an empty directory is divided.
    pub(crate) fn partitions(&self) -> u16 {
        match self.spread() {
            Spread::None => 1,
            Spread::Extendible | Spread::Subsets => self.large_dir.max(1),
        }
    }

    /// The new layout of an empty directory that was divided like `now`, by this policy. `None`
    /// after more changes than can be counted.
    pub(crate) fn layout(&self, now: &Layout) -> Option<Layout> {
        let count = self.partitions();
        let is_so = match (now, self.spread()) {
            (Layout::Extendible(_), Spread::Extendible) | (Layout::Subsets(_), Spread::Subsets) => {
                now.active().eq(0..count)
            }
            (Layout::Whole | Layout::Extendible(_) | Layout::Subsets(_), _) => {
                count == 1 && now.active().eq(0..1)
            }
        };
        if is_so {
            return Some(now.clone());
        }
        let turn = now.turn().checked_add(1)?;
        Some(match self.spread() {
            Spread::None | Spread::Extendible => Layout::Extendible(Splits::started(turn, count)),
            Spread::Subsets => Layout::Subsets(Subsets::started(turn, count)),
        })
    }

    /// The policy of a directory that is made in one with this policy.
    pub(crate) fn inherited(self) -> Policy {
        if self.inherit { self } else { Policy::NONE }
    }
}

impl Encode for Policy {
    fn encode(&self, out: &mut Vec<u8>) {
        let Policy { spread, large_dir, inherit, split_threshold, inline_max } = *self;
        if *self != Policy::NONE {
            out.push(if inline_max.0.is_none() { TAG } else { TAG_INLINE });
            Values { spread, large_dir, inherit, split_threshold }.encode(out);
            if let Some(number) = inline_max.0 {
                number.encode(out);
            }
        }
    }
}

impl Decode for Policy {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let says_of_contents = match input.peek() {
            Some(TAG) => false,
            Some(TAG_INLINE) => true,
            Some(_) | None => return Ok(Policy::NONE),
        };
        input.take(1)?;
        let Values { spread, large_dir, inherit, split_threshold } = Values::decode(input)?;
        let inline_max = match says_of_contents {
            true => InlineMax::decode_number(input)?,
            false => InlineMax::NONE,
        };
        let policy = Policy { spread, large_dir, inherit, split_threshold, inline_max };
        if policy == Policy::NONE { Err(DecodeError::Invalid("policy")) } else { Ok(policy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spread: Option<Spread>, large_dir: u16) -> Policy {
        Policy { spread, large_dir, ..Policy::NONE }
    }

    #[test]
    fn a_policy_says_how_an_empty_directory_is_divided() {
        let of = |spread, large_dir| policy(spread, large_dir).layout(&Layout::Whole);
        assert_eq!(of(None, 0), Some(Layout::Whole));
        assert_eq!(of(Some(Spread::Subsets), 1), Some(Layout::Whole));
        assert_eq!(of(Some(Spread::None), 5), Some(Layout::Whole));
        assert_eq!(of(None, 5), Some(Layout::Extendible(Splits::started(1, 5))));
        assert_eq!(of(Some(Spread::Subsets), 5), Some(Layout::Subsets(Subsets::started(1, 5))));
    }

    #[test]
    fn what_is_divided_as_it_should_be_stays_and_another_way_is_a_later_turn() {
        let five = Layout::Extendible(Splits::started(1, 5));
        assert_eq!(policy(None, 5).layout(&five), Some(five.clone()));
        for (again, count) in [(policy(None, 3), 3), (policy(None, 0), 1)] {
            let layout = again.layout(&five).unwrap();
            assert_eq!((layout.turn(), layout.active().count()), (2, count));
        }
        let subsets = policy(Some(Spread::Subsets), 5).layout(&five).unwrap();
        assert_eq!(subsets, Layout::Subsets(Subsets::started(2, 5)));
        let one = policy(None, 0).layout(&five).unwrap();
        assert_eq!(policy(Some(Spread::Subsets), 0).layout(&one), Some(one));
    }
}
