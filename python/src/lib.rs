//! Extension module `fabricast._fabricast`: commands, tables and schedules for the Python package around it.
//!
//! It converts values and reports errors. Commands run in the crate `fabricast`.

mod column_type;
mod kernel;
mod schedule;
mod table;
mod value;

use std::ffi::OsString;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arrow_array::RecordBatchIterator;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use fabricast::Document;
use fabricast::request::{CommandAnswer, Control, FlagKind, FlagValue, Request, RequestError, Setting, flags};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};

use crate::value::Json;

/// Poll interval of Python's signal handlers, and of the command's progress, while a command runs.
const POLL: Duration = Duration::from_millis(20);

/// Maximum value of the flag `threads`.
const MAX_THREADS: usize = 1024;

/// Id of the process that ran the first command.
static FIRST_PROCESS: OnceLock<u32> = OnceLock::new();

/// Returns true in a process that was forked after a command. The threads of rayon's global pool exist only in the process
/// that started them, so commands of other processes need a pool of their own.
fn is_forked() -> bool {
    *FIRST_PROCESS.get_or_init(std::process::id) != std::process::id()
}

/// Flags as Python passes them: the name with dashes, and its values; `None` for a flag without a value.
type PythonFlags = Vec<(String, Option<Vec<OsString>>)>;

/// Runs a command without the GIL, and returns its JSON (or its text, if it writes another format) and its warnings.
///
/// The command runs on a thread of its own; this thread waits and handles signals. If a handler raises, as Ctrl-C does,
/// the command is stopped and the exception is returned. `observe` is called on this thread with the numbers of steps done
/// and in total and the activity whenever one has changed, and treated as a handler.
#[pyfunction]
#[pyo3(signature = (command, positionals, settings, observe = None))]
fn run(
    py: Python<'_>,
    command: Vec<String>,
    positionals: Vec<OsString>,
    settings: PythonFlags,
    observe: Option<Bound<'_, PyAny>>,
) -> PyResult<(Option<String>, Vec<String>)> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut settings: Vec<(&str, Setting)> = settings
        .iter()
        .map(|(name, values)| (name.as_str(), values.clone().map_or(Setting::Switch, Setting::Values)))
        .collect();
    if is_forked() && settings.iter().all(|(name, _)| *name != "threads") {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        settings.push(("threads", Setting::value(threads.to_string())));
    }
    let request = Request::new(&words, &positionals, &settings).map_err(|error| to_exception(py, error))?;
    let CommandAnswer { result, warnings } =
        run_interruptibly(py, observe.as_ref(), move |control| request.run(control))?;
    Ok((result, warnings))
}

/// Runs `work` on another thread while this thread handles signals and reports progress to `observe`.
///
/// # Errors
/// The exception of the failed work, or that of a signal handler or of `observe`, which also stops the work.
fn run_interruptibly<T: Send + 'static>(
    py: Python<'_>,
    observe: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Arc<Control>) -> Result<T, RequestError> + Send + 'static,
) -> PyResult<T> {
    let control = Arc::<Control>::default();
    if observe.is_some() {
        control.request_progress();
    }
    let mut reported = None;
    let mut report = || {
        let (Some(observe), Some(progress)) = (observe, control.progress()) else { return Ok(()) };
        if reported.as_ref() == Some(&progress) {
            return Ok(());
        }
        let outcome = observe.call1((progress.position.done, progress.position.total, progress.label.as_str()));
        reported = Some(progress);
        outcome.map(drop)
    };
    let (sender, receiver) = channel();
    let for_work = Arc::clone(&control);
    std::thread::Builder::new().name("fabricast".to_owned()).spawn(move || {
        // The receiver no longer exists if a signal stopped the command.
        let _ = sender.send(work(&for_work));
    })?;
    // `detach` requires that its closure uses only values that can be shared between threads; a receiver cannot.
    let receiver = Mutex::new(receiver);
    loop {
        let received = py.detach(|| {
            receiver.lock().map_or(Err(RecvTimeoutError::Disconnected), |receiver| receiver.recv_timeout(POLL))
        });
        match received {
            Ok(outcome) => {
                let outcome = outcome.map_err(|error| to_exception(py, error))?;
                report()?;
                return Ok(outcome);
            }
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().and_then(|()| report()).inspect_err(|_| control.stop())?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the command ended without a result: this is a bug of fabricast"));
            }
        }
    }
}

/// Returns the exception of a failed command: message, help, file, line, column, exit code, result, warnings.
fn to_exception(py: Python<'_>, error: RequestError) -> PyErr {
    let location = error.location.as_ref();
    let file = location.map(|location| location.source.clone());
    let line = location.map(|location| location.line).filter(|line| *line > 0);
    let column = location.map(|location| location.column).filter(|column| *column > 0);
    let CommandAnswer { result, warnings } = *error.answer;
    let arguments = (error.message, error.help, file, line, column, error.exit_code, result);
    // Warnings precede the exception; a warning that a filter turns into an exception replaces it.
    let raised = warnings
        .iter()
        .try_for_each(|warning| warn(py, warning))
        .and_then(|()| py.import("fabricast._result")?.getattr("FabricastError")?.call1(arguments));
    raised.map_or_else(|failed| failed, PyErr::from_value)
}

fn warn(py: Python<'_>, message: &str) -> PyResult<()> {
    py.import("fabricast._result")?.getattr("warn")?.call1((message,))?;
    Ok(())
}

/// Arrow table of a document's rows.
#[pyclass(frozen, module = "fabricast._fabricast")]
struct Table {
    batch: arrow_array::RecordBatch,
}

#[pymethods]
impl Table {
    /// Creates the table of a list of a JSON document, or with `None` the table with the document as its only row.
    #[new]
    fn new(py: Python<'_>, document: &str, list: Option<&str>) -> PyResult<Self> {
        py.detach(|| {
            let document: Json = serde_json::from_str(document)?;
            table::table(&document, list)
        })
        .map(|batch| Self { batch })
        .map_err(|error: table::TableError| PyValueError::new_err(error.to_string()))
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the Arrow C stream of the table. The requested schema is ignored, as the protocol permits.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), c"arrow_array_stream")
    }
}

/// Returns the key of the main list of a document with this `format` and these keys, or `None` if the document as a whole
/// is its only row.
#[pyfunction]
fn main_list(format: Option<&str>, keys: Vec<String>) -> Option<&'static str> {
    // The documents without a format are fabrics.
    let lists = format.and_then(Document::from_format).map_or(&["links"][..], Document::row_lists);
    lists.iter().copied().find(|list| keys.iter().any(|key| key == list))
}

/// Returns the flags of a command as dictionaries, from which `commands.py` is generated.
#[pyfunction]
fn command_flags(py: Python<'_>, command: Vec<String>) -> PyResult<Bound<'_, PyList>> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let flags = flags(&words).ok_or_else(|| PyValueError::new_err(format!("no command {}", command.join(" "))))?;
    let list = PyList::empty(py);
    for flag in flags {
        let entry = PyDict::new(py);
        entry.set_item("name", flag.name)?;
        entry.set_item("help", flag.help)?;
        entry.set_item("heading", flag.heading)?;
        entry.set_item(
            "kind",
            match flag.kind {
                FlagKind::Switch => "switch",
                FlagKind::OptionalValue => "optional value",
                FlagKind::Value => "value",
                FlagKind::List => "list",
            },
        )?;
        entry.set_item(
            "value",
            match flag.value {
                FlagValue::Integer => "integer",
                FlagValue::Number => "number",
                FlagValue::Size => "size",
                FlagValue::Path => "path",
                FlagValue::Text => "text",
            },
        )?;
        entry.set_item("choices", flag.choices)?;
        entry.set_item("default", flag.default)?;
        entry.set_item("is_positional", flag.is_positional)?;
        entry.set_item("is_required", flag.is_required)?;
        list.append(entry)?;
    }
    Ok(list)
}

/// Extension module of the package `fabricast`.
#[pymodule]
fn _fabricast(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", fabricast::VERSION)?;
    module.add_class::<Table>()?;
    module.add_class::<schedule::Schedule>()?;
    module.add_class::<kernel::Kernel>()?;
    module.add_class::<kernel::KernelArena>()?;
    module.add_class::<kernel::Parameters>()?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(main_list, module)?)?;
    module.add_function(wrap_pyfunction!(command_flags, module)?)?;
    Ok(())
}
