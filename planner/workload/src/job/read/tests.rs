//! Tests of the reader of training jobs.

use super::super::{Attention, FlashKernel, Layout, Overlap, Training, Zero};
use super::*;

/// Returns the job file of GPT-3 175B as in arXiv 2205.05198. `lines` replaces the values of the same keys.
pub(crate) fn text(lines: &str) -> String {
    let mut text = lines.to_owned();
    for (key, line) in [
        ("name", "name = \"gpt3-175b\""),
        ("model", "model = { layers = 96, hidden = 12288, heads = 96, ffn = 49152, vocab = 51200, seq = 2048 }"),
        ("global_batch", "global_batch = 64"),
        ("parallel", "parallel = { tp = 8, pp = 8, dp = 1, interleave = 3, sequence = true }"),
    ] {
        if !lines.lines().any(|line| line.starts_with(key)) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

pub(crate) fn job(lines: &str) -> Training {
    trained(&text(lines))
}

pub(crate) fn trained(text: &str) -> Training {
    match read_job(text, "job.toml").unwrap() {
        Job::Training(job) => job,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flash_attention_accepts_booleans_and_versions() {
    let text = |value: &str| {
        format!(
            "name = \"j\"\nglobal_batch = 8\nflash_attention = {value}\nmodel = {{ layers = 2, hidden = 64, heads = 4, vocab = 100, seq = 32 }}\nparallel = \"auto\"\n"
        )
    };
    for (value, expected) in [
        ("false", Attention::Unfused),
        ("true", Attention::Flash(FlashKernel::Newest)),
        ("2", Attention::Flash(FlashKernel::Second)),
        ("1", Attention::Flash(FlashKernel::First)),
    ] {
        assert_eq!(trained(&text(value)).attention, expected);
    }
    for value in ["3", "-1", "\"two\"", "1.5"] {
        let error = read_job(&text(value), "job.toml").unwrap_err();
        assert_eq!(error.location.to_string(), "job.toml:3:19", "{error}");
        let message = error.to_string();
        assert!(message.contains("expected true, false, or the version of FlashAttention: 1 or 2"), "{message}");
    }
}

/// FSDP and TorchTitan shard weights unless the job states another stage.
#[test]
fn frameworks_that_shard_weights_by_default_do() {
    let zero = |lines: &str| {
        job(&format!("kind = \"training\"\nglobal_batch = 8\n{lines}model = \"llama-3-8b\"\nparallel = {{ dp = 8 }}\n"))
            .zero
    };
    for framework in ["fsdp", "torchtitan", "torchtitan@2026-07"] {
        assert_eq!(zero(&format!("framework = \"{framework}\"\n")), Zero::Weights, "{framework}");
        assert_eq!(zero(&format!("framework = \"{framework}\"\nzero = 0\n")), Zero::None, "{framework}");
    }
    assert_eq!(zero("framework = \"torch-ddp\"\n"), Zero::None);
}

#[test]
fn every_training_key_is_read() {
    let job = job("kind = \"training\"\nprecision = \"fp8\"\nmicro_batch = 2\nzero = 1\nbucket_mb = 40\n\
                   gradient_bits = 8\nrecompute = \"full\"\nflash_attention = true\noverlap = false\n\
                   collectives = \"any\"\nexpert_skew = 1.5\nweight = 2\ntrain_tokens = 3e11\n\
                   model = { layers = 8, hidden = 64, heads = 8, kv_heads = 2, ffn = 96, gated = true, vocab = 100, seq = 32, experts = 4, experts_per_token = 2 }\n\
                   parallel = { tp = 2, pp = 1, dp = 4, ep = 2, cp = 2, interleave = 1, sequence = true }\n");
    assert_eq!(
        (job.precision, job.micro_batch, job.zero, job.bucket_mb),
        (Precision::Fp8, 2, Zero::Optimizer, Some(40))
    );
    assert_eq!(
        (job.gradient_bits, job.recompute, job.attention),
        (8, Recompute::Full, Attention::Flash(FlashKernel::Newest))
    );
    assert_eq!((job.overlap, job.collectives, job.skew), (Overlap::Off, CollectiveCandidates::Any, 1.5));
    assert_eq!((job.weight, job.train_tokens), (2.0, Some(300_000_000_000)));
    assert_eq!((job.model.key_width(), job.model.ffn_matrices, job.model.experts), (16, 3, 4));
    assert!(Layout::specified_by(&job, 16).unwrap().is_some());
    assert!(Layout::specified_by(&self::job("parallel = \"auto\"\n"), 7).unwrap().is_none());
}

#[test]
fn invalid_training_jobs_are_rejected_with_location() {
    for (line, location, expected) in [
        ("globl_batch = 1", "job.toml:1:1", "unknown field"),
        ("micro_batch = 0", "job.toml:1:15", "from 1 to"),
        ("micro_batch = 5", "job.toml:4:16", "not a multiple of micro_batch 5"),
        ("precision = \"bf17\"", "job.toml:1:13", "bf16"),
        ("precision = \"nvfp4\"", "job.toml:1:13", "for inference"),
        ("zero = 4", "job.toml:1:8", "0, 1, 2 or 3"),
        ("zero = 2\nzero_partition = \"tensors\"", "job.toml:2:18", "expected zero = 1"),
        ("zero = 2\nreshard_after_forward = true", "job.toml:2:25", "expected zero = 3"),
        ("optimizer_tier = \"disk\"", "job.toml:1:18", "hbm"),
        ("optimizer_tier = \"host\"\nprocesses = \"single\"", "job.toml:2:13", "expected optimizer_tier"),
        ("accumulate = \"whole\"\nzero = 1", "job.toml:1:14", "expected zero = 2 or 3"),
        ("zero = 2\naccumulate = \"halves\"", "job.toml:2:14", "expected `shards` or `whole`"),
        ("kind = \"serving\"", "job.toml:1:8", "expected training, inference or trace"),
        ("kind = \"training\"\nkv_tier = \"hbm\"", "job.toml:2:11", "kv_tier: only valid for jobs of kind inference"),
        ("tpot_s = 1", "job.toml:1:10", "tpot_s: only valid for jobs of kind inference"),
        ("model = { layers = 2, hidden = 96, heads = 3, vocab = 10 }", "job.toml:1:9", "missing field `seq`"),
        (
            "model = { layers = 2, hidden = 96, heads = 3, vocab = 10, seq = 4, shared_experts = 1 }",
            "job.toml:1:85",
            "with 0 experts",
        ),
        ("processes = \"single\"\nzero = 1", "job.toml:1:13", "expected zero 0"),
        ("gradient_bits = 64", "job.toml:1:17", "from 1 to 32"),
        ("expert_skew = 0.5", "job.toml:1:15", "from 1 to 1000"),
        ("weight = nan", "job.toml:1:10", "NaN is not from"),
        ("weight = 1e300", "job.toml:1:10", "weight: 1e300 is not from 1e-9 to 1000000000"),
        ("train_tokens = 1e300", "job.toml:1:16", "train_tokens: 1e300 is not from 1 to 1e18"),
        ("parallel = \"manual\"", "job.toml:1:12", "\"auto\" or a table"),
        ("parallel = { tp = 0 }", "job.toml:1:19", "from 1 to"),
        ("parallel = { order = [\"tp\", \"pp\"] }", "job.toml:1:22", "each once"),
        ("parallel = { tq = 1 }", "job.toml:1:14", "unknown field"),
        ("model = { layers = 2, hidden = 100, heads = 3, vocab = 10, seq = 4 }", "job.toml:1:45", "divided by 3"),
        (
            "model = { layers = 2, hidden = 96, heads = 3, kv_heads = 2, vocab = 10, seq = 4 }",
            "job.toml:1:58",
            "kv_heads",
        ),
        (
            "model = { layers = 2, hidden = 96, heads = 3, vocab = 10, seq = 4, experts = 4 }",
            "job.toml:1:9",
            "1 to experts",
        ),
        ("model = { layers = 99999999999, hidden = 96, heads = 3, vocab = 10, seq = 4 }", "job.toml:1:20", "from 1 to"),
        (
            "model = { layers = 99999, hidden = 9600000, heads = 3, ffn = 96, vocab = 10, seq = 9999999 }",
            "job.toml:1:9",
            "too large",
        ),
        ("model = 3", "job.toml:1:9", "expected a table of keys"),
        (
            "model = { layers = 2, hidden = 96, heads = 3, vocab = 10, seq = 4, head_dim = 8, latent = { kv_lora_rank = 9, qk_nope_head_dim = 8, qk_rope_head_dim = 4, v_head_dim = 8 } }",
            "job.toml:1:79",
            "head_dim: not allowed with `latent`",
        ),
        (
            "model = { layers = 2, hidden = 96, heads = 3, vocab = 10, seq = 4, latent = { kv_lora_rank = 9, qk_nope_head_dim = 8, v_head_dim = 8 } }",
            "job.toml:1:77",
            "missing field `qk_rope_head_dim`",
        ),
        ("parallel = { tp = 4, etp = 2 }", "job.toml:1:28", "etp: 2 is neither 1 nor tp 4"),
        ("recompute = ", "job.toml:1:13", ""),
        ("name = \"a\\u001b[31m\"", "job.toml:1:1", "no control characters"),
    ] {
        let error = read_job(&text(&format!("{line}\n")), "job.toml").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn invalid_degrees_are_rejected() {
    for (line, ranks, expected) in [
        ("parallel = { tp = 8, pp = 8, dp = 2 }", 64, "tp 8 × pp 8 × dp 2 is 128, and there are 64 ranks"),
        ("parallel = { tp = 8, pp = 8 }", 100, "is 64, and there are 100 ranks"),
        ("parallel = { tp = 64 }", 64, "96 heads cannot be divided by tp 64"),
        ("parallel = { pp = 7 }", 7, "96 layers cannot be divided by pp 7"),
        ("parallel = { dp = 6 }", 6, "not a multiple of dp 6"),
        ("parallel = { pp = 3, interleave = 2 }", 3, "a multiple of pp 3 micro-batches"),
        ("parallel = { interleave = 2 }", 1, "needs pipeline stages"),
        ("parallel = { cp = 3 }", 3, "cannot be divided by cp 3"),
        ("parallel = { dp = 2, ep = 2 }", 2, "no experts"),
        ("parallel = { tp = 2, etp = 1 }", 2, "expected sequence = true"),
        ("parallel = { tp = 2, etp = 1, sequence = true }", 2, "etp 1, and the model has no experts"),
        ("parallel = { tp = 2, etp = 1, sequence = true, order = [\"dp\", \"tp\", \"pp\"] }", 2, "tp right before dp"),
    ] {
        let error = Layout::specified_by(&job(&format!("{line}\n")), ranks).unwrap_err();
        assert!(error.to_string().contains(expected) && error.location.line > 0, "{line}: {error}");
    }
    let help = |line: &str, ranks| Layout::specified_by(&job(&format!("{line}\n")), ranks).unwrap_err().help;
    assert_eq!(help("parallel = { pp = 7 }", 7).as_deref(), Some("pp can be 6 or 8"));
    assert_eq!(help("parallel = { tp = 97 }", 97).as_deref(), Some("tp can be 96"));
    let error = read_job(&format!("kind = \"infrence\"\n{}", text("")), "job.toml").unwrap_err();
    assert_eq!(error.help.as_deref(), Some("did you mean `inference`?"));
    // The data-parallel degree defaults to the number of remaining ranks.
    let layout = Layout::specified_by(&job("parallel = { tp = 8, pp = 2 }\n"), 64).unwrap().unwrap();
    assert_eq!((layout.degrees.data, layout.micro_batches(&job(""))), (4, 16));
}
