//! 128-bit signatures for colour refinement: sequences by chaining, multisets by addition.

/// Hash of the values added to it. Deterministic: no seed, equal on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Signature(u64, u64);

/// The finaliser of SplitMix64 (Steele, Lea & Flood, *Fast splittable pseudorandom number generators*, 2014): a
/// bijection of 64-bit words whose every output bit depends on every input bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Signature {
    pub(crate) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03)
    }

    /// Returns the signature of this sequence followed by a word.
    #[must_use]
    pub(crate) fn with(self, word: u64) -> Self {
        Self(mix(self.0.rotate_left(5) ^ word), mix(self.1.rotate_left(23).wrapping_add(word ^ 0x5851_f42d_4c95_7f2d)))
    }

    /// Returns the signature of this sequence followed by another signature.
    #[must_use]
    pub(super) fn with_signature(self, other: Self) -> Self {
        self.with(other.0).with(other.1)
    }

    /// Returns the signature of this sequence followed by a multiset.
    #[must_use]
    pub(super) fn with_members(self, members: SignatureSum) -> Self {
        self.with(members.0).with(members.1)
    }

    /// Returns the multiset that contains only this signature.
    fn as_member(self) -> SignatureSum {
        SignatureSum(mix(self.0 ^ self.1.rotate_left(32)), mix(self.1.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ self.0))
    }
}

/// Multiset of signatures, as their sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SignatureSum(u64, u64);

impl SignatureSum {
    /// Adds a signature as a member.
    pub(super) fn add(&mut self, member: Signature) {
        self.add_all(member.as_member());
    }

    /// Adds the members of another multiset.
    pub(super) fn add_all(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
        self.1 = self.1.wrapping_add(other.1);
    }

    /// Combines each member with the same word, by multiplication with a random odd factor. Since members are random,
    /// the sums of two different multisets are equal with a probability of about 2⁻⁵⁷ in each half.
    pub(super) fn times(self, word: u64) -> Self {
        let factor = Signature::new().with(word);
        Self(self.0.wrapping_mul(factor.0 | 1), self.1.wrapping_mul(factor.1 | 1))
    }
}
