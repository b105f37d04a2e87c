//! Conversion of the keys of dispatch and combine, which training and inference share.

use fabricast_experts::UnsupportedExchange;

use super::super::{
    Dispatch, DispatchPrecision, Dispatcher, DispatcherOrigin, ExpertOverlap, Framework, JobError, Model, StepKind,
    TokenExchange,
};
use super::{JobText, KindKey, Validator, kind_key};

impl JobText {
    /// Returns the keys of dispatch and combine.
    pub(super) fn expert_keys(&self) -> Vec<KindKey> {
        vec![
            kind_key("dispatcher", &self.dispatcher),
            kind_key("dispatch_precision", &self.dispatch_precision),
            kind_key("expert_overlap", &self.expert_overlap),
        ]
    }

    /// Returns the dispatch of a job with `slots` experts, redundant copies included. Keys that the job does not state
    /// have the defaults of its software.
    pub(super) fn dispatch(
        &self,
        check: Validator<'_>,
        software: &Framework,
        model: &Model,
        slots: u64,
    ) -> Result<Dispatch, JobError> {
        if model.experts == 0
            && let Some((name, span)) = self.expert_keys().into_iter().find_map(|(name, span)| Some((name, span?)))
        {
            return Err(check.error(span, format!("{name}: the model has no experts")));
        }
        let dispatcher = self.dispatcher.as_ref().map(|dispatcher| *dispatcher.get_ref());
        let precision = self.dispatch_precision.as_ref().map(|precision| *precision.get_ref());
        let precision = precision.or(software.dispatch_precision);
        let dispatcher_or_default = dispatcher.or(software.dispatcher).unwrap_or_default();
        if let Some(stated) = &self.dispatch_precision
            && *stated.get_ref() == DispatchPrecision::Nvfp4
            && !matches!(dispatcher_or_default, Dispatcher::TensorRt | Dispatcher::TensorRtOneSided)
        {
            let message = "dispatch_precision: only trtllm and trtllm-one-sided dispatch nvfp4: expected bf16 or fp8";
            return Err(check.error(stated.span(), message.to_owned()));
        }
        if let Some(stated) = &self.dispatcher
            && let Some(kernel) = stated.get_ref().kernel(StepKind::Prefill)
            && let Err(error) = TokenExchange::new(kernel, 1.0, model, slots, 1.0).routing()
        {
            let message = format!("dispatcher: {}", UnsupportedExchange::tokens(kernel, error));
            return Err(check.error(stated.span(), message));
        }
        Ok(Dispatch {
            dispatcher: dispatcher_or_default,
            origin: if dispatcher.is_some() { DispatcherOrigin::Stated } else { DispatcherOrigin::Software },
            precision,
            overlap: match self.expert_overlap.as_ref().is_some_and(|overlap| *overlap.get_ref()) {
                true => ExpertOverlap::TwoBatches,
                false => ExpertOverlap::Off,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use fabricast_experts::{ExchangeKernel, RoutingPattern, TokenType};

    use super::super::super::{Job, Precision, StepKind, read_job};
    use super::*;

    const MODEL: &str =
        "model = { layers = 4, hidden = 64, heads = 8, vocab = 100, seq = 32, experts = 16, experts_per_token = 2";

    fn text(kind: &str, lines: &str, model: &str) -> String {
        let load = match kind {
            "training" => "global_batch = 8",
            _ => "prompt_tokens = 16\noutput_tokens = 16\nconcurrency = 8",
        };
        format!(
            "{lines}\nkind = \"{kind}\"\n{load}\nname = \"j\"\nparallel = {{ dp = 4, ep = 4 }}\n{MODEL}{model} }}\n"
        )
    }

    fn dispatch(kind: &str, lines: &str) -> Dispatch {
        match read_job(&text(kind, lines, ""), "job.toml").unwrap() {
            Job::Training(job) => job.dispatch,
            Job::Inference(job) => job.dispatch,
            Job::Trace(_) => panic!(),
        }
    }

    #[test]
    fn dispatch_keys_are_read_for_both_kinds() {
        for kind in ["training", "inference"] {
            assert_eq!(dispatch(kind, ""), Dispatch::default());
            let stated =
                dispatch(kind, "dispatcher = \"nccl-ep\"\ndispatch_precision = \"fp8\"\nexpert_overlap = true");
            let expected = Dispatch {
                dispatcher: Dispatcher::NcclEp,
                origin: DispatcherOrigin::Stated,
                precision: Some(DispatchPrecision::Fp8),
                overlap: ExpertOverlap::TwoBatches,
            };
            assert_eq!(stated, expected);
            for name in ["all_to_all", "all_gather"] {
                let collectives = dispatch(kind, &format!("dispatcher = \"{name}\""));
                assert_eq!(collectives.dispatcher.kernel(StepKind::Decode), None);
            }
            for (name, expected) in [
                ("deepep", ExchangeKernel::DeepEpLowLatency),
                ("deepep-normal", ExchangeKernel::DeepEp),
                ("deepep-low-latency", ExchangeKernel::DeepEpLowLatency),
                ("deepep-v2", ExchangeKernel::DeepEpElastic),
                ("pplx", ExchangeKernel::Pplx),
                ("trtllm", ExchangeKernel::TensorRtTwoSided),
                ("trtllm-one-sided", ExchangeKernel::TensorRtOneSided),
            ] {
                let library = dispatch(kind, &format!("dispatcher = \"{name}\""));
                assert_eq!(library.dispatcher.kernel(StepKind::Decode), Some(expected), "{name}");
            }
        }
    }

    /// Tokens have the precision of the GEMMs unless the job or its software states another type. They have 4 bits only
    /// if the kernel supports such tokens.
    #[test]
    fn dispatched_type_follows_job_software_and_precision() {
        let token_type =
            |kind: &str, lines: &str, kernel, precision| dispatch(kind, lines).token_type(kernel, precision);
        let (normal, two_sided) = (ExchangeKernel::DeepEp, ExchangeKernel::TensorRtTwoSided);
        assert_eq!(token_type("inference", "", normal, Precision::Fp8), TokenType::Fp8);
        assert_eq!(token_type("inference", "", normal, Precision::Nvfp4), TokenType::Bf16);
        assert_eq!(token_type("inference", "", two_sided, Precision::Nvfp4), TokenType::Nvfp4);
        assert_eq!(token_type("inference", "framework = \"sglang\"", normal, Precision::Fp8), TokenType::Fp8);
        assert_eq!(token_type("training", "framework = \"megatron\"", normal, Precision::Fp8), TokenType::Bf16);
        let stated = "framework = \"megatron\"\ndispatch_precision = \"fp8\"";
        assert_eq!(token_type("training", stated, normal, Precision::Bf16), TokenType::Fp8);
        assert_eq!(dispatch("inference", "framework = \"vllm\"").dispatcher, Dispatcher::AllGather);
        assert_eq!(dispatch("inference", "framework = \"sglang\"").dispatcher, Dispatcher::DeepEp);
    }

    #[test]
    fn limited_groups_apply_where_the_experts_divide() {
        let model = |more: &str| match read_job(&text("training", "", more), "job.toml").unwrap() {
            Job::Training(job) => job.model,
            _ => panic!(),
        };
        let limited = model(", expert_groups = 4, expert_groups_per_token = 2");
        assert_eq!(limited.routing(16), RoutingPattern::GroupLimited { groups: 4, limit: 2 });
        assert_eq!(limited.routing(18), RoutingPattern::Random);
        assert_eq!(model(", expert_groups = 4, expert_groups_per_token = 4").routing(16), RoutingPattern::Random);
        assert_eq!(model("").routing(16), RoutingPattern::Random);
    }

    #[test]
    fn invalid_dispatch_keys_are_rejected_with_location() {
        for (kind, lines, model, location, expected) in [
            ("training", "dispatcher = \"deep\"", "", "job.toml:1:14", "deepep-normal"),
            ("inference", "dispatch_precision = \"nvfp4\"", "", "job.toml:1:22", "only trtllm"),
            ("training", "disaggregation = \"decode\"", "", "job.toml:1:18", "only valid for jobs of kind inference"),
            ("inference", "disaggregation = \"decode\"\nttft_s = 1", "", "job.toml:1:18", "omit ttft_s"),
            ("inference", "disaggregation = \"prefill\"\ntpot_s = 1", "", "job.toml:1:18", "omit output_tokens"),
            (
                "training",
                "",
                ", expert_groups = 3, expert_groups_per_token = 2",
                "job.toml:6:123",
                "cannot be divided by 3",
            ),
            ("training", "", ", expert_groups = 8, expert_groups_per_token = 9", "job.toml:6:152", "9 of 8 groups"),
            ("training", "", ", expert_groups = 16, expert_groups_per_token = 1", "job.toml:6:153", "1 of 16 groups"),
            ("training", "", ", expert_groups = 8", "job.toml:6:9", "missing field `expert_groups_per_token`"),
        ] {
            let error = read_job(&text(kind, lines, model), "job.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{lines}{model}: {error}");
        }
        let dense = text("training", "expert_overlap = true", "")
            .replace("experts = 16, experts_per_token = 2", "biases = true");
        let error = read_job(&dense.replace(", ep = 4", ""), "job.toml").unwrap_err().to_string();
        assert!(error.starts_with("job.toml:1:18: expert_overlap: the model has no experts"), "{error}");
        let trace = "kind = \"trace\"\nname = \"t\"\nfile = \"x.csv\"\ndispatcher = \"pplx\"\n";
        let error = read_job(trace, "job.toml").unwrap_err().to_string();
        assert!(error.contains("dispatcher: only valid for jobs of kind training or inference"), "{error}");
    }

    /// A stated dispatcher that cannot describe the tokens is refused when the job is read; the default of software is
    /// replaced later.
    #[test]
    fn dispatchers_that_cannot_describe_the_tokens_are_refused() {
        let wide = |lines: &str, kind: &str| {
            text(kind, lines, "").replace("hidden = 64", "hidden = 2097152").replace("layers = 4", "layers = 1")
        };
        for kind in ["training", "inference"] {
            for dispatcher in ["deepep", "nccl-ep", "trtllm"] {
                let stated = wide(&format!("dispatcher = \"{dispatcher}\""), kind);
                let error = read_job(&stated, "job.toml").unwrap_err().to_string();
                let expected = "2097152 hidden elements; expected at most 1048576";
                assert!(error.starts_with("job.toml:1:14: dispatcher: ") && error.contains(expected), "{error}");
            }
            assert!(read_job(&wide("dispatcher = \"all_to_all\"", kind), "job.toml").is_ok());
        }
        assert!(read_job(&wide("framework = \"sglang\"", "inference"), "job.toml").is_ok());
    }

    /// A machine for one part of requests has no keys of the other part.
    #[test]
    fn keys_of_the_other_part_of_requests_are_refused() {
        let read = |part: &str, output: &str, lines: &str| {
            let text = text("inference", &format!("disaggregation = \"{part}\"\n{lines}"), "");
            read_job(&text.replace("output_tokens = 16\n", output), "job.toml").map_err(|error| error.to_string())
        };
        for (part, output, lines, expected) in [
            ("prefill", "output_tokens = 16\n", "", "omit output_tokens"),
            ("prefill", "", "tpot_s = 0.1", "omit tpot_s"),
            ("decode", "output_tokens = 16\n", "ttft_s = 0.1", "omit ttft_s"),
            ("decode", "output_tokens = 1\n", "", "2 or more"),
            ("decode", "", "", "missing field `output_tokens`"),
        ] {
            let error = read(part, output, lines).unwrap_err();
            assert!(error.contains(expected), "{part} {output} {lines}: {error}");
        }
        for output in ["", "output_tokens = 1\n"] {
            let Job::Inference(job) = read("prefill", output, "ttft_s = 0.1").unwrap() else { panic!() };
            assert_eq!(job.output_tokens, 1);
        }
        assert!(read("decode", "output_tokens = 16\n", "tpot_s = 0.1").is_ok());
    }
}
