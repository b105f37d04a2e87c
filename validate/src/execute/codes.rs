//! Whole numbers in the element types: the range that is exactly representable, and the bits of each number.

use fabricast_sim::schedule::{DataType, ReduceOp};

/// Largest n up to which a data type represents all whole numbers exactly, limited to 2,048.
fn exact_to(dtype: DataType) -> u32 {
    match dtype {
        // The significands have 3 and 4 bits, including the implicit leading bit.
        DataType::F8e5m2 => 8,
        DataType::F8e4m3 => 16,
        DataType::I8 => 127,
        DataType::U8 => 255,
        DataType::Bf16 => 256,
        _ => 2048,
    }
}

/// Whole numbers for the inputs of ranks, for which every reduction is exact in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Number of ranks whose inputs differ from the neutral element.
    pub active: u32,
    /// Number of different values of an input element.
    pub range: u32,
    /// Largest result of the reduction.
    pub largest: u32,
}

impl Numbers {
    /// Selects numbers for a reduction over `ranks` ranks such that the data type represents every result exactly.
    pub fn for_reduction(dtype: DataType, op: ReduceOp, ranks: u32) -> Self {
        let max_exact = exact_to(dtype);
        match op {
            ReduceOp::Sum => {
                let active = ranks.min(max_exact);
                // The range is small enough for exact sums, but contains at least two values, so that copies are
                // checked as well.
                let range = max_exact / active.max(1) + 1;
                Self { active, range, largest: active * (range - 1) }
            }
            // Inputs are ones and twos. Powers of two are exact within the exponent range, and integers do not
            // overflow.
            ReduceOp::Prod => {
                let active = ranks.min(max_exact.ilog2());
                Self { active, range: 2, largest: 1 << active }
            }
            ReduceOp::Max | ReduceOp::Min => Self { active: ranks, range: max_exact + 1, largest: max_exact },
        }
    }
}

/// Bits of a whole number that the data type represents exactly.
pub(super) fn code(dtype: DataType, number: u32) -> u64 {
    match dtype {
        DataType::F32 => u64::from((number as f32).to_bits()),
        DataType::F64 => f64::from(number).to_bits(),
        DataType::F16 => float(number, 5, 10),
        DataType::Bf16 => float(number, 8, 7),
        DataType::F8e4m3 => float(number, 4, 3),
        DataType::F8e5m2 => float(number, 5, 2),
        DataType::I8 | DataType::U8 | DataType::I32 | DataType::U32 | DataType::I64 | DataType::U64 => {
            u64::from(number)
        }
    }
}

/// Bits of a float with the given numbers of exponent and fraction bits and the standard exponent bias.
fn float(number: u32, exponent: u32, fraction: u32) -> u64 {
    if number == 0 {
        return 0;
    }
    let power = number.ilog2();
    let bias = (1 << (exponent - 1)) - 1;
    let below = u64::from(number) - (1 << power);
    let significand = if power <= fraction { below << (fraction - power) } else { below >> (power - fraction) };
    u64::from(power + bias) << fraction | significand
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_known_bit_patterns() {
        assert_eq!(code(DataType::F16, 1), 0x3c00);
        assert_eq!(code(DataType::F16, 2047), 0x67ff);
        assert_eq!(code(DataType::Bf16, 3), 0x4040);
        assert_eq!(code(DataType::F8e4m3, 1), 0x38);
        assert_eq!(code(DataType::F8e4m3, 15), 0x57);
        assert_eq!(code(DataType::F8e5m2, 6), 0x46);
        for number in 0..=2048 {
            assert_eq!(float(number, 8, 23), u64::from((number as f32).to_bits()));
        }
    }

    #[test]
    fn every_reduction_result_is_exact() {
        for dtype in [DataType::F8e5m2, DataType::F8e4m3, DataType::I8, DataType::Bf16, DataType::F16, DataType::F32] {
            for ranks in 1..65 {
                let sum = Numbers::for_reduction(dtype, ReduceOp::Sum, ranks);
                assert!(sum.largest <= exact_to(dtype) && sum.range >= 2, "{dtype:?} {ranks} {sum:?}");
                let product = Numbers::for_reduction(dtype, ReduceOp::Prod, ranks);
                assert!(product.largest <= exact_to(dtype), "{dtype:?} {ranks} {product:?}");
            }
        }
    }
}
