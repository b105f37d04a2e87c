//! The outlines made last. Each is needed once for a protocol, mostly soon one after another, and is large: of a ring over
//! many hosts megabytes. So no more of them are kept than fit; the others are written again if they are needed again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use fabricast_sim::template::Outline;

/// Runs of all outlines that are kept, of some 150 bytes each.
const MOST_RUNS: usize = 1 << 19;

/// Outlines by key, the oldest first.
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
    /// Keeps an outline; older ones that do not fit beside it go.
    pub(super) fn keep(&self, key: K, outline: Arc<Outline>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((key, outline));
        let mut runs: usize = kept.iter().map(|(_, outline)| outline.runs()).sum();
        while runs > MOST_RUNS && kept.len() > 1 {
            runs -= kept.pop_front().map_or(0, |(_, oldest)| oldest.runs());
        }
    }

    /// An outline that is still there.
    pub(super) fn get(&self, key: &K) -> Option<Arc<Outline>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == key).map(|(_, outline)| outline.clone())
    }
}
