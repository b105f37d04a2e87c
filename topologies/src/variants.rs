//! Lists of the variants of enums.

use strum::VariantArray;

/// Returns all variants of an enum in the order of their definition, for a constant `ALL` of `N` variants. Another `N`
/// than the number of variants is an error at compile time.
///
/// ```
/// use fabricast_topologies::variants::variants;
/// use strum::{EnumCount, VariantArray};
///
/// #[derive(Clone, Copy, Debug, PartialEq, EnumCount, VariantArray)]
/// enum Direction {
///     Send,
///     Receive,
/// }
///
/// impl Direction {
///     const ALL: [Self; Self::COUNT] = variants();
/// }
///
/// assert_eq!(Direction::ALL, [Direction::Send, Direction::Receive]);
/// ```
#[must_use]
pub const fn variants<T: VariantArray + Copy, const N: usize>() -> [T; N] {
    assert!(T::VARIANTS.len() == N, "the array has another length than the enum has variants");
    let mut all = [T::VARIANTS[0]; N];
    let mut index = 1;
    while index < N {
        all[index] = T::VARIANTS[index];
        index += 1;
    }
    all
}
