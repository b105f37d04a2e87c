//! CUDA kernels of schedules: source, launch configuration and parameters.

use fabricast::request::{KernelParameters, ScheduleKernel};
use fabricast_validate::kernel::{Addresses, Alignment, SharedArena, WaitMonitor};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::to_exception;

/// Returns the alignment of the buffers. `aligned`: all chunks begin at multiples of 16 bytes.
fn alignment(aligned: bool) -> Alignment {
    if aligned { Alignment::Vectors } else { Alignment::Bytes }
}

/// Memory of a rank that the kernels of a group of ranks share.
#[pyclass(frozen, module = "fabricast._fabricast")]
pub struct KernelArena {
    arena: SharedArena,
}

#[pymethods]
impl KernelArena {
    /// Capacity for calls of up to `max_bytes`.
    #[new]
    fn new(ranks: u32, max_bytes: u64) -> Self {
        Self { arena: SharedArena::for_calls(ranks, max_bytes) }
    }

    /// Size in bytes. The memory must begin at a multiple of 512 bytes and be zeroed before the first call.
    #[getter]
    fn bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Maximum number of blocks of a kernel.
    #[getter]
    fn blocks(&self) -> u32 {
        self.arena.blocks
    }
}

/// Kernel of a schedule.
#[pyclass(frozen, module = "fabricast._fabricast")]
pub struct Kernel {
    kernel: ScheduleKernel,
}

impl Kernel {
    pub fn new(kernel: ScheduleKernel) -> Self {
        Self { kernel }
    }
}

#[pymethods]
impl Kernel {
    /// Number of thread blocks.
    #[getter]
    fn blocks(&self) -> u32 {
        self.kernel.blocks()
    }

    /// Number of threads per block.
    #[getter]
    fn threads(&self) -> u32 {
        self.kernel.threads()
    }

    /// Message format: `packets`, `lines` or `flags`.
    #[getter]
    fn carrier(&self) -> &'static str {
        self.kernel.carrier()
    }

    /// True if any rank writes to the output of another rank.
    #[getter]
    fn writes_peer_outputs(&self) -> bool {
        self.kernel.writes_peer_outputs()
    }

    /// Returns the CUDA source. `aligned`: all chunks of the buffers begin at multiples of 16 bytes.
    fn source(&self, py: Python<'_>, aligned: bool) -> PyResult<String> {
        self.kernel.source(alignment(aligned)).map_err(|error| to_exception(py, error))
    }

    /// Returns the machine code, compiled by NVRTC or cached.
    fn compile<'py>(&self, py: Python<'py>, aligned: bool) -> PyResult<Bound<'py, PyBytes>> {
        let code = py.detach(|| self.kernel.compile(alignment(aligned))).map_err(|error| to_exception(py, error))?;
        Ok(PyBytes::new(py, &code))
    }

    /// Returns the parameters of a rank; `None` if the operands exceed the limit of kernel parameters.
    fn parameters(&self, py: Python<'_>, rank: u32, arena: &KernelArena) -> PyResult<Option<Parameters>> {
        let parameters = self.kernel.parameters(rank, &arena.arena).map_err(|error| to_exception(py, error))?;
        Ok(parameters.map(|parameters| Parameters { parameters }))
    }
}

/// Parameters of a rank's kernel before the addresses of its buffers are known.
#[pyclass(frozen, module = "fabricast._fabricast", name = "KernelParameters")]
pub struct Parameters {
    parameters: KernelParameters,
}

#[pymethods]
impl Parameters {
    /// Returns true if all chunks of the buffers begin at multiples of 16 bytes. `input`: address of this rank's input;
    /// `outputs`: addresses of the outputs of all ranks.
    fn is_aligned(&self, input: u64, outputs: Vec<u64>) -> bool {
        self.parameters.is_aligned(&addresses(input, &outputs, &[]))
    }

    /// Returns the bytes of the kernel's argument. `arenas`: addresses of the arenas of all ranks; `records`: address of
    /// the records of waits that exceed the time limit.
    fn resolve<'py>(
        &self,
        py: Python<'py>,
        input: u64,
        outputs: Vec<u64>,
        arenas: Vec<u64>,
        records: u64,
        time_limit_ns: u64,
    ) -> Bound<'py, PyBytes> {
        let watch = WaitMonitor { records, time_limit_ns, table: 0 };
        PyBytes::new(py, &self.parameters.resolve(&addresses(input, &outputs, &arenas), watch))
    }
}

/// Addresses of the buffers of all ranks. A kernel reads only the input of its own rank, so `input` is used for all ranks.
fn addresses(input: u64, outputs: &[u64], arenas: &[u64]) -> Vec<Addresses> {
    let arena = |rank: usize| arenas.get(rank).copied().unwrap_or_default();
    outputs.iter().enumerate().map(|(rank, &output)| Addresses { input, output, arena: arena(rank) }).collect()
}
