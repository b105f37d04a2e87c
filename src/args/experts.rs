//! Arguments of `--collective dispatch` and `combine`: tokens, experts and kernel.

use std::path::PathBuf;

use clap::Args;
use fabricast_experts::{ExchangeKernel, RoutingPattern, TokenRouting, TokenType};

/// Arguments of `--collective dispatch` and `combine`: tokens, their routing and the kernel.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Dispatch and combine")]
pub struct ExpertArgs {
    /// Number of tokens per rank
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=MAX_TOKENS))]
    pub tokens: Option<u64>,
    /// Number of elements per token (hidden size of the model) [default: 7168]
    #[arg(long, value_name = "N", requires = "tokens", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MAX_HIDDEN))]
    pub hidden: Option<u32>,
    /// Total number of experts of all ranks [default: 256]
    #[arg(long, value_name = "N", requires = "tokens", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MAX_EXPERTS))]
    pub experts: Option<u32>,
    /// Number of experts per token [default: 8]
    #[arg(long, value_name = "N", requires = "tokens", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=MAX_EXPERTS))]
    pub top_k: Option<u32>,
    /// Element type of sent tokens: bf16, fp8 or nvfp4 [default: fp8 for dispatch, bf16 for combine]
    #[arg(long, value_name = "TYPE", requires = "tokens")]
    pub token_type: Option<TokenType>,
    /// Routing of tokens: random, balanced, or groups=8,limit=4 [default: random]
    ///
    /// `random`: all sets of experts are equally likely. `groups=G,limit=L`: a token uses experts of at most L of G equal
    /// groups (node-limited routing). `balanced`: tokens are spread evenly over the ranks.
    #[arg(long, value_name = "PATTERN", requires = "tokens", value_parser = parse_routing)]
    pub routing: Option<RoutingPattern>,
    /// Load of the most loaded rank relative to the mean, 1 or more [default: 1]
    #[arg(long, value_name = "FACTOR", requires = "tokens")]
    pub skew: Option<f64>,
    /// Kernel: deepep, deepep-ll, deepep-v2, nccl-ep-ll, pplx, trtllm or trtllm-one-sided [default: deepep]
    ///
    /// `deepep`: DeepEP's normal kernels, a token once per NVLink domain. `deepep-ll`: its low-latency kernels, a copy for
    /// each expert. `nccl-ep-ll`: NCCL EP's, a copy for each rank in a dispatch. `trtllm`: TensorRT-LLM's kernels inside one NVLink domain.
    #[arg(long, value_name = "KERNEL", requires = "tokens")]
    pub kernel: Option<ExchangeKernel>,
    /// Number of SMs for DeepEP's normal kernels [default: 20]
    #[arg(long, value_name = "N", requires = "tokens", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub sms: Option<u32>,
    /// Write the expected bytes between ranks as a matrix of all_to_allv (CSV)
    ///
    /// A token is counted once for each rank with one of its experts. Pass the file to --matrix with all_to_allv to
    /// plan, verify and simulate schedules.
    #[arg(long, value_name = "FILE", requires = "tokens")]
    pub write_matrix: Option<PathBuf>,
}

const MAX_TOKENS: u64 = TokenRouting::MAX_TOKENS;
const MAX_HIDDEN: i64 = TokenRouting::MAX_HIDDEN as i64;
const MAX_EXPERTS: i64 = TokenRouting::MAX_EXPERTS as i64;

fn parse_routing(text: &str) -> Result<RoutingPattern, String> {
    let expected = || format!("`{text}` is not a routing: expected random, balanced or groups=8,limit=4");
    match text {
        "random" => return Ok(RoutingPattern::Random),
        "balanced" => return Ok(RoutingPattern::Balanced),
        _ => {}
    }
    let (mut groups, mut limit) = (None, None);
    for setting in text.split(',') {
        let (key, value) = setting.split_once('=').ok_or_else(expected)?;
        let value = value.trim().parse::<u32>().ok();
        match key.trim() {
            "groups" if groups.is_none() => groups = value,
            "limit" if limit.is_none() => limit = value,
            _ => return Err(expected()),
        }
    }
    match (groups, limit) {
        (Some(groups), Some(limit)) => Ok(RoutingPattern::GroupLimited { groups, limit }),
        _ => Err(expected()),
    }
}
