//! Element types of tokens, and the bytes of a token with its scales.

use std::str::FromStr;

use fabricast_sim::schedule::UnknownName;

/// Element type in which a token travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// 16 bits per element, bf16 or f16, no scales.
    Bf16,
    /// 8 bits per element and a scale of 32 bits per 128 elements (DeepSeek-V3, arXiv 2412.19437, §3.3.2).
    Fp8,
    /// 4 bits per element and a scale of 8 bits per 16 elements (NVFP4, as in TensorRT-LLM and Transformer Engine).
    Nvfp4,
}

const NAMES: [(TokenType, &str); 6] = [
    (TokenType::Bf16, "bf16"),
    (TokenType::Fp8, "fp8"),
    (TokenType::Nvfp4, "nvfp4"),
    (TokenType::Bf16, "bfloat16"),
    (TokenType::Bf16, "f16"),
    (TokenType::Fp8, "f8e4m3"),
];

impl TokenType {
    /// Name of the type on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    /// Bytes of a token of `hidden` elements, scales included.
    #[must_use]
    pub fn token_bytes(self, hidden: u32) -> u64 {
        let hidden = u64::from(hidden);
        match self {
            Self::Bf16 => 2 * hidden,
            Self::Fp8 => hidden + 4 * hidden.div_ceil(128),
            Self::Nvfp4 => hidden.div_ceil(2) + hidden.div_ceil(16),
        }
    }
}

impl FromStr for TokenType {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = NAMES.iter().find(|row| row.1 == text).map(|row| row.0);
        found.ok_or_else(|| UnknownName::new("token type", text, &NAMES.map(|row| row.1)))
    }
}
