//! Pseudo-random draws of a seed: the same seed draws the same on every machine.

/// A sequence of draws (`SplitMix64`).
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

impl Draws {
    /// The sequence of `seed`.
    pub(crate) fn of(seed: u64) -> Draws {
        Draws(seed)
    }

    /// Draws 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Draws a number below `end`, which is not 0; with few ends as large as to show a bias.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Draws a place in a list of `len`, which is not empty.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        let len = u64::try_from(len).expect("a list is in memory");
        usize::try_from(self.below(len)).expect("it is below a length")
    }

    /// Draws from above 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a draw has 53 bits")]
    pub(crate) fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}
