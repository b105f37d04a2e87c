//! Operations through a switch channel: the NVSwitch reduces the contents of a buffer across all GPUs of a group, or
//! replicates stored data to all of them (`multimem.ld_reduce`, `multimem.st`).
//!
//! | plan | from | to |
//! |---|---|---|
//! | `glre` | the group's chunks, combined | own chunks |
//! | `gstore` | own chunks | the group's chunks |
//! | `glres` | the group's chunks, combined | the group's chunks |
//!
//! `glres` holds the sum in registers. In a schedule the sum passes through the rank's own chunks of the destination.
//! The store then writes the same values there again, which is not observable.
//!
//! Names and semantics: `Instruction` of python/mscclpp/language/internal/types.py and `handleMultiLoadReduceStore`,
//! `handleMultiStore` of src/include/execution_kernel.hpp of microsoft/mscclpp. Its executor supports `glres` and
//! `gstore` (src/core/executor/execution_plan.cc); its language also emits `glre`.

use super::lower::Taker;
use super::parse::{At, Chunks};
use super::text::ChunksText;
use crate::schedule::format::FormatError;
use crate::schedule::{ChunkRef, OpKind};

/// Chunks of a group, as held by one of its GPUs.
struct Grouped {
    team: u32,
    own: Chunks,
    place: ChunkRef,
}

impl<'p, 'a> Taker<'_, 'p, 'a> {
    pub(super) fn through_switch(&mut self, at: At<'p, 'a>) -> Result<(), FormatError> {
        let (&[src], &[dst]) = (&at.op.text.src_buff[..], &at.op.text.dst_buff[..]) else {
            let (sources, destinations) = (at.op.text.src_buff.len(), at.op.text.dst_buff.len());
            return Err(at.error(format!("has {sources} sources and {destinations} destinations; expected 1 and 1")));
        };
        let loads = at.op.text.name != "gstore";
        let stores = at.op.text.name != "glre";
        let source = if loads { Some(self.grouped(at, src)?) } else { None };
        let target = if stores { Some(self.grouped(at, dst)?) } else { None };
        let own_source = match &source {
            Some(grouped) => (grouped.own, grouped.place),
            None => self.own_chunks(at, src)?,
        };
        let own_target = match &target {
            Some(grouped) => (grouped.own, grouped.place),
            None => self.own_chunks(at, dst)?,
        };
        let span = self.span(at, own_source.0, own_target.0)?;
        // The data stored to all is in the own part of the destination.
        let stored = match &source {
            Some(grouped) => {
                let ends = (grouped.place, own_target.1);
                self.lane.hold(OpKind::MulticastReduce, grouped.team, ends, span);
                own_target.1
            }
            None => own_source.1,
        };
        if let Some(grouped) = target {
            self.lane.store_to_all(grouped.team, (stored, grouped.place), span);
        }
        Ok(())
    }

    fn own_chunks(&self, at: At<'p, 'a>, text: ChunksText) -> Result<(Chunks, ChunkRef), FormatError> {
        let chunks = at.chunk(text)?;
        Ok((chunks, self.own(at, chunks)?))
    }

    /// The chunks of all GPUs of a group, which must be the same chunks of the collective.
    fn grouped(&self, at: At<'p, 'a>, text: ChunksText) -> Result<Grouped, FormatError> {
        let (team, each) = at.switched(text)?;
        let own = each.iter().copied().find(|chunks| chunks.rank == at.rank);
        let own = own.ok_or_else(|| at.error("uses a switch channel of other gpus"))?;
        let place = self.place(at, own)?;
        for other in each {
            if self.place(at, other)? != place {
                return Err(at.error(format!(
                    "joins {} chunks of gpu {} and gpu {} that are different ones of the collective",
                    own.buffer, own.rank, other.rank
                )));
            }
        }
        Ok(Grouped { team, own, place })
    }
}
