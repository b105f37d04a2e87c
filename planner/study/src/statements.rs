//! Statements that apply to several items.

/// Groups items by their statements, in order of the first occurrence of each statement.
pub(crate) fn group_by_statement<S: PartialEq, T>(statements: impl IntoIterator<Item = (S, T)>) -> Vec<(S, Vec<T>)> {
    let mut groups: Vec<(S, Vec<T>)> = Vec::new();
    for (statement, item) in statements {
        match groups.iter_mut().find(|(known, _)| *known == statement) {
            Some((_, items)) => items.push(item),
            None => groups.push((statement, vec![item])),
        }
    }
    groups
}
