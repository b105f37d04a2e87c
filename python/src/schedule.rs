//! Schedules in memory: read from text or a file, verified, and written in the formats that are known.

use std::path::PathBuf;
use std::sync::Arc;

use fabricast::request::{Answer, ScheduleFile};
use pyo3::prelude::*;

use crate::{run_interruptibly, to_exception};

/// Schedule of a collective call.
#[pyclass(frozen, module = "fabricast._fabricast", name = "ScheduleFile")]
pub struct Schedule {
    file: Arc<ScheduleFile>,
}

#[pymethods]
impl Schedule {
    /// Reads a schedule file of any format.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let file = run_interruptibly(py, move |_| ScheduleFile::read(&path))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Parses a schedule of any format.
    #[staticmethod]
    fn parse(py: Python<'_>, text: String, name: String) -> PyResult<Self> {
        let file = run_interruptibly(py, move |_| ScheduleFile::parse(&text, &name))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Proves that the schedule computes its collective, and returns the JSON of `schedule verify`.
    #[pyo3(signature = (fifo_depth = None))]
    fn verify(&self, py: Python<'_>, fifo_depth: Option<u32>) -> PyResult<Option<String>> {
        let file = Arc::clone(&self.file);
        let Answer { result, .. } = run_interruptibly(py, move |control| file.verify(fifo_depth, control))?;
        Ok(result)
    }

    /// Returns the schedule in a format of `schedule convert --to`, with warnings of what the format does not express.
    fn write(&self, py: Python<'_>, format: &str) -> PyResult<(Option<String>, Vec<String>)> {
        let format = ScheduleFile::format(format).map_err(|error| to_exception(py, error))?;
        let file = Arc::clone(&self.file);
        let Answer { result, warnings } = run_interruptibly(py, move |control| file.write(format, control))?;
        Ok((result, warnings))
    }

    /// Name, collective, bytes, ranks, channels, protocol and number of operations.
    fn summary(&self) -> (String, &'static str, u64, u32, u16, &'static str, u32) {
        let header = self.file.schedule().header();
        let call = header.call;
        let operations = self.file.schedule().operation_count();
        let protocol = header.protocol.name();
        (header.name.clone(), call.collective.name(), call.bytes.0, call.ranks, header.channels, protocol, operations)
    }
}
