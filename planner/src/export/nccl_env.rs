//! `NCCL_ALGO` and `NCCL_PROTO` as a file of settings (`NCCL_CONF_FILE`): for each function the algorithms and protocols that
//! the plan takes at any size.
//!
//! The variables know no sizes and no channels, and combine every algorithm with every protocol named for a function: NCCL
//! chooses among those by its own model. Lists by function exist from NCCL 2.24 on (`src/graph/tuning.cc`, `parseList`), as in
//! all versions known here.

use crate::library::nccl::{Algo, Function, Proto};

use super::nccl_tuner::FromPlan;
use super::{Dropped, SavedPlan, TableError, header};

/// Algorithms and protocols of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The function.
    pub function: Function,
    /// Its algorithms, in NCCL's order.
    pub algos: Vec<Algo>,
    /// Its protocols, in NCCL's order.
    pub protos: Vec<Proto>,
}

/// What the variables can say of a plan.
#[must_use]
pub fn allowed(plan: &SavedPlan) -> (Vec<Allowed>, Vec<Dropped>) {
    let FromPlan { table, dropped } = FromPlan::new(plan);
    let of = |function| {
        let rows = || table.rows.iter().filter(move |row| row.function == function);
        let algos = Algo::ALL.into_iter().filter(|&algo| rows().any(|row| row.algo == algo)).collect::<Vec<_>>();
        let protos = Proto::ALL.into_iter().filter(|&proto| rows().any(|row| row.proto == proto)).collect();
        (!algos.is_empty()).then_some(Allowed { function, algos, protos })
    };
    (Function::ALL.into_iter().filter_map(of).collect(), dropped)
}

/// The file, and what it cannot say.
#[must_use]
pub fn write(plan: &SavedPlan) -> (String, Vec<Dropped>) {
    let (allowed, dropped) = allowed(plan);
    let mut lines = header::lines(plan, "Settings of NCCL", &dropped);
    lines.push("what the variables cannot say: sizes and channels. NCCL chooses by its own model among".to_owned());
    lines.push("what is named for a function, each algorithm with each protocol".to_owned());
    lines.push("to be named by NCCL_CONF_FILE; in a shell the values need quotes".to_owned());
    let mut text: String = lines.iter().map(|line| format!("# {line}\n")).collect();
    let list = |names: Vec<&'static str>, function: Function| format!("{function}:{}", names.join(","));
    let algos: Vec<String> =
        allowed.iter().map(|one| list(one.algos.iter().map(|algo| algo.name()).collect(), one.function)).collect();
    let protos: Vec<String> =
        allowed.iter().map(|one| list(one.protos.iter().map(|proto| proto.name()).collect(), one.function)).collect();
    if !allowed.is_empty() {
        text.push_str(&format!("NCCL_ALGO={}\nNCCL_PROTO={}\n", algos.join(";"), protos.join(";")));
    }
    (text, dropped)
}

/// Reads a file of settings: a `NAME=VALUE` a line, `#` for comments.
///
/// # Errors
/// [`TableError`] with the line: something that is no setting, or a value that NCCL does not take.
pub fn read(text: &str, source: &str) -> Result<crate::library::nccl::Settings, TableError> {
    let mut words = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let from = at;
        at += line.len();
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let content = content.strip_prefix("export ").unwrap_or(content).trim();
        let word = match content.split_once('=') {
            Some((name, value)) if !value.starts_with(['"', '\'']) => format!("{name}=\"{value}\""),
            _ => content.to_owned(),
        };
        let parsed = crate::library::nccl::Settings::parse(&word);
        parsed.map_err(|error| TableError::at(source, text, from..from + line.trim_end().len(), error.to_string()))?;
        words.push(word);
    }
    let parsed = crate::library::nccl::Settings::parse(&words.join(" "));
    parsed.map(|(settings, _)| settings).map_err(|error| TableError::of(source, error.to_string()))
}
