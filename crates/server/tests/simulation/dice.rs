//! Chance from a seed (SplitMix64).

/// A source of chance.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = u64::try_from(high - low).unwrap() + 1;
        low + i64::try_from(self.next() % span).unwrap()
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: i64) -> bool {
        self.between(0, 99) < percent
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.between(0, i64::try_from(len).unwrap() - 1)).unwrap()
    }
}
