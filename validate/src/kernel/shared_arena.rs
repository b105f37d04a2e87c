//! Arenas on which several kernels of a group of ranks run, one after another.
//!
//! A kernel on an arena of its own relies on the slots and flags of its last calls. On a shared arena the last calls
//! may be those of other kernels, so four things are the same for all of them:
//!
//! - **Number of the call.** A kernel stores it in the counters of all blocks, not only of its own.
//! - **Flush counters.** Those of a call are larger than those of all previous calls, because their distance is larger
//!   than the number of values that any call uses.
//! - **Slots.** Each message format has slots of its own, since data of one format could equal a flag of another. A
//!   flag in a slot of packets or lines is always at the same place, as slots begin at multiples of 512 bytes.
//! - **Entered ranks.** Two sets of slots suffice if every rank that leaves a call knows that all other ranks have
//!   entered it (the argument in `exchange.rs`, for any ranks and not only those to which a kernel sends).
//!   [`Kernel::wait_for_all_ranks`] adds the notifications that messages do not imply.

use super::shape::{MAX_BLOCKS, MAX_LINE_CHUNK, MAX_PACKET_CHUNK};
use super::{Arena, Carrier, Kernel, KernelError};

/// Distance from the flush counters of a call to those of the next call. Calls are numbered with 32 bits in packets and
/// lines, so 2³² values for each call fit into a 64-bit counter.
const TICKS_PER_CALL: u64 = 1 << 32;

/// Alignment in bytes of the slots of each message format: the slots of a warp.
const SLOT_ALIGNMENT: u64 = 512;

/// Capacity of the arenas that kernels of a group of ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedArena {
    /// Number of ranks.
    pub ranks: u32,
    /// Maximum number of blocks of a kernel.
    pub blocks: u32,
    /// Maximum bytes of the packets that a rank receives in a call, with their flags.
    pub packet_bytes: u64,
    /// Maximum bytes of the lines that a rank receives in a call, with their flags.
    pub line_bytes: u64,
    /// Maximum bytes that a rank receives in a call as plain vectors, except those written directly to its output.
    pub vector_bytes: u64,
}

impl SharedArena {
    /// Capacity for calls of up to `max_bytes` by kernels whose message format is selected by
    /// [`Carrier::for_schedule`].
    ///
    /// A rank receives at most two chunks per rank in packets and lines (ring all_reduce), and at most the bytes of the
    /// call in vectors. Each of a rank's messages on a channel is rounded up to the words of a warp.
    #[must_use]
    pub fn for_calls(ranks: u32, max_bytes: u64) -> Self {
        let blocks = 2 * MAX_BLOCKS;
        let messages = 2 * u64::from(ranks.max(1));
        let rounding = u64::from(blocks) * messages * SLOT_ALIGNMENT;
        Self {
            ranks,
            blocks,
            // 8 of 16 bytes of a packet, and 120 of 128 bytes of a line are data.
            packet_bytes: messages * MAX_PACKET_CHUNK * 2 + rounding,
            line_bytes: (messages * MAX_LINE_CHUNK).div_ceil(120) * 128 + rounding,
            vector_bytes: max_bytes + rounding,
        }
    }

    /// Maximum bytes of messages of a format that a rank receives in a call.
    fn capacity(&self, carrier: Carrier) -> u64 {
        let bytes = match carrier {
            Carrier::Packets => self.packet_bytes,
            Carrier::Lines => self.line_bytes,
            Carrier::Flags => self.vector_bytes,
        };
        bytes.next_multiple_of(SLOT_ALIGNMENT)
    }

    /// Offsets of the ready flags, the flush counters and the first slots.
    fn offsets(&self) -> [u64; 3] {
        let (blocks, ranks) = (u64::from(self.blocks), u64::from(self.ranks));
        let ready = (blocks * 8).next_multiple_of(SLOT_ALIGNMENT);
        let ticks = ready + (ranks * 8).next_multiple_of(SLOT_ALIGNMENT);
        [ready, ticks, ticks + (blocks * ranks * 8).next_multiple_of(SLOT_ALIGNMENT)]
    }

    /// Size of a rank's arena in bytes. The arena must begin at a multiple of 512 bytes and be zeroed before the first
    /// call.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.offsets()[2] + Carrier::ALL.into_iter().map(|carrier| 2 * self.capacity(carrier)).sum::<u64>()
    }

    /// Layout for a kernel with these messages, blocks and flush counter values.
    ///
    /// # Errors
    /// [`KernelError::TooLarge`]: the arena has too little space.
    pub(super) fn layout(
        &self,
        carrier: Carrier,
        blocks: u32,
        message_bytes: u64,
        ticks: u64,
    ) -> Result<Arena, KernelError> {
        let check = |item: &'static str, count: u64, max: u64| {
            if count <= max { Ok(()) } else { Err(KernelError::TooLarge { item, count, max }) }
        };
        check("blocks", blocks.into(), self.blocks.into())?;
        check("bytes of messages to a rank", message_bytes, self.capacity(carrier))?;
        check("flushes", ticks, TICKS_PER_CALL - 1)?;
        let [ready, ticks, first] = self.offsets();
        let before = Carrier::ALL.into_iter().take_while(|&other| other != carrier);
        let slots = first + before.map(|other| 2 * self.capacity(other)).sum::<u64>();
        Ok(Arena {
            ready,
            ticks,
            slots,
            slot_bytes: self.capacity(carrier),
            counters: self.blocks.into(),
            ticks_per_call: TICKS_PER_CALL,
            bytes: self.bytes(),
        })
    }
}

impl Kernel {
    /// Makes every rank wait, before it leaves a call, until all other ranks have entered it, as kernels on a
    /// [`SharedArena`] require. Ranks whose entry is implied by messages are not waited for.
    pub fn wait_for_all_ranks(&mut self) {
        let ranks = self.ranks() as usize;
        let all = u64::MAX >> (64 - ranks.clamp(1, 64));
        for rank in 0..ranks {
            let implied = self.known_entered[rank] | self.wait_before_start[rank] | 1 << rank;
            self.wait_before_exit[rank] |= all & !implied;
        }
        self.notify_waiting_ranks();
    }
}
