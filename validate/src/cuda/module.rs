//! Compiled code on a GPU: modules, functions and launches.
#![expect(unsafe_code, reason = "driver calls")]

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute_enum as FunctionAttribute};
use fabricast_topologies::Bytes;

use super::arguments::Arguments;
use super::compile::Cubin;
use super::context::Context;
use super::error::CudaError;
use super::memory::DeviceAddress;
use super::stream::Stream;

/// Compiled code loaded on a GPU.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: the driver accepts a module's handle from any thread and synchronizes internally.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads compiled code on the GPU of `context`.
    ///
    /// # Errors
    /// A driver call fails, for example because the code is for another architecture.
    pub fn load(context: &Arc<Context>, code: &Cubin) -> Result<Arc<Self>, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image contains all bytes that its headers refer to (`Cubin`), so the driver, which gets no
        // length, reads nothing beyond its end; it copies what it needs.
        let result = unsafe { sys::cuModuleLoadData(&raw mut raw, code.image().as_ptr().cast()) };
        context.check(result, "cuModuleLoadData")?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// Driver handle, for libraries that initialize their own device code in the module (NVSHMEM). Valid as long as
    /// `self`.
    pub fn raw(&self) -> sys::CUmodule {
        self.raw
    }

    /// Returns the kernel called `name`.
    ///
    /// # Errors
    /// A driver call fails, for example because the module has no such kernel.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::Name(name.to_owned()))?;
        self.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is alive; the driver writes one pointer.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.raw, c_name.as_ptr()) };
        self.context.check(result, "cuModuleGetFunction")?;
        Ok(Function { module: Arc::clone(self), raw })
    }

    /// Returns the address and the size in bytes of the global variable `name`.
    ///
    /// # Errors
    /// A driver call fails, for example because the module has no such variable.
    pub fn global(&self, name: &str) -> Result<(DeviceAddress, Bytes), CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::Name(name.to_owned()))?;
        self.context.bind()?;
        let (mut address, mut length) = (0, 0);
        // SAFETY: the module is alive; the driver writes two words.
        let result = unsafe { sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut length, self.raw, c_name.as_ptr()) };
        self.context.check(result, "cuModuleGetGlobal")?;
        Ok((DeviceAddress(address), Bytes(length as u64)))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: loaded once, unloaded once. An error cannot be reported here.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel. It keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    raw: sys::CUfunction,
}

// SAFETY: as for the module.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Guarantee on the concurrency of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// No guarantee: blocks may run one after another.
    Plain,
    /// All blocks are co-resident, or the launch fails. Blocks may wait for each other.
    Cooperative,
    /// Programmatic dependent launch, for compute capability 9.0 or higher. The kernel may start while the previous
    /// kernel on the stream is finishing, and waits for that kernel before it accesses memory (`griddepcontrol.wait`).
    Overlapping,
}

/// Configuration of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of thread blocks of the grid.
    pub blocks: u32,
    /// Number of threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block in bytes.
    pub shared: Bytes,
    /// Guarantee on the concurrency of the blocks, and of the kernel with the previous one.
    pub mode: LaunchMode,
}

impl Launch {
    /// Creates a launch without concurrency guarantee and without shared memory.
    pub fn without_shared_memory(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared: Bytes(0), mode: LaunchMode::Plain }
    }
}

impl Function {
    /// Raises the limit of dynamic shared memory per block to `bytes`.
    ///
    /// # Errors
    /// A driver call fails, for example because the GPU has less shared memory.
    pub fn allow_shared(&self, bytes: Bytes) -> Result<(), CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let attribute = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module is alive.
        let result =
            unsafe { sys::cuFuncSetAttribute(self.raw, attribute, i32::try_from(bytes.0).unwrap_or(i32::MAX)) };
        context.check(result, "cuFuncSetAttribute")
    }

    /// Number of registers that the kernel needs per thread.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn registers(&self) -> Result<u32, CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let mut value = 0;
        // SAFETY: the function's module is alive; the driver writes one int.
        let result =
            unsafe { sys::cuFuncGetAttribute(&raw mut value, FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS, self.raw) };
        context.check(result, "cuFuncGetAttribute")?;
        Ok(value.unsigned_abs())
    }

    /// Number of blocks with `threads` threads and `shared` bytes of dynamic shared memory that can run concurrently on
    /// a multiprocessor.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: Bytes) -> Result<u32, CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function's module is alive; the driver writes one int.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.raw, threads, shared.0 as usize)
        };
        context.check(result, "cuOccupancyMaxActiveBlocksPerMultiprocessor")?;
        Ok(blocks.unsigned_abs())
    }

    /// Enqueues a launch of the kernel on `stream`.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in number, order and type. Every address among them must refer
    /// to memory that the stream's GPU can access, that is large enough for the kernel's accesses, and that lives until
    /// the kernel ends.
    ///
    /// # Errors
    /// A driver call fails, for example because the GPU cannot run the configuration. A failure during execution is
    /// reported by a later wait.
    pub unsafe fn launch(&self, stream: &Stream, shape: Launch, arguments: &Arguments) -> Result<(), CudaError> {
        let context = stream.context();
        context.bind()?;
        let mut pointers = arguments.pointers();
        let shared = u32::try_from(shape.shared.0).unwrap_or(u32::MAX);
        let Launch { blocks, threads, .. } = shape;
        match shape.mode {
            LaunchMode::Plain => {
                // SAFETY: the caller guarantees the arguments; the pointers to them live through the call, which copies
                // their contents.
                let result = unsafe {
                    let none = std::ptr::null_mut();
                    let parameters = pointers.as_mut_ptr();
                    sys::cuLaunchKernel(self.raw, blocks, 1, 1, threads, 1, 1, shared, stream.raw(), parameters, none)
                };
                context.check(result, "cuLaunchKernel")
            }
            LaunchMode::Cooperative => {
                // SAFETY: as above.
                let result = unsafe {
                    let parameters = pointers.as_mut_ptr();
                    sys::cuLaunchCooperativeKernel(
                        self.raw,
                        blocks,
                        1,
                        1,
                        threads,
                        1,
                        1,
                        shared,
                        stream.raw(),
                        parameters,
                    )
                };
                context.check(result, "cuLaunchCooperativeKernel")
            }
            LaunchMode::Overlapping => {
                let mut attribute = sys::CUlaunchAttribute {
                    id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                    pad: [0; 4],
                    value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                };
                let config = sys::CUlaunchConfig {
                    gridDimX: blocks,
                    gridDimY: 1,
                    gridDimZ: 1,
                    blockDimX: threads,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: shared,
                    hStream: stream.raw(),
                    attrs: &raw mut attribute,
                    numAttrs: 1,
                };
                // SAFETY: as above; the attribute lives through the call.
                let result = unsafe {
                    sys::cuLaunchKernelEx(&raw const config, self.raw, pointers.as_mut_ptr(), std::ptr::null_mut())
                };
                context.check(result, "cuLaunchKernelEx")
            }
        }
    }
}
