//! Exported symbols: one for each version of NCCL's tuner interface.
#![allow(unsafe_code, reason = "structures of pointers that C reads, exported by name")]

use crate::abi::{Name, TunerV4, TunerV5, TunerV6};
use crate::ffi;

const NAME: Name = Name::new(c"fabricast");

/// Interface of version 4, for NCCL versions that support no later one.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v4: TunerV4 =
    TunerV4 { name: NAME, init: ffi::init_v4, get_coll_info: ffi::get_coll_info, destroy: ffi::finalize };

/// Interface of version 5, for NCCL 2.28.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v5: TunerV5 =
    TunerV5 { name: NAME, init: ffi::init_v5, get_coll_info: ffi::get_coll_info, finalize: ffi::finalize };

/// Interface of version 6, for NCCL 2.30.
#[unsafe(no_mangle)]
pub static ncclTunerPlugin_v6: TunerV6 = TunerV6 {
    name: NAME,
    init: ffi::init_v5,
    get_coll_info: ffi::get_coll_info,
    finalize: ffi::finalize,
    get_chunk_size: None,
};
