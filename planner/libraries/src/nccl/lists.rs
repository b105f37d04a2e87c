//! Grammar of NCCL_ALGO and NCCL_PROTO since 2.24: `[list];function:list;…`. A list consists of names separated by
//! commas; a leading `^` excludes them. Only the first entry may lack a function. Case does not matter.
//!
//! The grammar follows `parseList` in NCCL 2.30.7 `src/graph/tuning.cc`: an unknown name is an error, without a
//! fallback to rings.

use super::index::Function;

/// Value of NCCL_ALGO or NCCL_PROTO: the allowed names by function; `None` for functions that the value does not list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lists<T> {
    by_function: [Option<Vec<T>>; 5],
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self { by_function: Default::default() }
    }
}

/// Error in the value of NCCL_ALGO or NCCL_PROTO.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// A name in a list is unknown.
    #[error("`{word}` is unknown; expected one of {}", .expected.join(", "))]
    Name {
        /// Name that was found.
        word: String,
        /// Valid names of algorithms or protocols.
        expected: Vec<&'static str>,
    },
    /// The function of an entry is unknown.
    #[error("`{0}` is not a function; expected Broadcast, Reduce, AllGather, ReduceScatter or AllReduce")]
    Function(String),
    /// An entry other than the first has no function.
    #[error("`{0}` lacks a function; only the first entry may, as in Ring;AllReduce:Tree")]
    NoFunction(String),
}

impl<T: Copy + PartialEq> Lists<T> {
    /// Parses the value of a variable. `all` holds the valid algorithms or protocols, and `name` returns their names.
    ///
    /// # Errors
    /// Returns [`ListError`] for an unknown name or function, or if an entry other than the first has no function.
    pub fn parse(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<Self, ListError> {
        let mut lists = Self::default();
        for (index, entry) in text.split(';').map(str::trim).enumerate() {
            if entry.is_empty() {
                continue;
            }
            match entry.split_once(':') {
                Some((word, list)) => {
                    let functions = Function::ALL.into_iter();
                    let function = functions.into_iter().find(|f| f.name().eq_ignore_ascii_case(word.trim()));
                    let function = function.ok_or_else(|| ListError::Function(word.trim().to_owned()))?;
                    lists.by_function[function as usize] = Some(parse_list(list, all, name)?);
                }
                None if index == 0 => {
                    let list = parse_list(entry, all, name)?;
                    lists.by_function = std::array::from_fn(|_| Some(list.clone()));
                }
                None => return Err(ListError::NoFunction(entry.to_owned())),
            }
        }
        Ok(lists)
    }

    /// Returns true if a name is allowed for a function. If the variable does not list the function, all names are
    /// allowed.
    #[must_use]
    pub fn allows(&self, function: Function, item: T) -> bool {
        self.by_function[function as usize].as_ref().is_none_or(|list| list.contains(&item))
    }

    /// Returns true if the variable lists a function.
    #[must_use]
    pub fn mentions(&self, function: Function) -> bool {
        self.by_function[function as usize].is_some()
    }
}

fn parse_list<T: Copy + PartialEq>(text: &str, all: &[T], name: fn(T) -> &'static str) -> Result<Vec<T>, ListError> {
    let text = text.trim();
    let (is_exclusion, names) = match text.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut listed = Vec::new();
    for word in names.split(',').map(str::trim) {
        let known = all.iter().copied().find(|&item| name(item).eq_ignore_ascii_case(word));
        listed.push(known.ok_or_else(|| ListError::Name {
            word: word.to_owned(),
            expected: all.iter().map(|&item| name(item)).collect(),
        })?);
    }
    Ok(all.iter().copied().filter(|item| listed.contains(item) != is_exclusion).collect())
}

#[cfg(test)]
mod tests {
    use super::super::index::{Algo, Proto};
    use super::*;

    fn algos(text: &str) -> Result<Lists<Algo>, ListError> {
        Lists::parse(text, &Algo::ALL, Algo::name)
    }

    #[test]
    fn first_entry_applies_to_all_functions_and_later_entries_to_one() {
        let lists = algos("ring;allreduce:Tree,nvls").unwrap();
        assert!(lists.allows(Function::AllGather, Algo::Ring) && !lists.allows(Function::AllGather, Algo::Nvls));
        assert!(lists.allows(Function::AllReduce, Algo::Nvls) && !lists.allows(Function::AllReduce, Algo::Ring));
        let lists = algos("AllReduce:Tree").unwrap();
        assert!(lists.allows(Function::Reduce, Algo::Ring) && !lists.mentions(Function::Reduce));
    }

    #[test]
    fn caret_excludes_names() {
        let lists = Lists::parse("^LL128;AllReduce:LL128", &Proto::ALL, Proto::name).unwrap();
        assert!(!lists.allows(Function::Reduce, Proto::Ll128) && lists.allows(Function::Reduce, Proto::Ll));
        assert!(lists.allows(Function::AllReduce, Proto::Ll128) && !lists.allows(Function::AllReduce, Proto::Ll));
    }

    #[test]
    fn invalid_lists_are_rejected() {
        for wrong in ["rings", "Ring,", "Ring;Tree", "all_reduce:Ring", "^", ":Ring"] {
            assert!(algos(wrong).is_err(), "{wrong}");
        }
    }
}
