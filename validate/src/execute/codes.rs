//! Whole numbers in the element types: which are exact, and their bits.

use fabricast_sim::schedule::{DataType, ReduceOp};

/// Largest number up to which every whole number is exact; more than 2,048 are never used.
fn exact_to(dtype: DataType) -> u32 {
    match dtype {
        // Significands of 3 and 4 bits, the leading one included.
        DataType::F8e5m2 => 8,
        DataType::F8e4m3 => 16,
        DataType::I8 => 127,
        DataType::U8 => 255,
        DataType::Bf16 => 256,
        _ => 2048,
    }
}

/// Which numbers the ranks bring, such that every reduction is exact in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Ranks that bring more than the neutral number.
    pub active: u32,
    /// How many different numbers.
    pub range: u32,
    /// The largest result.
    pub largest: u32,
}

impl Numbers {
    /// For a reduction over some ranks.
    pub fn of(dtype: DataType, op: ReduceOp, ranks: u32) -> Self {
        let most = exact_to(dtype);
        match op {
            ReduceOp::Sum => {
                let active = ranks.min(most);
                // Few enough that all together stay exact; some variety even where only the copies matter.
                let range = most / active.max(1) + 1;
                Self { active, range, largest: active * (range - 1) }
            }
            // Ones and twos: powers of two are exact as far as exponents go, and integers do not wrap.
            ReduceOp::Prod => {
                let active = ranks.min(most.ilog2());
                Self { active, range: 2, largest: 1 << active }
            }
            ReduceOp::Max | ReduceOp::Min => Self { active: ranks, range: most + 1, largest: most },
        }
    }
}

/// The bits of a whole number that the type holds exactly.
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

/// A float of so many bits of exponent and fraction, the exponent's bias being the usual one.
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
    fn codes_are_those_of_the_formats() {
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
    fn every_result_is_exact() {
        for dtype in [DataType::F8e5m2, DataType::F8e4m3, DataType::I8, DataType::Bf16, DataType::F16, DataType::F32] {
            for ranks in 1..65 {
                let sum = Numbers::of(dtype, ReduceOp::Sum, ranks);
                assert!(sum.largest <= exact_to(dtype) && sum.range >= 2, "{dtype:?} {ranks} {sum:?}");
                let product = Numbers::of(dtype, ReduceOp::Prod, ranks);
                assert!(product.largest <= exact_to(dtype), "{dtype:?} {ranks} {product:?}");
            }
        }
    }
}
