//! Time of thread blocks modelled as a capacity: rates of channels, the copy throughputs of the channels of a
//! rank.

use fabricast_topologies::Bytes;

use crate::profile::ChannelLimit;
use crate::quantity::{Rate, WORK_PER_BYTE, Work};

/// Capacity of a channel whose block works in passes, scaled so that one byte of capacity equals ten picoseconds of the
/// block's time. The use of an operation per byte on the wire is rounded to units of [`WHOLE`](crate::sharing::WHOLE):
/// at 1 TB/s, or one picosecond per byte, the resolution is one part in 32,256.
pub(super) const BLOCK_TIME: Rate = Rate(100_000_000_000_000);

/// Rate of a channel; `None` if channels are unlimited.
pub(super) fn channel_rate_limit(speed: ChannelLimit) -> Option<Rate> {
    match speed {
        ChannelLimit::Unlimited => None,
        ChannelLimit::Rate(rate) => Some(Rate::from(rate)),
        ChannelLimit::Passes(_) => Some(BLOCK_TIME),
    }
}

/// Bytes of a [`Work`], rounded up.
pub(crate) fn whole_bytes(work: Work) -> Bytes {
    Bytes(u64::try_from(work.0.div_ceil(WORK_PER_BYTE)).unwrap_or(u64::MAX))
}
