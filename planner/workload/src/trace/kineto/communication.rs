//! Arguments of PyTorch's collectives (`record_param_comms`): collective, message size and group.
//!
//! The names are those that `ProcessGroupNCCL` passes to `RECORD_PARAM_COMMS` (pytorch,
//! `torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`), the element types those of `c10::ScalarType`. Counts are of
//! elements, `In msg nelems` of the input and `Out msg nelems` of the output of one rank. `Process Group Ranks` is
//! `"[0, 1, ..., 63]"` for more than 30 ranks; the group is then that of `distributedInfo` with its name, or is derived
//! from `Global rank start`, `Global rank stride` and `Group size`.

use std::sync::Arc;

use fabricast_sim::schedule::Collective;
use fabricast_topologies::Bytes;
use serde::Deserialize;

use super::super::json::Loose;
use super::super::ranks::MAX_RANKS;
use super::arguments::EventArguments;

/// Group of ranks in `distributedInfo`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ProcessGroup {
    #[serde(default, rename = "pg_name")]
    pub name: String,
    #[serde(default)]
    pub ranks: Vec<u32>,
}

/// Kind of a recorded call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Collective(Collective),
    Barrier,
    Send,
    Receive,
    /// Wait of the current stream for an earlier call.
    Wait,
    /// Call without a name, or without a collective (the begin of a coalesced group).
    #[default]
    Other,
}

/// Arguments of a recorded call, as far as the trace has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommunicationInfo {
    pub operation: Operation,
    /// Name of the group, which is the same on all ranks.
    pub group: String,
    pub group_size: Option<u32>,
    /// Ranks of the group; `None` if they are truncated or not in the arguments.
    ranks: Option<Vec<u32>>,
    first_rank: Option<u32>,
    stride: Option<u32>,
    /// Bytes of the larger of input and output of one rank.
    larger: Option<u64>,
    /// Bytes of the smaller of the two.
    smaller: Option<u64>,
    /// Rank that a message comes from or goes to.
    pub peer: Option<u32>,
    /// Number of the call in its group.
    pub sequence: Option<i64>,
}

impl CommunicationInfo {
    /// Reads the arguments of a call; `None` if they do not name a collective.
    pub fn new(arguments: &EventArguments<'_>) -> Option<Self> {
        let operation = operation(arguments.collective.text()?);
        let element = arguments.dtype.text().and_then(element_bytes);
        let size = |count: &Loose<'_>| {
            let count = u64::try_from(count.integer()?).ok()?;
            count.checked_mul(element?).filter(|bytes| *bytes < 1 << 56)
        };
        let (input, output) = (size(&arguments.input_elements), size(&arguments.output_elements));
        let rank = |value: &Loose<'_>| {
            value.integer().and_then(|rank| u32::try_from(rank).ok()).filter(|rank| *rank < MAX_RANKS)
        };
        let group = match (arguments.group_name.text(), arguments.group_id.integer()) {
            (Some(name), _) => name.to_owned(),
            (None, Some(id)) => id.to_string(),
            (None, None) => String::new(),
        };
        Some(Self {
            operation,
            group,
            group_size: rank(&arguments.group_size).filter(|size| *size > 0),
            ranks: ranks(&arguments.group_ranks),
            first_rank: rank(&arguments.rank_start),
            stride: rank(&arguments.rank_stride).filter(|stride| *stride > 0),
            larger: input.max(output),
            smaller: input.min(output),
            peer: match operation {
                Operation::Send => rank(&arguments.destination),
                _ => rank(&arguments.source),
            },
            sequence: arguments.sequence.integer(),
        })
    }

    /// Returns the ranks of the group in its order. `groups`: groups of `distributedInfo`.
    pub fn members(&self, groups: &[ProcessGroup]) -> Option<Arc<[u32]>> {
        if let Some(ranks) = &self.ranks {
            return Some(ranks.as_slice().into());
        }
        let size = self.group_size?;
        let listed = groups.iter().find(|group| group.name == self.group && group.ranks.len() == size as usize);
        if let Some(group) = listed.filter(|group| are_ranks(&group.ranks)) {
            return Some(group.ranks.as_slice().into());
        }
        let (first, stride) = (self.first_rank?, self.stride?);
        let last = u64::from(first) + u64::from(stride) * u64::from(size - 1);
        (last < u64::from(MAX_RANKS)).then(|| (0..size).map(|index| first + index * stride).collect())
    }

    /// Returns collective and message size: the larger buffer, as in nccl-tests. A barrier is the smallest all_reduce,
    /// which is what PyTorch calls. `members`: number of ranks of the group.
    pub fn collective(&self, members: usize) -> Option<(Collective, Bytes)> {
        let Operation::Collective(collective) = self.operation else {
            return (self.operation == Operation::Barrier).then_some((Collective::AllReduce, Bytes(4)));
        };
        let larger = self.larger?;
        // The root of a gather or scatter records both buffers, other ranks their part alone.
        let is_whole = self.smaller.is_some_and(|smaller| smaller > 0 && smaller < larger);
        let parts = match collective {
            Collective::Gather | Collective::Scatter if !is_whole => members as u64,
            _ => 1,
        };
        Some((collective, Bytes(larger.checked_mul(parts)?)))
    }

    /// Returns the size of a message.
    pub fn message_bytes(&self) -> Option<u64> {
        self.larger
    }
}

/// Operation by the name that `ProcessGroupNCCL` records.
fn operation(name: &str) -> Operation {
    let collective = match name {
        "allreduce" | "all_reduce" | "allreduce_coalesced" | "allreduce_sparse" => Collective::AllReduce,
        "broadcast" | "_broadcast_oop" => Collective::Broadcast,
        "reduce" | "_reduce_oop" => Collective::Reduce,
        "all_gather" | "allgather" | "_allgather_base" | "allgather_coalesced" | "allgather_into_tensor_coalesced" => {
            Collective::AllGather
        }
        "reduce_scatter" | "_reduce_scatter_base" | "reduce_scatter_tensor_coalesced" => Collective::ReduceScatter,
        "all_to_all" | "all_to_allv" | "alltoall" | "alltoall_base" => Collective::AllToAll,
        "gather" => Collective::Gather,
        "scatter" => Collective::Scatter,
        "barrier" => return Operation::Barrier,
        "send" => return Operation::Send,
        "recv" | "recvAnysource" => return Operation::Receive,
        "wait" => return Operation::Wait,
        _ => return Operation::Other,
    };
    Operation::Collective(collective)
}

/// Size of an element in bytes by the name of its `c10::ScalarType`.
fn element_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" => 1,
        _ if name.starts_with("Float8") => 1,
        "Short" | "UInt16" | "Half" | "BFloat16" => 2,
        "Int" | "UInt32" | "Float" | "QInt32" | "ComplexHalf" => 4,
        "Long" | "UInt64" | "Double" | "ComplexFloat" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

fn are_ranks(ranks: &[u32]) -> bool {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair.first() != pair.last()) && sorted.last().is_some_and(|rank| *rank < MAX_RANKS)
}

/// Reads `[0, 1]` or the text `"[0, 1]"`; `None` if the list is truncated or has anything but distinct ranks.
fn ranks(value: &Loose<'_>) -> Option<Vec<u32>> {
    let list: Option<Vec<u32>> = match value {
        Loose::List(list) => list.iter().map(|rank| u32::try_from(*rank).ok()).collect(),
        Loose::Text(text) => {
            let text = text.trim().strip_prefix('[')?.strip_suffix(']')?;
            text.split(',').map(|rank| rank.trim().parse().ok()).collect()
        }
        _ => None,
    };
    list.filter(|list| are_ranks(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(json: &str) -> CommunicationInfo {
        CommunicationInfo::new(&serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn sizes_are_those_of_the_larger_buffer() {
        let call = |name: &str, input: u64, output: u64| {
            let json = format!(
                r#"{{"Collective name": "{name}", "In msg nelems": {input}, "Out msg nelems": {output}, "dtype": "BFloat16"}}"#
            );
            info(&json).collective(4)
        };
        assert_eq!(call("allreduce", 8, 8), Some((Collective::AllReduce, Bytes(16))));
        assert_eq!(call("_allgather_base", 8, 32), Some((Collective::AllGather, Bytes(64))));
        assert_eq!(call("_reduce_scatter_base", 32, 8), Some((Collective::ReduceScatter, Bytes(64))));
        // The root of a gather has the whole, the other ranks their part.
        for (input, output) in [(8, 32), (8, 0), (8, 8)] {
            assert_eq!(call("gather", input, output), Some((Collective::Gather, Bytes(64))), "{input} {output}");
        }
        assert_eq!(call("barrier", 0, 0), Some((Collective::AllReduce, Bytes(4))));
        assert_eq!(call("coalesced", 8, 8), None);
        let no_type = info(r#"{"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8}"#);
        assert_eq!(no_type.collective(4), None);
    }

    #[test]
    fn groups_come_from_lists_names_or_strides() {
        let listed = info(r#"{"Collective name": "allreduce", "Process Group Ranks": "[3, 1]", "Group size": 2}"#);
        assert_eq!(listed.members(&[]).as_deref(), Some(&[3, 1][..]));
        let truncated = r#"{"Collective name": "allreduce", "Process Group Name": "7", "Group size": 4,
            "Process Group Ranks": "[0, 2, ..., 6]", "Global rank start": 0, "Global rank stride": "2"}"#;
        assert_eq!(info(truncated).members(&[]).as_deref(), Some(&[0, 2, 4, 6][..]));
        let named = ProcessGroup { name: "7".to_owned(), ranks: vec![0, 2, 5, 6] };
        assert_eq!(info(truncated).members(&[named]).as_deref(), Some(&[0, 2, 5, 6][..]));
        let unknown = info(r#"{"Collective name": "allreduce", "Process Group Ranks": "[0, 0]", "Group size": 2}"#);
        assert_eq!(unknown.members(&[]), None);
        let huge = r#"{"Collective name": "allreduce", "Group size": 131071, "Global rank start": 9, "Global rank stride": 131071}"#;
        assert_eq!(info(huge).members(&[]), None);
    }
}
