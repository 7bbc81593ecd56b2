//! Tables for what is looked up very often.

/// Small keys that nobody chooses against us.
pub(crate) type Table<K, V> = rustc_hash::FxHashMap<K, V>;

/// A table in which the same key is looked up again and again: the latest is remembered.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K, V> {
    places: Table<K, usize>,
    entries: Vec<(K, V)>,
    latest: usize,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { places: Table::default(), entries: Vec::new(), latest: 0 }
    }
}

impl<K: Copy + Eq + std::hash::Hash, V: Default> Recent<K, V> {
    /// The value of a key; new ones begin as the default.
    pub(crate) fn of(&mut self, key: K) -> &mut V {
        if self.entries.get(self.latest).is_none_or(|entry| entry.0 != key) {
            let entries = &mut self.entries;
            self.latest = *self.places.entry(key).or_insert_with(|| {
                entries.push((key, V::default()));
                entries.len() - 1
            });
        }
        &mut self.entries[self.latest].1
    }

    /// All of them, in the order in which they came.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.entries.iter()
    }
}
