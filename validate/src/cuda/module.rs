//! Compiled code on a GPU: modules, functions, launches.
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

/// Compiled code, loaded on a GPU.
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: the driver takes a module's handle from any thread and locks for itself.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads compiled code.
    ///
    /// # Errors
    /// A failing call: code for another GPU, say.
    pub fn load(context: &Arc<Context>, code: &Cubin) -> Result<Arc<Self>, CudaError> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image holds all bytes that its headers name (`Cubin`), so that the driver, which is given no length, reads none
        // beyond its end; it copies what it needs.
        let result = unsafe { sys::cuModuleLoadData(&raw mut raw, code.image().as_ptr().cast()) };
        context.check(result, "cuModuleLoadData")?;
        Ok(Arc::new(Self { context: Arc::clone(context), raw }))
    }

    /// The driver's handle, for libraries that initialise code of theirs in it (NVSHMEM). It lives as long as `self`.
    pub fn raw(&self) -> sys::CUmodule {
        self.raw
    }

    /// One of its kernels.
    ///
    /// # Errors
    /// A failing call: there is none of that name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::Name(name.to_owned()))?;
        self.context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module lives; the driver writes one pointer.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.raw, c_name.as_ptr()) };
        self.context.check(result, "cuModuleGetFunction")?;
        Ok(Function { module: Arc::clone(self), raw })
    }

    /// Where one of its global variables lies, and its size.
    ///
    /// # Errors
    /// A failing call: there is none of that name.
    pub fn global(&self, name: &str) -> Result<(DeviceAddress, Bytes), CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::Name(name.to_owned()))?;
        self.context.bind()?;
        let (mut address, mut length) = (0, 0);
        // SAFETY: the module lives; the driver writes two words.
        let result = unsafe { sys::cuModuleGetGlobal_v2(&raw mut address, &raw mut length, self.raw, c_name.as_ptr()) };
        self.context.check(result, "cuModuleGetGlobal")?;
        Ok((DeviceAddress(address), Bytes(length as u64)))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind_to_free().is_ok() {
            // SAFETY: loaded once, unloaded once. Nothing is left to tell an error to.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel. It keeps its module.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    raw: sys::CUfunction,
}

// SAFETY: as the module's.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// Whether the blocks of a launch are certain to run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchMode {
    /// They may run one after the other.
    Plain,
    /// They run at once, or the launch fails: blocks may wait for each other.
    Cooperative,
    /// It may be launched while the kernel before it on the stream ends, and waits for that one by itself before it touches
    /// anything (`griddepcontrol.wait`): programmatic dependent launch, from compute capability 9.0 on.
    Overlapping,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks.
    pub blocks: u32,
    /// Threads of each.
    pub threads: u32,
    /// Dynamic shared memory of each.
    pub shared: Bytes,
    /// Whether blocks wait for each other.
    pub mode: LaunchMode,
}

impl Launch {
    /// Blocks that do not wait for each other, without shared memory.
    pub fn plain(blocks: u32, threads: u32) -> Self {
        Self { blocks, threads, shared: Bytes(0), mode: LaunchMode::Plain }
    }
}

impl Function {
    /// Lets a launch give each block that much dynamic shared memory.
    ///
    /// # Errors
    /// A failing call: the GPU has not as much.
    pub fn allow_shared(&self, bytes: Bytes) -> Result<(), CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let which = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function's module lives.
        let result = unsafe { sys::cuFuncSetAttribute(self.raw, which, i32::try_from(bytes.0).unwrap_or(i32::MAX)) };
        context.check(result, "cuFuncSetAttribute")
    }

    /// Registers that each thread takes.
    ///
    /// # Errors
    /// A failing call.
    pub fn registers(&self) -> Result<u32, CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let mut value = 0;
        // SAFETY: the function's module lives; the driver writes one int.
        let result =
            unsafe { sys::cuFuncGetAttribute(&raw mut value, FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS, self.raw) };
        context.check(result, "cuFuncGetAttribute")?;
        Ok(value.unsigned_abs())
    }

    /// How many blocks of that shape a multiprocessor holds at once.
    ///
    /// # Errors
    /// A failing call.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared: Bytes) -> Result<u32, CudaError> {
        let context = &self.module.context;
        context.bind()?;
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function's module lives; the driver writes one int.
        let result = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, self.raw, threads, shared.0 as usize)
        };
        context.check(result, "cuOccupancyMaxActiveBlocksPerMultiprocessor")?;
        Ok(blocks.unsigned_abs())
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// The arguments must be those that the kernel takes, in order, and every address among them must be that of memory
    /// which the stream's GPU reaches, which is long enough for what the kernel does, and which lives until it is done.
    ///
    /// # Errors
    /// A failing call: a shape that the GPU cannot run, say. What goes wrong while it runs shows when it is waited for.
    pub unsafe fn launch(&self, stream: &Stream, shape: Launch, arguments: &Arguments) -> Result<(), CudaError> {
        let context = stream.context();
        context.bind()?;
        let mut pointers = arguments.pointers();
        let shared = u32::try_from(shape.shared.0).unwrap_or(u32::MAX);
        let Launch { blocks, threads, .. } = shape;
        match shape.mode {
            LaunchMode::Plain => {
                // SAFETY: the caller answers for the arguments; the pointers to them live through the call, which
                // copies what they point at.
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
