//! Memory tier of the KV cache, as written in the job file.

use serde::Deserialize;

use super::super::Tier;

/// Memory tier of the KV cache; on drives it is not modelled.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KvTier {
    Hbm,
    Peer,
    Host,
}

impl From<KvTier> for Tier {
    fn from(tier: KvTier) -> Self {
        match tier {
            KvTier::Hbm => Self::Hbm,
            KvTier::Peer => Self::Peer,
            KvTier::Host => Self::Host,
        }
    }
}
