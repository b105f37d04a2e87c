//! The functions that NCCL calls. Each survives whatever it is given, returns success, and lets nothing unwind into C.
//!
//! Success always, since NCCL checks these calls as it checks its own: a failing `init` ends the making of the communicator
//! (`src/init.cc`, since 2.31 `src/tuning/tuning.cc`), a failing `getCollInfo` the collective (`src/enqueue.cc`), whatever the
//! header says of falling back.
#![allow(unsafe_code, reason = "called from C")]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{Code, Constants, Logger, NvlDomainInfo, SUCCESS};
use crate::context::{Asked, Context, Costs};

/// Most algorithms of a table of costs; NCCL has 7. More is taken for a mistake of the caller, and left alone.
pub const MOST_ALGORITHMS: c_int = 32;
/// Most protocols; NCCL has 3.
pub const MOST_PROTOCOLS: c_int = 8;

/// The context of a communicator as NCCL holds it. A handle of eight bytes is never given back, so that whoever ends a context twice, or
/// asks after its end, finds that it is gone, and never the memory of another one.
struct Handle(AtomicPtr<Context>);

impl Handle {
    fn new(context: Context) -> &'static Self {
        Box::leak(Box::new(Self(AtomicPtr::new(Box::into_raw(Box::new(context))))))
    }

    /// The handle that `init` gave.
    ///
    /// # Safety
    /// The pointer is null or what `init` gave.
    unsafe fn of(pointer: *mut c_void) -> Option<&'static Self> {
        // SAFETY: as the caller says; handles live as long as the process.
        unsafe { pointer.cast::<Self>().as_ref() }
    }
}

/// `init` of version 4.
///
/// # Safety
/// `context` is null or can be written, `logger` is absent or NCCL's.
pub unsafe extern "C" fn init_v4(
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    context: *mut *mut c_void,
) -> Code {
    // SAFETY: as the caller says.
    unsafe { init(ranks, nodes, logger, context) }
}

/// `init` of versions 5 and 6. What NCCL says of NVLink domains is not needed, its constants stay as they are.
///
/// # Safety
/// As of version 4.
pub unsafe extern "C" fn init_v5(
    context: *mut *mut c_void,
    _communicator: u64,
    ranks: usize,
    nodes: usize,
    logger: Option<Logger>,
    _domains: *mut NvlDomainInfo,
    _constants: *mut Constants,
) -> Code {
    // SAFETY: as the caller says.
    unsafe { init(ranks, nodes, logger, context) }
}

unsafe fn init(ranks: usize, nodes: usize, logger: Option<Logger>, context: *mut *mut c_void) -> Code {
    if context.is_null() || !context.is_aligned() {
        return SUCCESS;
    }
    let made = catch_unwind(|| Handle::new(Context::of_environment(ranks, nodes, logger)));
    let pointer = made.map_or(std::ptr::null_mut(), |handle| std::ptr::from_ref(handle).cast_mut().cast());
    // SAFETY: not null, aligned, and the caller says that it can be written.
    unsafe { context.write(pointer) };
    SUCCESS
}

/// `getCollInfo` of versions 4 to 6.
///
/// # Safety
/// `context` is null or what `init` gave, and no `finalize` of it runs meanwhile; `costs` is null or, whatever its type says, a block of
/// `algorithms` × `protocols` floats; `channels` is null or can be written.
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
    let sane = (1..=MOST_ALGORITHMS).contains(&algorithms) && (1..=MOST_PROTOCOLS).contains(&protocols);
    if context.is_null() || costs.is_null() || !costs.is_aligned() || !sane {
        return SUCCESS;
    }
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `init` gave it, says the caller.
        let handle = unsafe { Handle::of(context) }?;
        // SAFETY: null, or a context that nobody takes meanwhile, says the caller; contexts are shared between threads only.
        let context = unsafe { handle.0.load(Ordering::Acquire).as_ref() }?;
        let (algorithms, protocols) = (algorithms.unsigned_abs() as usize, protocols.unsigned_abs() as usize);
        // SAFETY: the caller's block; nobody else has it during the call.
        let costs = unsafe { std::slice::from_raw_parts_mut(costs, algorithms * protocols) };
        let asked = Asked { function, bytes: bytes as u64, operations, registered };
        context.answer(asked, &mut Costs { cells: costs, protocols })
    }));
    if let Ok(Some(wanted)) = answered
        && !channels.is_null()
        && channels.is_aligned()
    {
        // SAFETY: not null, aligned, and the caller says that it can be written.
        unsafe { channels.write(wanted.get().into()) };
    }
    SUCCESS
}

/// `destroy` of version 4, `finalize` since.
///
/// # Safety
/// `context` is null or what `init` gave, and nobody asks it meanwhile.
pub unsafe extern "C" fn finalize(context: *mut c_void) -> Code {
    // SAFETY: as the caller says.
    let handle = unsafe { Handle::of(context) };
    let taken = handle.map_or(std::ptr::null_mut(), |handle| handle.0.swap(std::ptr::null_mut(), Ordering::AcqRel));
    if !taken.is_null() {
        // SAFETY: `init` took it from a box; whoever swapped it out is the only one that has it.
        let context = unsafe { Box::from_raw(taken) };
        // What it says at its end, or gives back, may fail; NCCL is not to hear of it.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(context)));
    }
    SUCCESS
}
