//! Thread-safe cache of results.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashMap;

/// Thread-safe cache of results by key. Two threads may compute the same result concurrently.
pub(super) struct Cache<K, V>(Mutex<FxHashMap<K, V>>);

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    /// Returns the cached result of a key; `None` if there is none.
    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Stores the result of a key, replacing an earlier one.
    pub(super) fn insert(&self, key: K, result: V) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, result);
    }

    /// Returns the cached result of a key, or computes and stores it. Errors are not stored.
    ///
    /// # Errors
    /// Errors of `compute`.
    pub(super) fn get_or_try<E>(&self, key: K, compute: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        if let Some(known) = self.get(&key) {
            return Ok(known);
        }
        let result = compute()?;
        self.insert(key, result.clone());
        Ok(result)
    }

    /// Returns the cached result of a key, or computes and stores it.
    pub(super) fn get_or_compute(&self, key: K, compute: impl FnOnce() -> V) -> V {
        if let Some(known) = self.get(&key) {
            return known;
        }
        let result = compute();
        self.insert(key, result.clone());
        result
    }
}
