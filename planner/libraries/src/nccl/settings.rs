//! NCCL settings that change its choices, by the names of their environment variables.
//!
//! [`super::lists`] parses the grammar of `NCCL_ALGO` and `NCCL_PROTO`. Unknown variables are reported and not ignored,
//! because they may change the choice.

use fabricast_topologies::{Bytes, Picos};

use super::index::{Algo, Function, Proto};
use super::lists::{ListError, Lists};
use super::nvls_shape::{MAX_CHANNELS, NvlsShape};
use super::symmetric::SymmetricKernel;

/// Use of NVLS, if the fabric supports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NvlsSetting {
    /// NVLS is used if the fabric supports it.
    #[default]
    Auto,
    /// NVLS is not used (NCCL_NVLS_ENABLE=0).
    Off,
}

/// Condition for the use of PAT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PatSetting {
    /// PAT is used with one rank per node (NCCL_PAT_ENABLE=2).
    #[default]
    Auto,
    /// PAT is always used (NCCL_PAT_ENABLE=1).
    On,
    /// PAT is not used (NCCL_PAT_ENABLE=0).
    Off,
}

/// Use of a network that reduces, by a plugin (CollNet).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollNetSetting {
    /// CollNet is not used (NCCL_COLLNET_ENABLE=0).
    #[default]
    Off,
    /// CollNet is used between enough nodes, if the network reduces (NCCL_COLLNET_ENABLE=1).
    On,
}

/// User settings of NCCL; `None` for NCCL's default value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Allowed algorithms by function; algorithms that are not listed are excluded.
    pub algorithms: Lists<Algo>,
    /// Allowed protocols by function.
    pub protocols: Lists<Proto>,
    /// Minimum number of channels (NCCL_MIN_CTAS, NCCL_MIN_NCHANNELS).
    pub min_channels: Option<u16>,
    /// Maximum number of channels (NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS).
    pub max_channels: Option<u16>,
    /// Minimum number of channels of sends and receives (NCCL_MIN_P2P_NCHANNELS).
    pub min_p2p_channels: Option<u16>,
    /// Maximum number of channels of sends and receives (NCCL_MAX_P2P_NCHANNELS).
    pub max_p2p_channels: Option<u16>,
    /// Number of channels to a peer on another node (NCCL_NCHANNELS_PER_NET_PEER).
    pub channels_per_net_peer: Option<u16>,
    /// Use of NVLS (NCCL_NVLS_ENABLE).
    pub nvls: NvlsSetting,
    /// Number of channels of NVLS (NCCL_NVLS_NCHANNELS).
    pub nvls_channels: Option<u16>,
    /// Chunk size of NVLS (NCCL_NVLS_CHUNKSIZE).
    pub nvls_chunk: Option<Bytes>,
    /// Maximum chunk size of NVLSTree (NCCL_NVLSTREE_MAX_CHUNKSIZE).
    pub nvls_tree_chunk: Option<Bytes>,
    /// Use of PAT (NCCL_PAT_ENABLE).
    pub pat: PatSetting,
    /// Use of a network that reduces (NCCL_COLLNET_ENABLE).
    pub collnet: CollNetSetting,
    /// Minimum number of nodes with which CollNet is used (NCCL_COLLNET_NODE_THRESHOLD).
    pub collnet_nodes: Option<u32>,
    /// Number of threads per block with Simple and LL (NCCL_NTHREADS).
    pub threads: Option<u32>,
    /// Number of threads per block with LL128 (NCCL_LL128_NTHREADS).
    pub ll128_threads: Option<u32>,
    /// Minimum bytes per thread (NCCL_THREAD_THRESHOLDS) for tree LL, tree LL128, tree Simple, ring LL, ring LL128,
    /// ring Simple.
    pub thresholds: [Option<u64>; 6],
    /// Sizes of a connection's buffer with LL, LL128 and Simple (NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE, NCCL_BUFFSIZE).
    pub buffers: [Option<Bytes>; 3],
    /// Overhead of posting a message to the network (NCCL_NET_OVERHEAD).
    pub net_overhead: Option<Picos>,
    /// Maximum bytes per channel of sends with LL (NCCL_P2P_LL_THRESHOLD).
    pub p2p_ll_threshold: Option<Bytes>,
    /// Chunk sizes of sends, by [`LinkDistance`] (NCCL_P2P_NVL_CHUNKSIZE, NCCL_P2P_PCI_CHUNKSIZE,
    /// NCCL_P2P_NET_CHUNKSIZE).
    pub p2p_chunks: [Option<Bytes>; 3],
    /// Use of registered windows by symmetric kernels (NCCL_WIN_ENABLE).
    pub windows: Windows,
    /// The only symmetric kernel that runs, with its function (NCCL_SYM_KERNEL); `None` for all.
    pub symmetric_kernel: Option<(Function, SymmetricKernel)>,
    /// Number of thread blocks of symmetric kernels (NCCL_SYM_CTAS).
    pub symmetric_blocks: Option<u16>,
    /// Use of MSCCL's kernels by RCCL (RCCL_MSCCL_ENABLE).
    pub msccl: Msccl,
}

/// Use of MSCCL's kernels by RCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Msccl {
    /// MSCCL's kernels run the calls for which RCCL ships an algorithm file.
    #[default]
    On,
    /// MSCCL's kernels do not run.
    Off,
}

/// Most distant kind of connection between GPUs that send to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDistance {
    /// Connection over NVLink.
    Nvlink,
    /// Connection over PCIe.
    Pcie,
    /// Connection over the network.
    Network,
}

/// Availability of symmetric kernels, which run on registered windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Windows {
    /// Symmetric kernels run on registered windows.
    #[default]
    On,
    /// Symmetric kernels do not run.
    Off,
}

/// Reason why a text of NCCL settings is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// A word without `=`.
    #[error("`{0}` is not a setting: expected NAME=VALUE, as in NCCL_MIN_CTAS=24")]
    NotASetting(String),
    /// An invalid value of a setting.
    #[error("{name}={value}: expected {expected}")]
    Value {
        /// Name of the setting.
        name: String,
        /// Value that is invalid.
        value: String,
        /// Description of valid values.
        expected: &'static str,
    },
    /// An invalid list of algorithms or protocols.
    #[error("{name}: {source}")]
    List {
        /// Name of the setting.
        name: String,
        /// Error in the list.
        source: ListError,
    },
}

impl Settings {
    /// Parses `NAME=VALUE` words separated by spaces; values may be quoted.
    ///
    /// Returns the settings, and the names that are unknown or not modelled.
    ///
    /// # Errors
    /// Returns [`SettingError`] for a known name with an invalid value, or for a word without `=`.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), SettingError> {
        let mut settings = Self::default();
        let unknown = settings.apply(text)?;
        Ok((settings, unknown))
    }

    /// Sets the variables of a text in the form that [`Self::parse`] reads; all other variables are unchanged. Returns
    /// the names that are unknown or not modelled.
    ///
    /// # Errors
    /// Returns [`SettingError`] for a known name with an invalid value, or for a word without `=`. The variables in
    /// front of the erroneous one are set.
    pub fn apply(&mut self, text: &str) -> Result<Vec<String>, SettingError> {
        let mut unknown = Vec::new();
        for word in words(text) {
            let (name, value) = word.split_once('=').ok_or_else(|| SettingError::NotASetting(word.clone()))?;
            if !self.set(name.trim(), value.trim())? {
                unknown.push(name.trim().to_owned());
            }
        }
        Ok(unknown)
    }

    /// Sets one variable; returns false if the name is not known.
    ///
    /// # Errors
    /// Returns [`SettingError`] if the value is invalid. The settings are then unchanged.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, SettingError> {
        let invalid = |expected| SettingError::Value { name: name.to_owned(), value: value.to_owned(), expected };
        let number = || value.parse::<u64>().map_err(|_| invalid("a whole number"));
        let channels = || {
            let count = value.parse::<u16>().ok().filter(|count| (1..=MAX_CHANNELS).contains(count));
            count.map(Some).ok_or_else(|| invalid("a whole number from 1 to 64"))
        };
        let bytes = || Ok(Some(Bytes(number().map_err(|_| invalid("a number of bytes"))?)));
        let list = |source| SettingError::List { name: name.to_owned(), source };
        match name {
            "NCCL_ALGO" => self.algorithms = Lists::parse(value, &Algo::ALL, Algo::name).map_err(list)?,
            "NCCL_PROTO" => self.protocols = Lists::parse(value, &Proto::ALL, Proto::name).map_err(list)?,
            "NCCL_MIN_CTAS" | "NCCL_MIN_NCHANNELS" => self.min_channels = channels()?,
            "NCCL_MAX_CTAS" | "NCCL_MAX_NCHANNELS" => self.max_channels = channels()?,
            "NCCL_MIN_P2P_NCHANNELS" => self.min_p2p_channels = channels()?,
            "NCCL_MAX_P2P_NCHANNELS" => self.max_p2p_channels = channels()?,
            "NCCL_NCHANNELS_PER_NET_PEER" => self.channels_per_net_peer = channels()?,
            "NCCL_NVLS_NCHANNELS" => self.nvls_channels = channels()?,
            "NCCL_NVLS_ENABLE" => {
                self.nvls = match value {
                    "0" => NvlsSetting::Off,
                    "1" | "2" => NvlsSetting::Auto,
                    _ => return Err(invalid("0, 1 or 2")),
                }
            }
            "NCCL_PAT_ENABLE" => {
                self.pat = match value {
                    "0" => PatSetting::Off,
                    "1" => PatSetting::On,
                    "2" => PatSetting::Auto,
                    _ => return Err(invalid("0, 1 or 2")),
                }
            }
            "NCCL_COLLNET_ENABLE" => {
                self.collnet = match value {
                    "0" => CollNetSetting::Off,
                    "1" => CollNetSetting::On,
                    _ => return Err(invalid("0 or 1")),
                }
            }
            "NCCL_COLLNET_NODE_THRESHOLD" => {
                let nodes = value.parse().map_err(|_| invalid("a whole number"))?;
                self.collnet_nodes = Some(nodes);
            }
            "NCCL_WIN_ENABLE" => {
                self.windows = match value {
                    "0" => Windows::Off,
                    "1" => Windows::On,
                    _ => return Err(invalid("0 or 1")),
                }
            }
            "NCCL_SYM_KERNEL" if value == "^" => self.symmetric_kernel = None,
            "NCCL_SYM_KERNEL" => {
                // Kernels with TMA and over several nodes exist, but are not modelled.
                if SymmetricKernel::UNMODELLED.contains(&value) {
                    return Ok(false);
                }
                let kernel = SymmetricKernel::parse(value);
                self.symmetric_kernel = Some(kernel.ok_or_else(|| {
                    invalid(
                        "the name of one symmetric kernel, such as AllReduce_AGxLL_R or AllGather_STMC, or ^ for all",
                    )
                })?);
            }
            "NCCL_SYM_CTAS" => {
                let blocks = value.parse::<u16>().ok().filter(|&count| count <= MAX_CHANNELS);
                let blocks = blocks.ok_or_else(|| invalid("a whole number up to 64; 0 leaves it to NCCL"))?;
                self.symmetric_blocks = (blocks > 0).then_some(blocks);
            }
            "RCCL_MSCCL_ENABLE" => {
                self.msccl = match value {
                    "0" => Msccl::Off,
                    "1" => Msccl::On,
                    _ => return Err(invalid("0 or 1")),
                }
            }
            "NCCL_NTHREADS" => self.threads = Some(number()?.min(u64::from(u32::MAX)) as u32),
            "NCCL_LL128_NTHREADS" => self.ll128_threads = Some(number()?.min(u64::from(u32::MAX)) as u32),
            "NCCL_LL_BUFFSIZE" => self.buffers[0] = bytes()?,
            "NCCL_LL128_BUFFSIZE" => self.buffers[1] = bytes()?,
            "NCCL_BUFFSIZE" => self.buffers[2] = bytes()?,
            "NCCL_NVLS_CHUNKSIZE" => self.nvls_chunk = bytes()?,
            "NCCL_NVLSTREE_MAX_CHUNKSIZE" => self.nvls_tree_chunk = bytes()?,
            "NCCL_P2P_LL_THRESHOLD" => self.p2p_ll_threshold = bytes()?,
            "NCCL_P2P_NVL_CHUNKSIZE" => self.p2p_chunks[LinkDistance::Nvlink as usize] = bytes()?,
            "NCCL_P2P_PCI_CHUNKSIZE" => self.p2p_chunks[LinkDistance::Pcie as usize] = bytes()?,
            "NCCL_P2P_NET_CHUNKSIZE" => self.p2p_chunks[LinkDistance::Network as usize] = bytes()?,
            "NCCL_NET_OVERHEAD" => self.net_overhead = Some(Picos(number()?.saturating_mul(1000))),
            "NCCL_THREAD_THRESHOLDS" => {
                let expected = "up to six whole numbers: tree LL, LL128, Simple, ring LL, LL128, Simple";
                let values: Vec<&str> = value.split_whitespace().collect();
                if values.len() > self.thresholds.len() {
                    return Err(invalid(expected));
                }
                let mut thresholds = [None; 6];
                for (threshold, text) in thresholds.iter_mut().zip(values) {
                    let bytes: i64 = text.parse().map_err(|_| invalid(expected))?;
                    // A value of −2 selects NCCL's default.
                    *threshold = u64::try_from(bytes).ok();
                }
                self.thresholds = thresholds;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns true if NCCL_ALGO and NCCL_PROTO allow an algorithm and protocol.
    #[must_use]
    pub fn allows(&self, function: Function, algo: Algo, proto: Proto) -> bool {
        self.algorithms.allows(function, algo) && self.protocols.allows(function, proto)
    }

    /// Returns true if NCCL_ALGO or NCCL_PROTO lists a function, or NCCL_SYM_KERNEL names a kernel of it.
    #[must_use]
    pub fn mentions(&self, function: Function) -> bool {
        self.algorithms.mentions(function)
            || self.protocols.mentions(function)
            || self.symmetric_kernel.is_some_and(|(named, _)| named == function)
    }

    /// Returns true if NCCL_PROTO lists a function.
    #[must_use]
    pub fn mentions_protocols(&self, function: Function) -> bool {
        self.protocols.mentions(function)
    }

    pub(super) fn bound_channels(&self, channels: u16) -> u16 {
        let max = self.max_channels.unwrap_or(MAX_CHANNELS).min(MAX_CHANNELS);
        channels.max(self.min_channels.unwrap_or(1)).min(max).max(1)
    }

    pub(super) fn nvls_shape(&self, shape: NvlsShape) -> NvlsShape {
        let channels = self.nvls_channels.unwrap_or(shape.channels);
        NvlsShape {
            channels: self.bound_nvls(channels),
            chunk: self.nvls_chunk.unwrap_or(shape.chunk),
            tree_chunk: self.nvls_tree_chunk.unwrap_or(shape.tree_chunk),
        }
    }

    fn bound_nvls(&self, channels: u16) -> u16 {
        channels.min(self.max_channels.unwrap_or(MAX_CHANNELS)).clamp(1, MAX_CHANNELS)
    }

    /// Number of threads per block with Simple and LL: a multiple of the warp size from 64 to 512.
    pub(super) fn threads(&self, default: u32) -> u32 {
        bounded(self.threads, 64, 512, default)
    }

    /// Number of threads per block with LL128: a multiple of the warp size from a quarter of `max` to `max`.
    pub(super) fn ll128_threads(&self, max: u32) -> u32 {
        bounded(self.ll128_threads, max / 4, max, max)
    }

    pub(crate) fn thread_threshold(&self, algo: Algo, proto: Proto) -> Option<u64> {
        match algo {
            Algo::Tree => self.thresholds[proto as usize],
            Algo::Ring => self.thresholds[3 + proto as usize],
            _ => None,
        }
    }

    /// Size of a connection's buffer, 8 slots in all protocols: LL 512 threads × 8 lines × 16 B × 8 slots, LL128 640
    /// threads × 120 words × 8 B × 8 slots, Simple 4 MiB (`src/init.cc`, `src/include/device.h`).
    pub(super) fn buffer(&self, proto: Proto) -> Bytes {
        let default = match proto {
            Proto::Ll => 524_288,
            Proto::Ll128 => 4_915_200,
            Proto::Simple => 4 << 20,
        };
        self.buffers[proto as usize].filter(|setting| setting.0 > 0).unwrap_or(Bytes(default))
    }
}

/// Number of threads as NCCL interprets the setting: a value out of bounds is clamped, and one that is not a multiple
/// of the warp size becomes the upper bound.
fn bounded(value: Option<u32>, min: u32, max: u32, default: u32) -> u32 {
    match value {
        None | Some(0) => default,
        Some(threads) if threads % 32 != 0 => max,
        Some(threads) => threads.clamp(min, max),
    }
}

/// Splits a text into words separated by spaces; quoted parts may contain spaces.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars() {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => word.push(c),
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            None => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_settings_are_parsed_and_others_reported() {
        let (settings, unknown) = Settings::parse(
            "NCCL_MIN_CTAS=24 NCCL_ALGO=\"Ring;AllReduce:Tree,NVLS\" NCCL_DEBUG=INFO NCCL_NVLS_ENABLE=0",
        )
        .unwrap();
        assert_eq!(settings.min_channels, Some(24));
        assert_eq!(settings.nvls, NvlsSetting::Off);
        assert!(settings.allows(Function::AllReduce, Algo::Tree, Proto::Ll));
        assert!(!settings.allows(Function::AllReduce, Algo::Ring, Proto::Ll));
        assert!(settings.allows(Function::Broadcast, Algo::Ring, Proto::Ll));
        assert_eq!(unknown, ["NCCL_DEBUG"]);
    }

    /// The names are those of NCCL 2.30.7 src/sym_kernels.cc (`kernelName`).
    #[test]
    fn symmetric_kernels_are_named_exactly() {
        let kernel = |text: &str| Settings::parse(text).map(|(settings, unknown)| (settings.symmetric_kernel, unknown));
        let one_shot = (Function::AllReduce, SymmetricKernel::OneShot);
        assert_eq!(kernel("NCCL_SYM_KERNEL=AllReduce_AGxLL_R"), Ok((Some(one_shot), Vec::new())));
        let scatter = (Function::ReduceScatter, SymmetricKernel::Multicast);
        assert_eq!(kernel("NCCL_SYM_KERNEL=ReduceScatter_LDMC"), Ok((Some(scatter), Vec::new())));
        assert_eq!(kernel("NCCL_SYM_KERNEL=^"), Ok((None, Vec::new())));
        assert_eq!(kernel("NCCL_SYM_KERNEL=AllGather_TmaST"), Ok((None, vec!["NCCL_SYM_KERNEL".to_owned()])));
        for wrong in ["allreduce_agxll_r", "AllReduce_AGxLL_R,AllGather_LL", "AllReduce_LD", ""] {
            assert!(kernel(&format!("NCCL_SYM_KERNEL={wrong}")).is_err(), "{wrong}");
        }
        assert_eq!(Settings::parse("NCCL_SYM_CTAS=16").unwrap().0.symmetric_blocks, Some(16));
        assert!(Settings::parse("NCCL_SYM_CTAS=65").is_err());
    }

    #[test]
    fn threshold_of_minus_two_keeps_the_default() {
        let (settings, _) = Settings::parse("NCCL_THREAD_THRESHOLDS='16 -2 128'").unwrap();
        assert_eq!(settings.thresholds, [Some(16), None, Some(128), None, None, None]);
    }

    #[test]
    fn applied_settings_replace_whole_variables_and_leave_others() {
        let text = "NCCL_PROTO=simple NCCL_MIN_CTAS=8 NCCL_THREAD_THRESHOLDS='16 32 64'";
        let (mut settings, _) = Settings::parse(text).unwrap();
        let unknown = settings.apply("NCCL_ALGO=Ring NCCL_THREAD_THRESHOLDS=128 NCCL_DEBUG=INFO").unwrap();
        assert_eq!(unknown, ["NCCL_DEBUG"]);
        let expected = "NCCL_PROTO=simple NCCL_MIN_CTAS=8 NCCL_ALGO=Ring NCCL_THREAD_THRESHOLDS=128";
        assert_eq!(settings, Settings::parse(expected).unwrap().0);
        for (name, value) in [("NCCL_THREAD_THRESHOLDS", "1 x"), ("NCCL_PROTO", "LL9"), ("NCCL_MIN_CTAS", "0")] {
            assert!(settings.set(name, value).is_err(), "{name}");
        }
        assert_eq!(settings, Settings::parse(expected).unwrap().0);
    }

    #[test]
    fn invalid_values_are_rejected() {
        for wrong in ["NCCL_MIN_CTAS", "NCCL_MIN_CTAS=0", "NCCL_MAX_CTAS=x", "NCCL_NVLS_ENABLE=3", "NCCL_ALGO=rings"] {
            assert!(Settings::parse(wrong).is_err(), "{wrong}");
        }
    }
}
