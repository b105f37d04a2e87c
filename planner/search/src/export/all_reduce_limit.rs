//! Largest all_reduce that a serving framework runs with its own one-shot and two-shot kernels. Larger calls go to NCCL.
//!
//! | format | content | read by |
//! |---|---|---|
//! | `vllm` | JSON of `--compilation-config`: `pass_config.fi_allreduce_fusion_max_size_mb`, in MiB | vLLM 0.12 and later (`vllm/config/compilation.py`, `PassConfig.flashinfer_max_size`), for FlashInfer's all_reduce fused with RMSNorm |
//! | `sglang-env` | environment variable `SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB`, in KiB | SGLang (`environ.py`, `custom_all_reduce_v2.py`: `should_custom_ar`) |
//!
//! Both compare the size of the tensor with the limit and include it. Neither distinguishes numbers of ranks, but FlashInfer has
//! kernels for 2, 4 and 8 only.

use fabricast_collectives::algorithm::Algorithm;
use fabricast_sim::schedule::format::shortened;
use fabricast_sim::schedule::{Collective, Protocol};
use fabricast_topologies::Bytes;

use super::json_text::JsonText;
use super::{DroppedStrategy, SavedPlan, SavedRange, TableError, header};

/// Framework whose limit a file sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    /// vLLM with FlashInfer's all_reduce.
    Vllm,
    /// SGLang with the second version of its custom all_reduce.
    Sglang,
}

/// Key of vLLM's `pass_config` that has the limit.
const VLLM_KEY: &str = "fi_allreduce_fusion_max_size_mb";
/// Variable of SGLang that has the limit.
const SGLANG_VARIABLE: &str = "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB";
/// Numbers of ranks for which FlashInfer has an all_reduce (vLLM `PassConfig.flashinfer_max_size`).
const FLASHINFER_RANKS: [u32; 3] = [2, 4, 8];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Framework {
    /// Name of the format, as `--to` spells it.
    #[must_use]
    pub fn format(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang-env",
        }
    }

    /// Returns true if the framework's kernels exist for a number of ranks.
    #[must_use]
    pub fn supports(self, ranks: u32) -> bool {
        self == Self::Sglang || FLASHINFER_RANKS.contains(&ranks)
    }
}

/// File with the limit of a framework.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitFile {
    /// Framework that reads the file.
    pub framework: Framework,
    /// Largest call of the framework's own kernels.
    pub limit: Bytes,
    /// Names of settings that do not affect the limit, each with its line number (from 1).
    pub ignored: Vec<(u32, String)>,
}

/// Returns true if a range selects a strategy that the frameworks' own kernels implement.
fn is_own_kernel(range: &SavedRange) -> bool {
    matches!(range.algorithm, Algorithm::OneShot | Algorithm::TwoShot) && range.protocol == Protocol::Symmetric
}

/// Returns the end of the smallest sizes of a plan for which one_shot or two_shot over `symmetric` is selected, at most
/// its largest size; 0 if another strategy is selected at the smallest size.
#[must_use]
pub fn planned_limit(plan: &SavedPlan) -> Bytes {
    let mut ranges: Vec<&SavedRange> =
        plan.ranges.iter().filter(|range| range.collective == Collective::AllReduce).collect();
    ranges.sort_unstable_by_key(|range| range.min_bytes);
    let last = ranges.into_iter().take_while(|range| is_own_kernel(range)).last().map(|range| range.max_bytes);
    let sizes = plan.rows.iter().filter(|row| row.collective == Collective::AllReduce).map(|row| row.bytes);
    let largest = sizes.max().unwrap_or(Bytes(u64::MAX));
    last.unwrap_or_default().min(largest)
}

/// Returns the text of a plan's limit, and the strategies that it cannot express.
#[must_use]
pub fn write(plan: &SavedPlan, framework: Framework) -> (String, Vec<DroppedStrategy>) {
    let is_supported = framework.supports(plan.ranks);
    let limit = if is_supported { planned_limit(plan) } else { Bytes(0) };
    let ranges = plan.ranges.iter().filter(|range| range.collective == Collective::AllReduce);
    let dropped = ranges.filter(|range| is_own_kernel(range) && range.min_bytes > limit).map(|range| DroppedStrategy {
        collective: range.collective,
        bytes: (range.min_bytes, range.max_bytes),
        pick: range.pick().to_string(),
        substitute: None,
        reason: match is_supported {
            true => "there is one limit, and another strategy is selected for smaller calls".to_owned(),
            false => format!("FlashInfer has no all_reduce for {} ranks", plan.ranks),
        },
    });
    let dropped: Vec<DroppedStrategy> = dropped.collect();
    let text = match framework {
        // MiB may be fractions.
        Framework::Vllm => {
            format!("{{\n  \"pass_config\": {{ \"{VLLM_KEY}\": {} }}\n}}\n", limit.0 as f64 / MIB as f64)
        }
        Framework::Sglang => {
            let lines = header::lines(plan, "Largest all_reduce of SGLang's own kernels", &dropped);
            let comments: String = lines.iter().map(|line| format!("# {line}\n")).collect();
            format!("{comments}{SGLANG_VARIABLE}={}\n", limit.0 / KIB)
        }
    };
    (text, dropped)
}

/// Returns true if a JSON text is a compilation config of vLLM.
#[must_use]
pub fn is_vllm(text: &str) -> bool {
    text.contains("\"pass_config\"")
}

/// Returns true if a text sets the variable of SGLang.
#[must_use]
pub fn is_sglang(text: &str) -> bool {
    text.contains(SGLANG_VARIABLE)
}

/// Reads the limit of a compilation config as vLLM does. `source` is the file name used in errors.
///
/// # Errors
/// [`TableError`] with line and column: invalid JSON, another structure, no limit, or no size in MiB.
pub fn read_vllm(text: &str, source: &str) -> Result<LimitFile, TableError> {
    let json = JsonText::new(text, source);
    let root = json.root()?;
    let config = json.members(root, "a compilation config")?;
    let passes =
        config.get("pass_config").ok_or_else(|| json.error_at(root.get(), "no `pass_config`: expected one"))?;
    let passes_members = json.members(passes, "pass_config")?;
    let limit = passes_members.get(VLLM_KEY);
    let limit = limit.ok_or_else(|| json.error_at(passes.get(), format!("no `{VLLM_KEY}`: expected one")))?;
    let mib = limit.get().parse::<f64>().ok().filter(|mib| mib.is_finite() && *mib >= 0.0);
    let mib = mib.ok_or_else(|| {
        json.error_at(limit.get(), format!("{VLLM_KEY} {}: expected a size in MiB", shortened(limit.get())))
    })?;
    let others =
        config.iter().chain(passes_members.iter()).filter(|(key, ..)| ![VLLM_KEY, "pass_config"].contains(key));
    let ignored = others.map(|(key, part, _)| (json.error_at(part, "").location.line, key.to_owned())).collect();
    // vLLM truncates to whole bytes.
    Ok(LimitFile { framework: Framework::Vllm, limit: Bytes((mib * MIB as f64) as u64), ignored })
}

/// Reads the limit of SGLang: `NAME=VALUE` lines as of a shell, and `#` for comments. `source` is the file name used in
/// errors.
///
/// # Errors
/// [`TableError`] with line and column: a line that is no assignment, no or a second limit, or no whole number of KiB.
pub fn read_sglang(text: &str, source: &str) -> Result<LimitFile, TableError> {
    let file = JsonText::new(text, source);
    let (mut found, mut ignored) = (None, Vec::new());
    for (line, number) in text.lines().zip(1u32..) {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let content = content.strip_prefix("export ").unwrap_or(content).trim();
        let assignment = content.split_once('=');
        let (name, value) = assignment
            .ok_or_else(|| file.error_at(content, format!("`{}`: expected NAME=VALUE", shortened(content))))?;
        if name.trim() != SGLANG_VARIABLE {
            ignored.push((number, name.trim().to_owned()));
            continue;
        }
        if found.is_some() {
            return Err(file.error_at(content, "a second limit: expected one"));
        }
        let value = value.trim().trim_matches(['\'', '"']);
        let limit = value.parse::<u64>().ok().and_then(|kib| kib.checked_mul(KIB));
        let message = || format!("`{}`: expected a whole number of KiB", shortened(value));
        found = Some(limit.ok_or_else(|| file.error_at(value, message()))?);
    }
    let limit = found.ok_or_else(|| TableError::new_for_file(source, format!("expected {SGLANG_VARIABLE}=KIB")))?;
    Ok(LimitFile { framework: Framework::Sglang, limit: Bytes(limit), ignored })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_frameworks_read_them() {
        let vllm = "{\"mode\": 3,\n \"pass_config\": {\"fuse_allreduce_rms\": true, \"fi_allreduce_fusion_max_size_mb\": 0.5}}";
        let file = read_vllm(vllm, "config").unwrap();
        assert_eq!((file.framework, file.limit), (Framework::Vllm, Bytes(1 << 19)));
        assert_eq!(file.ignored, [(1, "mode".to_owned()), (2, "fuse_allreduce_rms".to_owned())]);
        let file =
            read_sglang("# made\nexport SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB='16384'\nHF_HOME=/x\n", "env").unwrap();
        assert_eq!((file.framework, file.limit), (Framework::Sglang, Bytes(16 << 20)));
        assert_eq!(file.ignored, [(3, "HF_HOME".to_owned())]);
    }

    #[test]
    fn invalid_values_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("# x\nSGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=16.5", 2, 41, "whole number of KiB"),
            ("SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=1\nvllm", 2, 1, "NAME=VALUE"),
            (
                "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=1\nSGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB=2",
                2,
                1,
                "second limit",
            ),
        ] {
            let error = read_sglang(text, "env").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
        for (text, column, expected) in [
            ("{\"pass_config\": 3}", 17, "expected pass_config, an object"),
            ("{\"pass_config\": {}}", 17, "no `fi_allreduce_fusion_max_size_mb`"),
            ("{\"pass_config\": {\"fi_allreduce_fusion_max_size_mb\": \"1\"}}", 53, "size in MiB"),
            ("{\"pass_config\": {\"fi_allreduce_fusion_max_size_mb\": -1}}", 53, "size in MiB"),
        ] {
            let error = read_vllm(text, "config").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (1, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }
}
