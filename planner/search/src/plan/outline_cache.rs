//! Bounded cache of schedule outlines. An outline is used once per protocol, mostly in short succession, and is large
//! (megabytes for a ring over many hosts). Evicted outlines are recomputed when needed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use fabricast_sim::template::Outline;

/// Maximum total number of runs (groups of equal steps) in all cached outlines; a run occupies about 150 bytes.
const MAX_RUNS: usize = 1 << 19;

/// Outlines by key, oldest first.
#[derive(Debug)]
pub(super) struct OutlineCache<K> {
    outlines: Mutex<VecDeque<(K, Arc<Outline>)>>,
}

impl<K> Default for OutlineCache<K> {
    fn default() -> Self {
        Self { outlines: Mutex::default() }
    }
}

impl<K: PartialEq> OutlineCache<K> {
    /// Caches an outline and evicts the oldest ones over the limit.
    pub(super) fn insert(&self, key: K, outline: Arc<Outline>) {
        let mut outlines = self.outlines.lock().unwrap_or_else(PoisonError::into_inner);
        outlines.push_back((key, outline));
        let mut runs: usize = outlines.iter().map(|(_, outline)| outline.runs()).sum();
        while runs > MAX_RUNS && outlines.len() > 1 {
            runs -= outlines.pop_front().map_or(0, |(_, oldest)| oldest.runs());
        }
    }

    /// Returns an outline if it is still cached.
    pub(super) fn get(&self, key: &K) -> Option<Arc<Outline>> {
        let outlines = self.outlines.lock().unwrap_or_else(PoisonError::into_inner);
        outlines.iter().find(|(cached, _)| cached == key).map(|(_, outline)| outline.clone())
    }
}
