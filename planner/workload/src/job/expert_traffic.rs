//! Calls with which ranks with different experts exchange tokens.
//!
//! Libraries for experts (DeepEP, NCCL EP, pplx-kernels, TensorRT-LLM) send a token once to a rank or a host, and use
//! fewer bits for dispatch than for combine. Their calls are not collectives: [`ExpertCall`] has the tokens and their
//! routing, from which `fabricast-experts` predicts the time. Software that uses collectives instead
//! ([`Dispatcher::AllToAll`], [`Dispatcher::AllGather`]) makes ordinary calls ([`GroupCall`]).

use fabricast_experts::{ExchangeError, ExchangeKernel, Operation, RoutingPattern, TokenRouting, TokenType};
use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;

use super::dispatch::{Dispatcher, StepKind};
use super::{Dimension, GroupCall, Layout, Model, Phase, Training};

/// Dispatch or combine of the tokens of all ranks with different experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenExchange {
    /// Kernel that exchanges the tokens.
    pub kernel: ExchangeKernel,
    /// Dispatch or combine.
    pub operation: Operation,
    /// Type in which tokens travel.
    pub token_type: TokenType,
    /// Tokens of each rank.
    pub tokens: u64,
    /// Elements of a token.
    pub hidden: u32,
    /// Experts of all ranks, redundant copies included.
    pub experts: u32,
    /// Experts of a token.
    pub top_k: u32,
    /// Distribution of the experts of a token.
    pub pattern: RoutingPattern,
    /// Load of the most loaded rank relative to the mean; at least 1.
    pub skew: f64,
}

impl TokenExchange {
    /// Describes the exchange of `tokens` tokens per rank of a model with `experts` experts, redundant copies included.
    #[must_use]
    pub fn new(kernel: ExchangeKernel, tokens: f64, model: &Model, experts: u64, skew: f64) -> Self {
        Self {
            kernel,
            operation: Operation::Dispatch,
            token_type: TokenType::Bf16,
            tokens: (tokens.ceil() as u64).max(1),
            hidden: narrowed(model.hidden),
            experts: narrowed(experts),
            top_k: narrowed(model.experts_per_token),
            pattern: model.routing(experts),
            skew,
        }
    }

    /// Returns this exchange with another operation and type.
    #[must_use]
    pub fn with_operation(self, operation: Operation, token_type: TokenType) -> Self {
        Self { operation, token_type, ..self }
    }

    /// Routing of the tokens, as `fabricast-experts` describes it.
    ///
    /// # Errors
    /// [`ExchangeError`] for more tokens, elements or experts than it describes.
    pub fn routing(&self) -> Result<TokenRouting, ExchangeError> {
        TokenRouting::new(self.tokens, self.hidden, self.experts, self.top_k, self.pattern)?.with_skew(self.skew)
    }

    /// Bytes of a rank if a token has a copy for each of its experts: the message of an equivalent all_to_all.
    #[must_use]
    pub fn copied_bytes(&self) -> Bytes {
        let token_bytes = self.token_type.token_bytes(self.hidden) as f64;
        Bytes((self.tokens as f64 * f64::from(self.top_k) * token_bytes * self.skew).round() as u64)
    }
}

/// Number as the kernels describe it. Larger ones become the largest, which no kernel has.
fn narrowed(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Dispatch or combine by the kernel of a library, concurrently in all groups of ranks with different experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertCall {
    /// Phase of the step in which the call is made.
    pub phase: Phase,
    /// Tokens and their routing.
    pub exchange: TokenExchange,
    /// Number of calls in each occurrence of the phase.
    pub count: u64,
}

/// Dispatch and combine of a layer by a kernel, `count` times each.
#[must_use]
pub fn dispatch_and_combine(
    phase: Phase,
    exchange: TokenExchange,
    dispatch_type: TokenType,
    count: u64,
) -> [ExpertCall; 2] {
    [(Operation::Dispatch, dispatch_type), (Operation::Combine, TokenType::Bf16)].map(|(operation, token_type)| {
        ExpertCall { phase, exchange: exchange.with_operation(operation, token_type), count }
    })
}

/// Tokens of a micro-batch that a rank sends to experts, counted once.
pub(super) fn expert_tokens(job: &Training, layout: &Layout) -> u64 {
    let degrees = layout.degrees;
    job.micro_batch * job.model.seq / u64::from(degrees.context) / degrees.token_shares()
}

/// Returns the dispatches and combines of a training step by the kernel of a library; empty if collectives exchange the
/// tokens, or if every rank has all experts.
///
/// The backward pass dispatches the gradients of the outputs and combines those of the inputs, in the types of the
/// forward pass (DeepSeek-V3, arXiv 2412.19437, section 3.3.3).
#[must_use]
pub fn expert_calls(job: &Training, layout: &Layout) -> Vec<ExpertCall> {
    let Some(kernel) = job.dispatch.dispatcher.kernel(StepKind::Prefill) else { return Vec::new() };
    if job.model.experts == 0 || layout.degrees.expert <= 1 {
        return Vec::new();
    }
    let skew = layout.expert_imbalance(job.skew);
    let exchange = TokenExchange::new(kernel, expert_tokens(job, layout) as f64, &job.model, job.model.experts, skew);
    let dispatch_type = job.dispatch.token_type(kernel, job.precision);
    // Recomputation repeats the forward pass of a layer.
    let backward = if job.recompute.recomputes_feed_forwards() { 2 } else { 1 };
    [(Phase::LayerForward, 1), (Phase::LayerBackward, backward)]
        .into_iter()
        .flat_map(|(phase, count)| dispatch_and_combine(phase, exchange, dispatch_type, count))
        .collect()
}

/// Message of a collective that exchanges tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertCollective {
    /// Collective that the groups call.
    pub collective: Collective,
    /// Message size, the larger buffer.
    pub bytes: f64,
}

/// Tokens that collectives exchange.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveTokens {
    /// Tokens of each rank.
    pub tokens: f64,
    /// Elements of a token.
    pub hidden: f64,
    /// Experts of a token.
    pub top_k: f64,
    /// Load of the most loaded rank relative to the mean.
    pub skew: f64,
    /// Ranks with different experts.
    pub ranks: f64,
    /// Bytes of an element in dispatch and in combine.
    pub element_bytes: [f64; 2],
}

impl CollectiveTokens {
    /// Collectives of dispatch and of combine; `None` if a library's kernel exchanges the tokens. With an all_gather
    /// every rank receives all tokens, regardless of their experts.
    #[must_use]
    pub fn calls(&self, dispatcher: Dispatcher) -> Option<[ExpertCollective; 2]> {
        let (collectives, copies) = match dispatcher {
            Dispatcher::AllToAll => ([Collective::AllToAll; 2], self.top_k * self.skew),
            Dispatcher::AllGather => ([Collective::AllGather, Collective::ReduceScatter], self.ranks),
            _ => return None,
        };
        let elements = self.tokens * self.hidden * copies;
        let [dispatch, combine] = self.element_bytes;
        let [first, second] = collectives;
        Some([
            ExpertCollective { collective: first, bytes: elements * dispatch },
            ExpertCollective { collective: second, bytes: elements * combine },
        ])
    }
}

/// Calls of collectives that exchange tokens in a phase; equal ones are merged.
#[must_use]
pub fn expert_collectives(phase: Phase, calls: [ExpertCollective; 2], count: u64) -> Vec<GroupCall> {
    let call = |ExpertCollective { collective, bytes }, count| GroupCall {
        phase,
        dimension: Dimension::Expert,
        collective,
        bytes: Bytes(bytes.round() as u64),
        count,
    };
    let [dispatch, combine] = calls;
    if dispatch == combine {
        vec![call(dispatch, 2 * count)]
    } else {
        vec![call(dispatch, count), call(combine, count)]
    }
}
