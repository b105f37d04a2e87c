//! Functions that NCCL calls. Each accepts any arguments, returns success, and lets no panic unwind into C.
//!
//! The functions never return an error, because NCCL treats errors of the plugin as its own, although the header
//! promises a fallback. If `init` failed, NCCL would abort the creation of the communicator (`src/init.cc`, since 2.31
//! `src/tuning/tuning.cc`); if `getCollInfo` failed, it would abort the collective (`src/enqueue.cc`).
#![allow(unsafe_code, reason = "called from C")]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{Code, Constants, Logger, NvlDomainInfo, SUCCESS};
use crate::context::{CallQuery, Context, Costs};

/// Largest number of algorithms in a cost table; NCCL has 7. A call with a larger number is invalid and ignored.
pub const MAX_ALGORITHMS: c_int = 32;
/// Largest number of protocols in a cost table; NCCL has 3.
pub const MAX_PROTOCOLS: c_int = 8;

/// Handle of a communicator's context, to which NCCL holds a pointer. The eight bytes of a handle are never freed, so
/// that a second `finalize`, or a later call, finds no context instead of the memory of another object.
struct Handle(AtomicPtr<Context>);

impl Handle {
    fn new(context: Context) -> &'static Self {
        Box::leak(Box::new(Self(AtomicPtr::new(Box::into_raw(Box::new(context))))))
    }

    /// Returns the handle that `init` created.
    ///
    /// # Safety
    /// The pointer must be null or from `init`.
    unsafe fn from_raw(pointer: *mut c_void) -> Option<&'static Self> {
        // SAFETY: guaranteed by the caller; handles live as long as the process.
        unsafe { pointer.cast::<Self>().as_ref() }
    }
}

/// Creates the context of a communicator: `init` of version 4.
///
/// # Safety
/// `context` must be null or writable; `logger` must be absent or NCCL's.
pub unsafe extern "C" fn init_v4(
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    context: *mut *mut c_void,
) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { init(ranks, nodes, logger, context) }
}

/// Creates the context of a communicator: `init` of versions 5 and 6. The description of NVLink domains is not used,
/// and the constants are not changed.
///
/// # Safety
/// `context` must be null or writable; `logger` must be absent or NCCL's.
pub unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    _domains: *mut NvlDomainInfo,
    _constants: *mut Constants,
) -> Code {
    // SAFETY: guaranteed by the caller.
    unsafe { init(ranks, nodes, logger, context) }
}

unsafe fn init(ranks: usize, nodes: usize, logger: Option<Logger>, context: *mut *mut c_void) -> Code {
    if context.is_null() || !context.is_aligned() {
        return SUCCESS;
    }
    let handle = catch_unwind(|| Handle::new(Context::from_environment(ranks, nodes, logger)));
    let pointer = handle.map_or(std::ptr::null_mut(), |handle| std::ptr::from_ref(handle).cast_mut().cast());
    // SAFETY: not null, aligned, and writable as guaranteed by the caller.
    unsafe { context.write(pointer) };
    SUCCESS
}

/// Selects the strategy of a call: `getCollInfo` of versions 4 to 6.
///
/// # Safety
/// `context` must be null or from `init`, without a concurrent `finalize`. `costs` must be null or point to a block of
/// `algorithms` × `protocols` floats, although its type differs. `channels` must be null or writable.
pub unsafe extern "C" fn get_coll_info(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    operations: c_int,
    costs: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> Code {
    let costs = costs.cast::<f32>();
    let sane = (1..=MAX_ALGORITHMS).contains(&algorithms) && (1..=MAX_PROTOCOLS).contains(&protocols);
    if context.is_null() || costs.is_null() || !costs.is_aligned() || !sane {
        return SUCCESS;
    }
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: from `init`, as guaranteed by the caller.
        let handle = unsafe { Handle::from_raw(context) }?;
        // SAFETY: null, or a context that is not finalized concurrently, as guaranteed by the caller; threads only
        // share it.
        let context = unsafe { handle.0.load(Ordering::Acquire).as_ref() }?;
        let (algorithms, protocols) = (algorithms.unsigned_abs() as usize, protocols.unsigned_abs() as usize);
        // SAFETY: the caller's block, not accessed by others during the call.
        let costs = unsafe { std::slice::from_raw_parts_mut(costs, algorithms * protocols) };
        let query = CallQuery { function, bytes: bytes as u64, operations, registered };
        context.answer(query, &mut Costs { cells: costs, protocols })
    }));
    if let Ok(Some(channel_count)) = answered
        && !channels.is_null()
        && channels.is_aligned()
    {
        // SAFETY: not null, aligned, and writable as guaranteed by the caller.
        unsafe { channels.write(channel_count.get().into()) };
    }
    SUCCESS
}

/// Destroys the context of a communicator: `destroy` of version 4, `finalize` of later versions.
///
/// # Safety
/// `context` must be null or from `init`, and no call may use it concurrently.
pub unsafe extern "C" fn finalize(context: *mut c_void) -> Code {
    // SAFETY: guaranteed by the caller.
    let handle = unsafe { Handle::from_raw(context) };
    let pointer = handle.map_or(std::ptr::null_mut(), |handle| handle.0.swap(std::ptr::null_mut(), Ordering::AcqRel));
    if !pointer.is_null() {
        // SAFETY: `init` created it from a box; only the thread that swapped it out owns it.
        let context = unsafe { Box::from_raw(pointer) };
        // Errors during logging or freeing must not reach NCCL.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(context)));
    }
    SUCCESS
}
