//! `NCCL_ALGO` and `NCCL_PROTO` as a settings file (`NCCL_CONF_FILE`): for each function the algorithms and protocols
//! that the plan uses at any size.
//!
//! The variables express neither sizes nor channels. NCCL combines every algorithm with every protocol listed for a
//! function and chooses among the combinations by its own cost model. NCCL 2.24 and later read lists by function
//! (`src/graph/tuning.cc`, `parseList`); earlier versions read one list for all functions.

use rustc_hash::FxHashSet;

use fabricast_libraries::Library;
use fabricast_libraries::nccl::{Algo, Function, NcclVersion, Proto, Settings};

use super::nccl_tuner::ConvertedTable;
use super::{DroppedStrategy, Finding, SavedPlan, TableError, header};

/// Algorithms and protocols allowed for a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionChoices {
    /// NCCL function (collective) to which the lists apply.
    pub function: Function,
    /// Allowed algorithms, in NCCL's order.
    pub algos: Vec<Algo>,
    /// Allowed protocols, in NCCL's order.
    pub protos: Vec<Proto>,
}

/// Returns the algorithms and protocols that a plan uses, by function, and the strategies that the variables cannot
/// express.
#[must_use]
pub fn allowed(plan: &SavedPlan) -> (Vec<FunctionChoices>, Vec<DroppedStrategy>) {
    let ConvertedTable { table, dropped } = ConvertedTable::new(plan);
    let collect_allowed = |function| {
        let rows = || table.rows.iter().filter(move |row| row.function == function);
        let algos = Algo::ALL.into_iter().filter(|&algo| rows().any(|row| row.algo == algo)).collect::<Vec<_>>();
        let protos = Proto::ALL.into_iter().filter(|&proto| rows().any(|row| row.proto == proto)).collect();
        (!algos.is_empty()).then_some(FunctionChoices { function, algos, protos })
    };
    (Function::ALL.into_iter().filter_map(collect_allowed).collect(), dropped)
}

/// Returns the text of a plan's settings file, and the strategies that the file cannot express.
#[must_use]
pub fn write(plan: &SavedPlan) -> (String, Vec<DroppedStrategy>) {
    let (allowed, dropped) = allowed(plan);
    let by_function = match plan.library {
        Some(Library::Nccl(version)) => version.lists_by_function(),
        _ => true,
    };
    let mut lines = header::lines(plan, "Settings of NCCL", &dropped);
    lines.push("The variables cannot select by size or set channels. NCCL's cost model chooses among".to_owned());
    lines.push(match by_function {
        true => "the algorithms and protocols listed for a function, in any combination (NCCL 2.24 and later)".to_owned(),
        false => {
            "the listed algorithms and protocols, in any combination, for every function: lists by function need NCCL 2.24"
                .to_owned()
        }
    });
    lines.push("load with NCCL_CONF_FILE; in a shell, quote the values".to_owned());
    let mut text: String = lines.iter().map(|line| format!("# {line}\n")).collect();
    let (algos, protos) = if by_function { lists(&allowed) } else { plain_lists(&allowed) };
    if !allowed.is_empty() {
        text.push_str(&format!("NCCL_ALGO={algos}\nNCCL_PROTO={protos}\n"));
    }
    (text, dropped)
}

/// Returns the values of `NCCL_ALGO` and `NCCL_PROTO` with a list for each function.
fn lists(allowed: &[FunctionChoices]) -> (String, String) {
    let list = |names: Vec<&'static str>, function: Function| format!("{function}:{}", names.join(","));
    let algos = allowed.iter().map(|entry| list(entry.algos.iter().map(|algo| algo.name()).collect(), entry.function));
    let protos =
        allowed.iter().map(|entry| list(entry.protos.iter().map(|proto| proto.name()).collect(), entry.function));
    (algos.collect::<Vec<_>>().join(";"), protos.collect::<Vec<_>>().join(";"))
}

/// Returns the values of `NCCL_ALGO` and `NCCL_PROTO` with one list for all functions.
fn plain_lists(allowed: &[FunctionChoices]) -> (String, String) {
    let algos = Algo::ALL.into_iter().filter(|algo| allowed.iter().any(|entry| entry.algos.contains(algo)));
    let protos = Proto::ALL.into_iter().filter(|proto| allowed.iter().any(|entry| entry.protos.contains(proto)));
    (algos.map(Algo::name).collect::<Vec<_>>().join(","), protos.map(Proto::name).collect::<Vec<_>>().join(","))
}

/// Parsed settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsFile {
    /// Settings that affect NCCL's choice.
    pub settings: Settings,
    /// Names of variables not known to affect NCCL's choice, each with its line number (from 1).
    pub ignored: Vec<(u32, String)>,
    /// Names of variables whose values have lists by function, each with its line number (from 1).
    pub by_function: Vec<(u32, String)>,
    /// All assignments, separated by spaces, as [`Settings::parse`] reads them.
    assignments: String,
}

impl SettingsFile {
    /// Returns the settings of the file, and those of `defaults` for the variables that it does not set.
    #[must_use]
    pub fn settings_with_defaults(&self, defaults: &Settings) -> Settings {
        let mut settings = defaults.clone();
        // Cannot fail, because the same assignments were parsed when the file was read.
        let _ = settings.apply(&self.assignments);
        settings
    }
}

/// Returns findings about settings that a version of NCCL does not read.
#[must_use]
pub fn findings(file: &SettingsFile, version: NcclVersion) -> Vec<Finding> {
    let newer = file.by_function.iter().filter(|_| !version.lists_by_function());
    let errors = newer.map(|(line, name)| {
        let message = format!(
            "{name}: lists by function need NCCL 2.24; {version} accepts one list of names separated by commas"
        );
        Finding::error(Some(*line), message)
    });
    errors.collect()
}

/// Reads a settings file: one `NAME=VALUE` per line, `#` for comments.
///
/// # Errors
/// [`TableError`] with line and column: a line that is not a setting, a value that NCCL rejects, a repeated name.
pub fn read(text: &str, source: &str) -> Result<SettingsFile, TableError> {
    let (mut assignments, mut names) = (Vec::new(), FxHashSet::default());
    let (mut ignored, mut by_function) = (Vec::new(), Vec::new());
    let (mut offset, mut line_number) = (0, 0u32);
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        line_number = line_number.saturating_add(1);
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let content = content.strip_prefix("export ").unwrap_or(content).trim();
        let content_start = start + line.find(content).unwrap_or(0);
        let fail = |error_start: usize, message: String| {
            Err(TableError::new(source, text, error_start..start + line.trim_end().len(), message))
        };
        let (assignment, name, value_start) = match content.split_once('=') {
            Some((name, value)) if !value.starts_with(['"', '\'']) => {
                (format!("{name}=\"{value}\""), name, name.len() + 1)
            }
            Some((name, _)) => (content.to_owned(), name, name.len() + 1),
            None => (content.to_owned(), content, 0),
        };
        match Settings::parse(&assignment) {
            Err(error) => return fail(content_start + value_start, error.to_string()),
            Ok((_, unknown)) => ignored.extend(unknown.into_iter().map(|name| (line_number, name))),
        }
        if !names.insert(name.trim()) {
            return fail(content_start, format!("{} is given twice: expected each name once", name.trim()));
        }
        if matches!(name.trim(), "NCCL_ALGO" | "NCCL_PROTO") && assignment.contains([':', ';']) {
            by_function.push((line_number, name.trim().to_owned()));
        }
        assignments.push(assignment);
    }
    let assignments = assignments.join(" ");
    let parsed = Settings::parse(&assignments);
    let (settings, _) = parsed.map_err(|error| TableError::new_for_file(source, error.to_string()))?;
    Ok(SettingsFile { settings, ignored, by_function, assignments })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_rejected_with_location() {
        for (text, line, column, expected) in [
            ("# made\r\nNCCL_ALGO=Rong\r\n", 2, 11, "Rong"),
            ("NCCL_ALGO=Ring\n  export NCCL_PROTO=LL9", 2, 21, "LL9"),
            ("NCCL_MIN_CTAS=0", 1, 15, "1 to 64"),
            ("NCCL_MIN_CTAS=1000", 1, 15, "1 to 64"),
            ("NCCL_ALGO=Ring\nNCCL_ALGO=Tree\n", 2, 1, "is given twice"),
            ("NCCL_ALGO=Ring\nring,ll", 2, 1, "expected NAME=VALUE"),
        ] {
            let error = read(text, "nccl.conf").unwrap_err();
            assert_eq!((error.location.line, error.location.column), (line, column), "{text}: {error}");
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_settings_are_reported_with_line() {
        let file = read("NCCL_ALGO=Ring\n\nNCCL_ALG0=Tree\nNCCL_DEBUG='INFO'\n", "nccl.conf").unwrap();
        assert_eq!(file.ignored, [(3, "NCCL_ALG0".to_owned()), (4, "NCCL_DEBUG".to_owned())]);
        assert_eq!(file.settings, Settings::parse("NCCL_ALGO=Ring").unwrap().0);
    }
}
