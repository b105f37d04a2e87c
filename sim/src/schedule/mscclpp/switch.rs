//! Operations through a switch channel: the NVSwitch reduces the contents of a buffer across all GPUs of a group, or
//! replicates stored data to all of them (`multimem.ld_reduce`, `multimem.st`).
//!
//! | plan | from | to |
//! |---|---|---|
//! | `glre` | the group's chunks, combined | own chunks |
//! | `gstore` | own chunks | the group's chunks |
//! | `glres` | the group's chunks, combined | the group's chunks |
//!
//! In the executor, `glres` holds the sum in registers. In a schedule, the sum passes through the rank's own chunks of
//! the destination, and the store writes the same values there again, which changes no result.
//!
//! Names and semantics: `Instruction` of python/mscclpp/language/internal/types.py and `handleMultiLoadReduceStore`,
//! `handleMultiStore` of src/include/execution_kernel.hpp of microsoft/mscclpp. Its executor supports `glres` and
//! `gstore` (src/core/executor/execution_plan.cc); its language also emits `glre`.

use super::lower::BlockLowering;
use super::order::Endpoints;
use super::parse::{BufferPieces, OpContext};
use super::text::ChunksText;
use crate::schedule::file_format::FormatError;
use crate::schedule::{ChunkRef, OpKind};

/// Chunks of a group, and those of one of its GPUs.
struct GroupChunks {
    team: u32,
    local: BufferPieces,
    location: ChunkRef,
}

impl<'p, 'a> BlockLowering<'_, 'p, 'a> {
    pub(super) fn lower_switch_operation(&mut self, context: OpContext<'p, 'a>) -> Result<(), FormatError> {
        let (&[src], &[dst]) = (&context.op.text.src_buff[..], &context.op.text.dst_buff[..]) else {
            let (sources, destinations) = (context.op.text.src_buff.len(), context.op.text.dst_buff.len());
            return Err(
                context.error(format!("has {sources} sources and {destinations} destinations; expected 1 and 1"))
            );
        };
        let loads = context.op.text.name != "gstore";
        let stores = context.op.text.name != "glre";
        let source = if loads { Some(self.grouped(context, src)?) } else { None };
        let target = if stores { Some(self.grouped(context, dst)?) } else { None };
        let local_source = match &source {
            Some(grouped) => (grouped.local, grouped.location),
            None => self.local_chunks(context, src)?,
        };
        let local_target = match &target {
            Some(grouped) => (grouped.local, grouped.location),
            None => self.local_chunks(context, dst)?,
        };
        let span = self.span(context, local_source.0, local_target.0)?;
        // The data stored to all GPUs is in the rank's own part of the destination.
        let stored = match &source {
            Some(grouped) => {
                let ends = Endpoints { src: grouped.location, dst: local_target.1 };
                self.lane.push_blocking(OpKind::MulticastReduce, grouped.team, ends, span);
                local_target.1
            }
            None => local_source.1,
        };
        if let Some(grouped) = target {
            self.lane.store_to_all(grouped.team, Endpoints { src: stored, dst: grouped.location }, span);
        }
        Ok(())
    }

    fn local_chunks(
        &self,
        context: OpContext<'p, 'a>,
        text: ChunksText,
    ) -> Result<(BufferPieces, ChunkRef), FormatError> {
        let chunks = context.chunk(text)?;
        Ok((chunks, self.local_chunk(context, chunks)?))
    }

    /// Returns the chunks of all GPUs of a group, which must be the same chunks of the collective.
    ///
    /// # Errors
    /// [`FormatError`] at the operation otherwise.
    fn grouped(&self, context: OpContext<'p, 'a>, text: ChunksText) -> Result<GroupChunks, FormatError> {
        let (team, chunks) = context.switch_chunks(text)?;
        let local = chunks.iter().copied().find(|chunks| chunks.rank == context.rank);
        let local = local.ok_or_else(|| context.error("uses a switch channel of other gpus"))?;
        let location = self.locate(context, local)?;
        for other in chunks {
            if self.locate(context, other)? != location {
                return Err(context.error(format!(
                    "joins {} chunks of gpu {} and gpu {} that are different ones of the collective",
                    local.buffer, local.rank, other.rank
                )));
            }
        }
        Ok(GroupChunks { team, local, location })
    }
}
