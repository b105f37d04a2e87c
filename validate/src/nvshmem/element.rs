//! This process as an NVSHMEM processing element. All elements are initialized collectively, with an ID that one of
//! them creates.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::c_int;
use std::sync::Arc;

use super::error::NvshmemError;
use super::initialization::{InitAttributes, NvshmemUniqueId};
use super::library::Nvshmem;
use crate::cuda::{Context, Module};

impl Nvshmem {
    /// Creates an ID. This process then listens on the interface named by `NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME` until all
    /// processes have connected, so this process must also join as an element.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error.
    pub fn unique_id(&self) -> Result<NvshmemUniqueId, NvshmemError> {
        let mut id = NvshmemUniqueId::new();
        // SAFETY: writes 128 bytes, as the structure's version states.
        let code = unsafe { (self.functions.get_unique_id)(&raw mut id) };
        check(code, "nvshmemx_get_uniqueid", None)?;
        Ok(id)
    }
}

pub(super) fn check(code: c_int, call: &'static str, rank: Option<usize>) -> Result<(), NvshmemError> {
    if code == 0 { Ok(()) } else { Err(NvshmemError::Call { call, rank, code }) }
}

/// This process as one of the elements. The process remains an element until it ends, because finalizing is collective
/// and an element that failed cannot rely on the others.
#[derive(Debug)]
pub struct Element {
    pub(super) nvshmem: Arc<Nvshmem>,
    context: Arc<Context>,
    rank: usize,
    size: usize,
}

impl Element {
    /// Joins the other elements on the GPU of `context`. Returns when all `size` processes have called this function
    /// with the same ID.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error, or the library was initialized without the GPU.
    pub fn join(
        nvshmem: &Arc<Nvshmem>,
        context: &Arc<Context>,
        id: &NvshmemUniqueId,
        rank: usize,
        size: usize,
    ) -> Result<Arc<Self>, NvshmemError> {
        /// Flag of an initialization by ID: `NVSHMEMX_INIT_WITH_UNIQUEID`.
        const WITH_UNIQUE_ID: u32 = 1 << 3;
        /// Status of an initialized library: `NVSHMEM_STATUS_IS_INITIALIZED`. Higher values are valid as well; they
        /// indicate several processes per GPU.
        const INITIALIZED: c_int = 2;
        context.bind()?;
        let number = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
        let mut attributes = InitAttributes::new();
        let functions = &nvshmem.functions;
        // SAFETY: both structures live to the end of the second call and contain their versions; the context is
        // current.
        unsafe {
            let set = (functions.set_unique_id)(number(rank), number(size), id, &raw mut attributes);
            check(set, "nvshmemx_set_attr_uniqueid_args", Some(rank))?;
            check((functions.init)(WITH_UNIQUE_ID, &raw mut attributes), "nvshmemx_hostlib_init_attr", Some(rank))?;
        }
        // SAFETY: the function has no parameters.
        let status = unsafe { (functions.status)() };
        if !(INITIALIZED..c_int::MAX).contains(&status) {
            return Err(NvshmemError::NotReady { rank, status });
        }
        // SAFETY: both functions have no parameters; the library is initialized.
        let (rank_found, found_size) = unsafe { ((functions.my_pe)(), (functions.n_pes)()) };
        if (rank_found, found_size) != (number(rank), number(size)) {
            return Err(NvshmemError::Numbering { rank, size, found: rank_found, found_size });
        }
        // The library may change the current context of this thread, so it is set again.
        context.bind()?;
        Ok(Arc::new(Self { nvshmem: Arc::clone(nvshmem), context: Arc::clone(context), rank, size }))
    }

    /// Rank of this element among all elements, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of elements of the run.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Context of the element's GPU.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// NVSHMEM library of the element.
    #[must_use]
    pub fn library(&self) -> &Arc<Nvshmem> {
        &self.nvshmem
    }

    /// Registers code that was linked with NVSHMEM's device library. Every element must register its own code.
    ///
    /// # Errors
    /// An NVSHMEM function returns an error.
    pub fn prepare(self: &Arc<Self>, module: &Arc<Module>) -> Result<PreparedModule, NvshmemError> {
        self.context.bind()?;
        // SAFETY: the module is loaded in the current context.
        let code = unsafe { (self.nvshmem.functions.module_init)(module.raw().cast()) };
        check(code, "nvshmemx_cumodule_init", Some(self.rank))?;
        Ok(PreparedModule { element: Arc::clone(self), module: Arc::clone(module) })
    }
}

/// Code that contains the device library and is registered with NVSHMEM, which updates variables of the code when its
/// heap grows. The code must be unregistered before it is unloaded.
#[derive(Debug)]
pub struct PreparedModule {
    element: Arc<Element>,
    module: Arc<Module>,
}

impl Drop for PreparedModule {
    fn drop(&mut self) {
        if self.element.context.bind_to_free().is_ok() {
            // SAFETY: registered once, unregistered once, and still loaded. An error cannot be reported here.
            let _ = unsafe { (self.element.nvshmem.functions.module_finalize)(self.module.raw().cast()) };
        }
    }
}
