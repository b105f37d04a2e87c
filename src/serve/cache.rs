//! Cache with a bounded number of entries.

use std::collections::BTreeMap;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Cache that drops the entry that was unused for the longest time when it is full.
#[derive(Debug)]
pub struct Cache<K, V> {
    capacity: usize,
    entries: FxHashMap<K, CacheEntry<V>>,
    /// Key of each entry by the number of its last use.
    uses: BTreeMap<u64, K>,
    /// Number of the next use.
    next_use: u64,
}

#[derive(Debug)]
struct CacheEntry<V> {
    value: V,
    last_use: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    /// Creates an empty cache for `capacity` entries.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, entries: FxHashMap::default(), uses: BTreeMap::new(), next_use: 0 }
    }

    /// Returns the value of a key, which counts as its use.
    pub fn get(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.get_mut(key)?;
        self.uses.remove(&entry.last_use);
        entry.last_use = self.next_use;
        self.uses.insert(self.next_use, key.clone());
        self.next_use += 1;
        Some(entry.value.clone())
    }

    /// Adds a value or replaces that of its key.
    pub fn insert(&mut self, key: K, value: V) {
        let entry = CacheEntry { value, last_use: self.next_use };
        self.uses.insert(self.next_use, key.clone());
        self.next_use += 1;
        if let Some(replaced) = self.entries.insert(key, entry) {
            self.uses.remove(&replaced.last_use);
        }
        while self.entries.len() > self.capacity {
            let Some((_, oldest)) = self.uses.pop_first() else { return };
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_cache_drops_the_least_recently_used_entry() {
        let mut cache = Cache::new(2);
        cache.insert("a", 1);
        cache.insert("b", 2);
        assert_eq!(cache.get(&"a"), Some(1));
        cache.insert("c", 3);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"c")), (Some(1), None, Some(3)));
        cache.insert("a", 4);
        assert_eq!((cache.get(&"a"), cache.get(&"c"), cache.entries.len(), cache.uses.len()), (Some(4), Some(3), 2, 2));
    }
}
