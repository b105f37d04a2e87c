//! Conversion of the keys of a training job.

use std::fmt;

use serde::Deserialize;
use serde::de::{Unexpected, Visitor};
use toml::Spanned;

use super::super::{
    Attention, Dropout, FlashKernel, JobError, Overlap, Places, Precision, Processes, Reshard, Tier, Training, Zero,
};
use super::{Checked, JobText, MOST_COUNTED, Own, largest, own};

/// Attention kernel as written in the job file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlashText(pub Attention);

impl<'de> Deserialize<'de> for FlashText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = FlashText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or the version of FlashAttention: 1 or 2")
            }

            fn visit_bool<E: serde::de::Error>(self, is_one: bool) -> Result<FlashText, E> {
                Ok(FlashText(if is_one { Attention::Flash(FlashKernel::Newest) } else { Attention::Unfused }))
            }

            fn visit_i64<E: serde::de::Error>(self, version: i64) -> Result<FlashText, E> {
                match version {
                    1 => Ok(FlashText(Attention::Flash(FlashKernel::First))),
                    2 => Ok(FlashText(Attention::Flash(FlashKernel::Second))),
                    _ => Err(E::invalid_value(Unexpected::Signed(version), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JobText {
    /// Returns the keys that only training jobs have.
    pub(super) fn keys_of_training(&self) -> Vec<Own> {
        vec![
            own("global_batch", &self.global_batch),
            own("micro_batch", &self.micro_batch),
            own("zero", &self.zero),
            own("shard", &self.shard),
            own("optimizer_tier", &self.optimizer_tier),
            own("reshard_after_forward", &self.reshard_after_forward),
            own("accumulate", &self.accumulate),
            own("bucket_mb", &self.bucket_mb),
            own("gradient_bits", &self.gradient_bits),
            own("recompute", &self.recompute),
            own("recompute_layers", &self.recompute_layers),
            own("flash_attention", &self.flash_attention),
            own("kernels", &self.kernels),
            own("dropout", &self.dropout),
            own("overlap", &self.overlap),
            own("tensor_overlap", &self.tensor_overlap),
            own("train_tokens", &self.train_tokens),
            own("processes", &self.processes),
        ]
    }

    pub(super) fn training(&self, check: Checked<'_>, places: Places) -> Result<Training, JobError> {
        let global_batch = check.needed("global_batch", &self.global_batch, &places.job)?;
        let model = self.model(check, None)?;
        let zero = self.zero(check)?;
        let parallel = self.parallel(check)?;
        let placement = self.placement(check)?;
        self.fills(check, &parallel, &placement)?;
        self.sharding(check, zero)?;
        let precision = self.precision();
        if let (Precision::Nvfp4, Some(said)) = (precision, &self.precision) {
            let expected = "training keeps to bf16, fp16, fp8 or fp32 here: nvfp4 is for inference";
            return Err(check.wrong(said.span(), format!("precision: {expected}")));
        }
        let gradient_bits = match &self.gradient_bits {
            None => 8 * precision.bytes() as u32,
            Some(bits) if (1..=32).contains(bits.get_ref()) => *bits.get_ref(),
            Some(bits) => {
                return Err(check.wrong(bits.span(), format!("gradient_bits: {} is not from 1 to 32", bits.get_ref())));
            }
        };
        let tokens = check.within("train_tokens", &self.train_tokens, (1.0, 1e18), 0.0)?;
        let overlap = |said: &Option<Spanned<bool>>, unsaid| match said.as_ref().map_or(unsaid, |said| *said.get_ref())
        {
            true => Overlap::On,
            false => Overlap::Off,
        };
        let job = Training {
            name: self.name.get_ref().clone(),
            precision,
            global_batch: check.count("global_batch", global_batch)?,
            micro_batch: self.micro_batch.as_ref().map_or(Ok(1), |micro| check.count("micro_batch", micro))?,
            parallel,
            zero,
            shard: self.shard(check, zero)?,
            optimizer_tier: self.optimizer_tier.as_ref().map(|tier| *tier.get_ref()).unwrap_or_default(),
            reshard: self.reshard_after_forward.as_ref().map(|reshard| match *reshard.get_ref() {
                true => Reshard::AfterForward,
                false => Reshard::AfterBackward,
            }),
            accumulate: self.accumulate.as_ref().map(|how| *how.get_ref()),
            bucket_mb: self
                .bucket_mb
                .as_ref()
                .map(|size| check.count("bucket_mb", size))
                .transpose()?
                .map(|mb| mb as u32),
            gradient_bits,
            recompute: self.recompute.as_ref().map(|recompute| *recompute.get_ref()).unwrap_or_default(),
            recompute_layers: self.recompute_layers(check, model.layers)?,
            attention: self.flash_attention.as_ref().map(|flash| flash.get_ref().0).unwrap_or_default(),
            dropout: match self.dropout.as_ref().map_or(model.ffn_matrices == 2, |said| *said.get_ref()) {
                true => Dropout::On,
                false => Dropout::Off,
            },
            fusion: self.kernels.as_ref().map(|kernels| *kernels.get_ref()).unwrap_or_default(),
            overlap: overlap(&self.overlap, true),
            tensor_overlap: overlap(&self.tensor_overlap, false),
            placement,
            collectives: self.collectives,
            processes: self.processes(check, zero)?,
            skew: check.within("expert_skew", &self.expert_skew, (1.0, 1000.0), 1.0)?,
            weight: check.within("weight", &self.weight, (1e-9, 1e9), 1.0)?,
            train_tokens: (tokens >= 1.0).then_some(tokens as u64),
            places,
            model,
        };
        let tokens = job.micro_batch as f64 * job.model.seq as f64;
        if largest(&job.model, tokens, job.model.seq, job.skew) > MOST_COUNTED {
            let message = "a model and micro_batch too large to count: expected fewer or smaller";
            return Err(JobError::at(&job.places.model, message));
        }
        if !job.global_batch.is_multiple_of(job.micro_batch) {
            let message = format!(
                "global_batch {} is no whole number of times micro_batch {}",
                job.global_batch, job.micro_batch
            );
            return Err(JobError::at(&job.places.batch, message));
        }
        Ok(job)
    }

    /// Validates the number of recomputed layers.
    fn recompute_layers(&self, check: Checked<'_>, layers: u64) -> Result<Option<u64>, JobError> {
        let Some(some) = &self.recompute_layers else { return Ok(None) };
        let recompute = self.recompute.as_ref().map(|recompute| *recompute.get_ref()).unwrap_or_default();
        if !recompute.is_of_layers() {
            let message =
                "recompute_layers: none is computed anew as a whole: expected recompute = \"full\" or \"early_stop\"";
            return Err(check.wrong(some.span(), message.to_owned()));
        }
        match *some.get_ref() {
            number if (1..=layers).contains(&number) => Ok(Some(number).filter(|&number| number < layers)),
            number => {
                let message = format!("recompute_layers: {number} is not from 1 to the model's {layers} layers");
                Err(check.wrong(some.span(), message))
            }
        }
    }

    fn processes(&self, check: Checked<'_>, zero: Zero) -> Result<Processes, JobError> {
        let elsewhere = self.optimizer_tier.as_ref().filter(|tier| *tier.get_ref() != Tier::Hbm);
        match &self.processes {
            Some(how) if *how.get_ref() == Processes::Single && elsewhere.is_some() => {
                let message =
                    "processes: one process keeps its optimizer on the first GPU: expected optimizer_tier \"hbm\"";
                Err(check.wrong(how.span(), message.to_owned()))
            }
            Some(how) if *how.get_ref() == Processes::Single && zero > Zero::None => {
                let message =
                    "processes: one process keeps one copy of the optimizer, and zero divides many: expected zero 0";
                Err(check.wrong(how.span(), message.to_owned()))
            }
            other => Ok(other.as_ref().map(|how| *how.get_ref()).unwrap_or_default()),
        }
    }

    /// Validates the number of ranks over which a replica is sharded.
    fn shard(&self, check: Checked<'_>, zero: Zero) -> Result<Option<u32>, JobError> {
        let Some(shard) = &self.shard else { return Ok(None) };
        let wrong = |message: &str| Err(check.wrong(shard.span(), format!("shard: {message}")));
        match *shard.get_ref() {
            0 => wrong("0 ranks hold nothing: expected 2 or more, or no shard for all data-parallel ranks"),
            _ if zero == Zero::None => wrong("zero 0 divides nothing: expected zero = 1, 2 or 3"),
            1 => wrong("on 1 rank a copy is whole, which is zero 0: expected 2 or more, or zero = 0 without shard"),
            _ => check.count("shard", shard).map(|shard| Some(shard as u32)),
        }
    }

    /// Rejects sharding keys that need a higher ZeRO stage.
    fn sharding(&self, check: Checked<'_>, zero: Zero) -> Result<(), JobError> {
        if let Some(reshard) = self.reshard_after_forward.as_ref().filter(|_| zero < Zero::Weights) {
            let message = "reshard_after_forward: only zero 3 divides weights: expected zero = 3";
            return Err(check.wrong(reshard.span(), message.to_owned()));
        }
        if let Some(how) = self.accumulate.as_ref().filter(|_| zero < Zero::Gradients) {
            let message = "accumulate: zero 0 and 1 have whole gradients anyway: expected zero = 2 or 3";
            return Err(check.wrong(how.span(), message.to_owned()));
        }
        Ok(())
    }

    fn zero(&self, check: Checked<'_>) -> Result<Zero, JobError> {
        match self.zero.as_ref().map(|zero| (*zero.get_ref(), zero.span())) {
            None | Some((0, _)) => Ok(Zero::None),
            Some((1, _)) => Ok(Zero::Optimizer),
            Some((2, _)) => Ok(Zero::Gradients),
            Some((3, _)) => Ok(Zero::Weights),
            Some((other, bytes)) => {
                Err(check.wrong(bytes, format!("zero: {other} is no stage; expected 0, 1, 2 or 3")))
            }
        }
    }
}
