//! Schedules in memory: read from text or a file, verified, and written in all supported formats.

use std::path::PathBuf;
use std::sync::Arc;

use fabricast::request::{CommandAnswer, KernelTarget, ScheduleFile};
use fabricast_sim::schedule::Header;
use pyo3::prelude::*;

use crate::kernel::Kernel;
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
        let file = run_interruptibly(py, None, move |_| ScheduleFile::read(&path))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Parses a schedule of any format.
    #[staticmethod]
    fn parse(py: Python<'_>, text: String, name: String) -> PyResult<Self> {
        let file = run_interruptibly(py, None, move |_| ScheduleFile::parse(&text, &name))?;
        Ok(Self { file: Arc::new(file) })
    }

    /// Proves that the schedule computes its collective, and returns the JSON of `schedule verify`.
    #[pyo3(signature = (fifo_depth = None))]
    fn verify(&self, py: Python<'_>, fifo_depth: Option<u32>) -> PyResult<Option<String>> {
        let file = Arc::clone(&self.file);
        let CommandAnswer { result, .. } =
            run_interruptibly(py, None, move |control| file.verify(fifo_depth, control))?;
        Ok(result)
    }

    /// Returns the schedule in a format of `schedule convert --to`, with warnings about properties that the format does
    /// not express.
    fn write(&self, py: Python<'_>, format: &str) -> PyResult<(Option<String>, Vec<String>)> {
        let format = ScheduleFile::format(format).map_err(|error| to_exception(py, error))?;
        let file = Arc::clone(&self.file);
        let CommandAnswer { result, warnings } =
            run_interruptibly(py, None, move |control| file.write(format, control))?;
        Ok((result, warnings))
    }

    /// Generates the CUDA kernel of the schedule for one GPU per rank.
    fn kernel(
        &self,
        py: Python<'_>,
        dtype: String,
        op: String,
        multiprocessors: u32,
        capability: u32,
    ) -> PyResult<Kernel> {
        let target = KernelTarget { dtype, op, multiprocessors, capability };
        let kernel = py.detach(|| self.file.kernel(&target)).map_err(|error| to_exception(py, error))?;
        Ok(Kernel::new(kernel))
    }

    /// Name of the algorithm, or the name in the schedule's file.
    #[getter]
    fn name(&self) -> &str {
        &self.header().name
    }

    /// Collective, by its name in nccl-tests.
    #[getter]
    fn collective(&self) -> &'static str {
        self.header().call.collective.name()
    }

    /// Size of the call in bytes: the larger buffer of a rank.
    #[getter]
    fn bytes(&self) -> u64 {
        self.header().call.bytes.0
    }

    /// Number of ranks.
    #[getter]
    fn ranks(&self) -> u32 {
        self.header().call.ranks
    }

    /// Number of channels.
    #[getter]
    fn channels(&self) -> u16 {
        self.header().channels
    }

    /// Name of the protocol.
    #[getter]
    fn protocol(&self) -> &'static str {
        self.header().protocol.name()
    }

    /// Number of operations.
    #[getter]
    fn operations(&self) -> u32 {
        self.file.schedule().operation_count()
    }
}

impl Schedule {
    fn header(&self) -> &Header {
        self.file.schedule().header()
    }
}
