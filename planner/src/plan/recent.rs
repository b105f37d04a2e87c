//! Bounded cache of schedule outlines. An outline is needed once per protocol, mostly in short succession, and is large
//! (megabytes for a ring over many hosts). Evicted ones are recomputed when needed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use fabricast_sim::template::Outline;

/// Limit on the runs of all cached outlines, at about 150 bytes each.
const MOST_RUNS: usize = 1 << 19;

/// Outlines by key, oldest first.
#[derive(Debug)]
pub(super) struct Recent<K> {
    kept: Mutex<VecDeque<(K, Arc<Outline>)>>,
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self { kept: Mutex::default() }
    }
}

impl<K: PartialEq> Recent<K> {
    /// Caches an outline and evicts the oldest ones over the limit.
    pub(super) fn keep(&self, key: K, outline: Arc<Outline>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, outline));
        let mut runs: usize = kept.iter().map(|(_, outline)| outline.runs()).sum();
        while runs > MOST_RUNS && kept.len() > 1 {
            runs -= kept.pop_front().map_or(0, |(_, oldest)| oldest.runs());
        }
    }

    /// Returns an outline if it is still cached.
    pub(super) fn get(&self, key: &K) -> Option<Arc<Outline>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == key).map(|(_, outline)| outline.clone())
    }
}
