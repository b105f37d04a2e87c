//! Collection of many short lists in two vectors, without an allocation per list; used for dependencies.

/// Collection of short lists, addressed by their index.
pub(super) struct Lists<T = u32> {
    /// End of each list in `items`.
    ends: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Lists<T> {
    /// Creates an empty collection with room for `lists` lists.
    pub(super) fn with_capacity(lists: usize) -> Self {
        Self { ends: Vec::with_capacity(lists), items: Vec::with_capacity(lists) }
    }

    /// Appends an item to the open (last) list.
    pub(super) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// Appends several items to the open list.
    pub(super) fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        self.items.extend(items);
    }

    /// Closes the open list.
    pub(super) fn close(&mut self) {
        self.ends.push(self.items.len() as u32);
    }

    /// Returns the items of a closed list.
    pub(super) fn get(&self, index: u32) -> &[T] {
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous as usize]);
        &self.items[start as usize..self.ends[index as usize] as usize]
    }

    /// Returns the items of all lists, list after list.
    pub(super) fn items(&self) -> &[T] {
        &self.items
    }
}

impl<T: Copy + Ord> Lists<T> {
    /// Closes the open list, sorted and without duplicates.
    pub(super) fn close_sorted(&mut self) {
        let start = self.ends.last().map_or(0, |&end| end as usize);
        let open = &mut self.items[start..];
        if open.len() > 1 {
            open.sort_unstable();
            let mut unique = 1;
            for i in 1..open.len() {
                if open[i] != open[unique - 1] {
                    open[unique] = open[i];
                    unique += 1;
                }
            }
            self.items.truncate(start + unique);
        }
        self.close();
    }
}

/// Returns the indices of `keys` in a stable order by ascending key (counting sort, linear in the number of keys and
/// the largest key). Intended for keys that are smaller than their number.
pub(super) fn order_by_key(keys: impl Iterator<Item = u32> + Clone) -> Vec<u32> {
    let mut starts: Vec<u32> = Vec::new();
    for key in keys.clone() {
        let slot = key as usize + 1;
        if starts.len() <= slot {
            starts.resize(slot + 1, 0);
        }
        starts[slot] += 1;
    }
    for slot in 1..starts.len() {
        starts[slot] += starts[slot - 1];
    }
    let mut order = vec![0; starts.last().map_or(0, |&count| count as usize)];
    for (key, number) in keys.zip(0..) {
        let position = &mut starts[key as usize];
        order[*position as usize] = number;
        *position += 1;
    }
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_return_their_items(lists in prop::collection::vec(prop::collection::vec(0u32..9, 0..6), 0..20)) {
            let (mut unsorted, mut sorted) = (Lists::with_capacity(0), Lists::with_capacity(lists.len()));
            for list in &lists {
                unsorted.extend(list.iter().copied());
                unsorted.close();
                list.iter().for_each(|&item| sorted.push(item));
                sorted.close_sorted();
            }
            for (list, index) in lists.iter().zip(0..) {
                prop_assert_eq!(unsorted.get(index), &list[..]);
                let unique: std::collections::BTreeSet<u32> = list.iter().copied().collect();
                prop_assert_eq!(sorted.get(index), &unique.into_iter().collect::<Vec<_>>()[..]);
            }
            prop_assert_eq!(unsorted.items(), &lists.concat()[..]);
        }

        #[test]
        fn by_key_matches_a_stable_sort(keys in prop::collection::vec(0u32..40, 0..100)) {
            let mut expected: Vec<u32> = (0..keys.len() as u32).collect();
            expected.sort_by_key(|&number| keys[number as usize]);
            prop_assert_eq!(order_by_key(keys.iter().copied()), expected);
        }
    }
}
