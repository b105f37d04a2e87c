//! Conversion of the keys of a training job.

use std::fmt;

use fabricast_topologies::Bytes;
use serde::Deserialize;
use serde::de::{Unexpected, Visitor};
use toml::Spanned;

use super::super::{
    Attention, Dropout, FlashKernel, Framework, FrameworkKind, JobError, JobSpans, MasterWeights, OptimizerDevice,
    Overlap, Precision, Processes, Reshard, StatePartition, Tier, Training, Zero, expected_version, find_framework,
    frameworks,
};
use super::lora::LoraText;
use super::{JobText, KindKey, MAX_TOTAL, Validator, kind_key, nearest, overflow_bound};

/// Attention implementation that the key `flash_attention` selects: true, false, or a version.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlashText(pub Attention);

impl<'de> Deserialize<'de> for FlashText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SwitchOrVersion;
        impl Visitor<'_> for SwitchOrVersion {
            type Value = FlashText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or the version of FlashAttention: 1 or 2")
            }

            fn visit_bool<E: serde::de::Error>(self, is_flash: bool) -> Result<FlashText, E> {
                Ok(FlashText(if is_flash { Attention::Flash(FlashKernel::Newest) } else { Attention::Unfused }))
            }

            fn visit_i64<E: serde::de::Error>(self, version: i64) -> Result<FlashText, E> {
                match version {
                    1 => Ok(FlashText(Attention::Flash(FlashKernel::First))),
                    2 => Ok(FlashText(Attention::Flash(FlashKernel::Second))),
                    _ => Err(E::invalid_value(Unexpected::Signed(version), &self)),
                }
            }
        }
        deserializer.deserialize_any(SwitchOrVersion)
    }
}

impl JobText {
    /// Returns the keys that only training jobs have.
    pub(super) fn training_keys(&self) -> Vec<KindKey> {
        vec![
            kind_key("global_batch", &self.global_batch),
            kind_key("micro_batch", &self.micro_batch),
            kind_key("zero", &self.zero),
            kind_key("zero_partition", &self.zero_partition),
            kind_key("shard", &self.shard),
            kind_key("optimizer_tier", &self.optimizer_tier),
            kind_key("weights_tier", &self.weights_tier),
            kind_key("optimizer_device", &self.optimizer_device),
            kind_key("moment_bits", &self.moment_bits),
            kind_key("master_weights", &self.master_weights),
            kind_key("buffers_mb", &self.buffers_mb),
            kind_key("gradient_addition", &self.gradient_addition),
            kind_key("optimizer_temporaries", &self.optimizer_temporaries),
            kind_key("loss_chunks", &self.loss_chunks),
            kind_key("launch", &self.launch),
            kind_key("reshard_after_forward", &self.reshard_after_forward),
            kind_key("accumulate", &self.accumulate),
            kind_key("bucket_mb", &self.bucket_mb),
            kind_key("gradient_bits", &self.gradient_bits),
            kind_key("lora", &self.lora),
            kind_key("recompute", &self.recompute),
            kind_key("recompute_layers", &self.recompute_layers),
            kind_key("flash_attention", &self.flash_attention),
            kind_key("kernels", &self.kernels),
            kind_key("dropout", &self.dropout),
            kind_key("overlap", &self.overlap),
            kind_key("tensor_overlap", &self.tensor_overlap),
            kind_key("train_tokens", &self.train_tokens),
            kind_key("processes", &self.processes),
            kind_key("checkpoint", &self.checkpoint),
        ]
    }

    pub(super) fn training(&self, check: Validator<'_>, spans: JobSpans) -> Result<Training, JobError> {
        let global_batch = check.required("global_batch", &self.global_batch, &spans.job)?;
        let model = self.model(check, None)?;
        let software = self.software(check, FrameworkKind::Training)?;
        let zero = self.zero(check, software.zero)?;
        let parallel = self.parallel(check)?;
        let placement = self.placement(check)?;
        self.check_degrees(check, &parallel, &placement)?;
        self.sharding(check, zero)?;
        let precision = self.precision();
        if let (Precision::Nvfp4, Some(value)) = (precision, &self.precision) {
            let expected = "training supports bf16, fp16, fp8 and fp32: nvfp4 is for inference";
            return Err(check.error(value.span(), format!("precision: {expected}")));
        }
        let gradient_bits = match &self.gradient_bits {
            None => software.gradient_bits.unwrap_or(8 * precision.bytes() as u32),
            Some(bits) if (1..=32).contains(bits.get_ref()) => *bits.get_ref(),
            Some(bits) => {
                return Err(check.error(bits.span(), format!("gradient_bits: {} is not from 1 to 32", bits.get_ref())));
            }
        };
        let tokens = check.number_in_range("train_tokens", &self.train_tokens, 1.0..=1e18, 0.0)?;
        let overlap =
            |value: &Option<Spanned<bool>>, default| match value.as_ref().map_or(default, |value| *value.get_ref()) {
                true => Overlap::On,
                false => Overlap::Off,
            };
        let job = Training {
            name: self.name.get_ref().clone(),
            precision,
            global_batch: check.count("global_batch", global_batch)?,
            micro_batch: self.micro_batch.as_ref().map_or(Ok(1), |micro| check.count("micro_batch", micro))?,
            lora: self.lora.as_ref().map(|text| LoraText::lora(text, check, &model, precision)).transpose()?,
            parallel,
            zero,
            shard: self.shard(check, zero)?,
            optimizer_tier: self.optimizer_tier.as_ref().map(|tier| *tier.get_ref()).unwrap_or_default(),
            weights_tier: self.weights_tier(check, zero)?,
            state_partition: self.state_partition(check, zero, software.zero_partition)?,
            optimizer_device: self.optimizer_device(check)?,
            moment_bits: self.moment_bits(check, software.moment_bits)?,
            master_weights: match self
                .master_weights
                .as_ref()
                .map(|stated| *stated.get_ref())
                .or(software.master_weights)
            {
                None | Some(true) => MasterWeights::Kept,
                Some(false) => MasterWeights::Absent,
            },
            buffers: match &self.buffers_mb {
                Some(mib) if *mib.get_ref() == 0 => Bytes(0),
                Some(mib) => Bytes(check.count("buffers_mb", mib)? << 20),
                None => Bytes(u64::from(software.buffers_mb.unwrap_or_default()) << 20),
            },
            gradient_addition: self
                .gradient_addition
                .as_ref()
                .map(|addition| *addition.get_ref())
                .or(software.gradient_addition_in(precision))
                .unwrap_or_default(),
            optimizer_temporaries: self.optimizer_temporaries(check, software.optimizer_temporaries)?,
            updated_gradients: software.updated_gradients.unwrap_or_default(),
            connection: software.connection.unwrap_or_default(),
            loss_chunks: match &self.loss_chunks {
                Some(chunks) => check.count("loss_chunks", chunks)?,
                None => software.loss_chunks.unwrap_or(1),
            },
            launch: self.launch.as_ref().map(|launch| *launch.get_ref()).or(software.launch).unwrap_or_default(),
            reshard: self.reshard_after_forward.as_ref().map(|reshard| match *reshard.get_ref() {
                true => Reshard::AfterForward,
                false => Reshard::AfterBackward,
            }),
            accumulate: self.accumulate.as_ref().map(|accumulate| *accumulate.get_ref()),
            bucket_mb: self
                .bucket_mb
                .as_ref()
                .map(|size| check.count("bucket_mb", size))
                .transpose()?
                .map(|mb| mb as u32)
                .or(software.bucket_mb),
            gradient_bits,
            recompute: self.recompute.as_ref().map(|recompute| *recompute.get_ref()).unwrap_or_default(),
            recompute_layers: self.recompute_layers(check, model.layers)?,
            attention: match (&self.flash_attention, software.flash_attention) {
                (Some(flash), _) => flash.get_ref().0,
                (None, Some(true)) => Attention::Flash(FlashKernel::Newest),
                (None, _) => Attention::default(),
            },
            dropout: match self.dropout.as_ref().map_or(model.ffn_matrices == 2, |value| *value.get_ref()) {
                true => Dropout::On,
                false => Dropout::Off,
            },
            fusion: self.kernels.as_ref().map(|kernels| *kernels.get_ref()).or(software.kernels),
            overlap: overlap(&self.overlap, software.overlap.unwrap_or(true)),
            tensor_overlap: overlap(&self.tensor_overlap, false),
            placement,
            collectives: self.collectives,
            processes: self.processes(check, zero, software.processes)?,
            skew: check.number_in_range("expert_skew", &self.expert_skew, 1.0..=1000.0, 1.0)?,
            dispatch: self.dispatch(check, software, &model, model.experts)?,
            weight: check.number_in_range("weight", &self.weight, 1e-9..=1e9, 1.0)?,
            train_tokens: (tokens >= 1.0).then_some(tokens as u64),
            checkpoint: self.checkpointing(check)?,
            spans,
            model,
        };
        let tokens = job.micro_batch as f64 * job.model.seq as f64;
        if overflow_bound(&job.model, tokens, job.model.seq, job.skew) > MAX_TOTAL {
            let message = "a model and micro_batch too large to count: expected fewer or smaller";
            return Err(JobError::at(&job.spans.model, message));
        }
        if !job.global_batch.is_multiple_of(job.micro_batch) {
            let message =
                format!("global_batch {} is not a multiple of micro_batch {}", job.global_batch, job.micro_batch);
            return Err(JobError::at(&job.spans.batch, message));
        }
        Ok(job)
    }

    /// Returns the validated number of recomputed layers; `None` if all layers are recomputed or the key is absent.
    fn recompute_layers(&self, check: Validator<'_>, layers: u64) -> Result<Option<u64>, JobError> {
        let Some(count) = &self.recompute_layers else { return Ok(None) };
        let recompute = self.recompute.as_ref().map(|recompute| *recompute.get_ref()).unwrap_or_default();
        if !recompute.recomputes_layers() {
            let message =
                "recompute_layers: no layer is recomputed in full: expected recompute = \"full\" or \"early_stop\"";
            return Err(check.error(count.span(), message.to_owned()));
        }
        match *count.get_ref() {
            number if (1..=layers).contains(&number) => Ok(Some(number).filter(|&number| number < layers)),
            number => {
                let message = format!("recompute_layers: {number} is not from 1 to the model's {layers} layers");
                Err(check.error(count.span(), message))
            }
        }
    }

    /// Returns the values that the job's software sets; none if the job does not name it.
    pub(super) fn software(&self, check: Validator<'_>, kind: FrameworkKind) -> Result<&'static Framework, JobError> {
        let Some(name) = &self.framework else { return Ok(Framework::unnamed()) };
        if let Some(expected) = expected_version(name.get_ref()) {
            let message = format!("framework: `{}` has no known version: expected {expected}", name.get_ref());
            return Err(check.error(name.span(), message));
        }
        let Some(framework) = find_framework(name.get_ref()).filter(|framework| framework.kind == kind) else {
            let known = frameworks().iter().filter(|framework| framework.kind == kind);
            let known = known.map(|framework| framework.name.as_str());
            let message = format!("framework: `{}` is not known for {}", name.get_ref(), kind.name());
            let help = nearest(name.get_ref(), known.clone()).or_else(|| {
                let mut names: Vec<&str> = known.collect();
                names.dedup();
                Some(format!("known: {}", names.join(", ")))
            });
            return Err(JobError { help, ..check.error(name.span(), message) });
        };
        Ok(framework)
    }

    /// Returns the validated memory tier of the weights.
    fn weights_tier(&self, check: Validator<'_>, zero: Zero) -> Result<Tier, JobError> {
        let Some(tier) = &self.weights_tier else { return Ok(Tier::Hbm) };
        let message = match *tier.get_ref() {
            Tier::Hbm => return Ok(Tier::Hbm),
            Tier::Peer => "weights_tier: zero 3 shards weights over GPUs: expected \"hbm\", \"host\" or \"nvme\"",
            Tier::Host | Tier::Nvme if zero < Zero::Weights => {
                "weights_tier: only zero 3 gathers weights for each pass: expected zero = 3"
            }
            tier => return Ok(tier),
        };
        Err(check.error(tier.span(), message.to_owned()))
    }

    fn moment_bits(&self, check: Validator<'_>, software: Option<u32>) -> Result<u32, JobError> {
        match &self.moment_bits {
            None => Ok(software.unwrap_or(32)),
            Some(bits) if matches!(*bits.get_ref(), 8 | 16 | 32) => Ok(*bits.get_ref()),
            Some(bits) => Err(check.error(bits.span(), format!("moment_bits: {} is not 8, 16 or 32", bits.get_ref()))),
        }
    }

    fn optimizer_temporaries(&self, check: Validator<'_>, software: Option<u64>) -> Result<u64, JobError> {
        match &self.optimizer_temporaries {
            None => Ok(software.unwrap_or_default()),
            Some(copies) if *copies.get_ref() <= 2 => Ok(*copies.get_ref()),
            Some(copies) => {
                Err(check.error(copies.span(), format!("optimizer_temporaries: {} is not 0, 1 or 2", copies.get_ref())))
            }
        }
    }

    fn optimizer_device(&self, check: Validator<'_>) -> Result<OptimizerDevice, JobError> {
        let tier = self.optimizer_tier.as_ref().map(|tier| *tier.get_ref()).unwrap_or_default();
        let Some(device) = &self.optimizer_device else {
            return Ok(if tier == Tier::Nvme { OptimizerDevice::Cpu } else { OptimizerDevice::default() });
        };
        match *device.get_ref() {
            OptimizerDevice::Cpu if !tier.is_behind_cpu() => {
                let message = "optimizer_device: a CPU updates state in its own memory or on its drives: expected \
                               optimizer_tier = \"host\" or \"nvme\"";
                Err(check.error(device.span(), message.to_owned()))
            }
            OptimizerDevice::Gpu if tier == Tier::Nvme => {
                let message = "optimizer_device: state on drives is updated by the CPU: expected \"cpu\"";
                Err(check.error(device.span(), message.to_owned()))
            }
            device => Ok(device),
        }
    }

    fn processes(&self, check: Validator<'_>, zero: Zero, software: Option<Processes>) -> Result<Processes, JobError> {
        let stated = self.processes.as_ref().map(|processes| (*processes.get_ref(), processes.span()));
        let named = software.zip(self.framework.as_ref().map(Spanned::span));
        let Some((processes, place)) = stated.or(named) else { return Ok(Processes::default()) };
        let is_offloaded = self.optimizer_tier.as_ref().is_some_and(|tier| *tier.get_ref() != Tier::Hbm);
        let message = match processes {
            Processes::Single if is_offloaded => {
                "processes: one process has its optimizer on the first GPU: expected optimizer_tier \"hbm\""
            }
            Processes::Single if zero > Zero::None => {
                "processes: one process has one optimizer replica, which zero cannot shard: expected zero 0"
            }
            processes => return Ok(processes),
        };
        Err(check.error(place, message.to_owned()))
    }

    /// Returns the validated number of ranks over which a replica is sharded; `None` if the key is absent.
    fn shard(&self, check: Validator<'_>, zero: Zero) -> Result<Option<u32>, JobError> {
        let Some(shard) = &self.shard else { return Ok(None) };
        let wrong = |message: &str| Err(check.error(shard.span(), format!("shard: {message}")));
        match *shard.get_ref() {
            0 => wrong("0 ranks cannot store a shard: expected 2 or more, or no shard for all data-parallel ranks"),
            _ if zero == Zero::None => wrong("zero 0 shards nothing: expected zero = 1, 2 or 3"),
            1 => wrong("1 rank shards nothing, which is zero 0: expected 2 or more, or zero = 0 without shard"),
            _ => check.count("shard", shard).map(|shard| Some(shard as u32)),
        }
    }

    /// Returns the division of optimizer states; that of the software applies to the stage at which it is possible.
    fn state_partition(
        &self,
        check: Validator<'_>,
        zero: Zero,
        software: Option<StatePartition>,
    ) -> Result<StatePartition, JobError> {
        match &self.zero_partition {
            None if zero == Zero::Optimizer => Ok(software.unwrap_or_default()),
            None => Ok(StatePartition::default()),
            Some(partition) if *partition.get_ref() == StatePartition::Tensors && zero != Zero::Optimizer => {
                let message = "zero_partition: only zero 1 divides states by whole tensors: expected zero = 1";
                Err(check.error(partition.span(), message.to_owned()))
            }
            Some(partition) => Ok(*partition.get_ref()),
        }
    }

    /// Rejects sharding keys that need a higher ZeRO stage.
    fn sharding(&self, check: Validator<'_>, zero: Zero) -> Result<(), JobError> {
        if let Some(reshard) = self.reshard_after_forward.as_ref().filter(|_| zero < Zero::Weights) {
            let message = "reshard_after_forward: only zero 3 shards weights: expected zero = 3";
            return Err(check.error(reshard.span(), message.to_owned()));
        }
        if let Some(accumulate) = self.accumulate.as_ref().filter(|_| zero < Zero::Gradients) {
            let message = "accumulate: zero 0 and 1 do not shard gradients: expected zero = 2 or 3";
            return Err(check.error(accumulate.span(), message.to_owned()));
        }
        Ok(())
    }

    fn zero(&self, check: Validator<'_>, software: Option<u8>) -> Result<Zero, JobError> {
        let stated = self.zero.as_ref().map(|zero| (*zero.get_ref(), zero.span()));
        match stated.or_else(|| Some((software?, 0..0))) {
            None | Some((0, _)) => Ok(Zero::None),
            Some((1, _)) => Ok(Zero::Optimizer),
            Some((2, _)) => Ok(Zero::Gradients),
            Some((3, _)) => Ok(Zero::Weights),
            Some((stage, bytes)) => {
                Err(check.error(bytes, format!("zero: {stage} is not a stage; expected 0, 1, 2 or 3")))
            }
        }
    }
}
