//! NCCL's choices for the calls of a group, which run in one kernel ([`nccl::place`](crate::nccl::place)).

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::schedule::{Call, DataType, ReduceOp};
use fabricast_topologies::Bytes;

use crate::nccl::{
    AlgoProto, ChannelKind, ChannelRange, ChosenCall, Function, GroupedCall, Proto, Request, joint_choices, kernel,
    kernel_with_max_channels, min_channel_traffic, pick_in_group, place,
};
use crate::{BufferRegistration, Chooser, Unknown};

/// Strategy of a call of a group, and its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupChoice {
    /// Index of the call.
    pub call: usize,
    /// Strategy of the call, with the number of its channels.
    pub strategy: Strategy,
    /// Channels of the call. Calls with common channels run in sequence.
    pub channels: ChannelRange,
}

impl Chooser {
    /// Predicts NCCL's strategies and channels of calls between `ncclGroupStart` and `ncclGroupEnd`, in the order in which
    /// a channel runs them. All calls are of the same communicator.
    ///
    /// # Errors
    /// Returns [`Unknown`] with the reason if a choice cannot be predicted: of sends and receives, of symmetric windows,
    /// and of other libraries than NCCL.
    pub fn choose_group(&self, calls: &[Call]) -> Result<Vec<GroupChoice>, Unknown> {
        let library = self.library();
        let unknown = |call: &Call| Unknown::GroupNotModelled { library, collective: call.collective };
        let Some(first) = calls.first() else { return Ok(Vec::new()) };
        if first.ranks <= 1 {
            return Err(Unknown::SingleRank { library });
        }
        let (Some(communicator), Some(table), Some(version)) = (self.communicator(), self.table(), self.nccl_version())
        else {
            return Err(self.choose(first).err().unwrap_or_else(|| unknown(first)));
        };
        let Some(min_traffic) =
            min_channel_traffic(version).filter(|_| self.conditions().registered != BufferRegistration::Symmetric)
        else {
            return Err(unknown(first));
        };
        let grouped = |call: &Call| {
            let function = Function::from_collective(call.collective).ok_or_else(|| unknown(call))?;
            Ok(GroupedCall { function, bytes: call.bytes })
        };
        let grouped: Vec<GroupedCall> = calls.iter().map(grouped).collect::<Result<_, Unknown>>()?;
        let (ranks, settings) = (communicator.ranks, self.settings());
        let (dtype, op): (DataType, ReduceOp) = (self.conditions().dtype, self.conditions().op);
        let available = communicator.channels(settings);
        let per_channel = (calls.len() as u32).div_ceil(u32::from(available.max(1)));
        let mut chosen: Vec<(usize, ChosenCall, AlgoProto, u16)> = Vec::with_capacity(calls.len());
        for joint in joint_choices(&grouped, ranks) {
            let Some(&one) = joint.first() else { continue };
            let function = grouped[one].function;
            let bytes = joint.iter().fold(0u64, |sum, &number| sum.saturating_add(grouped[number].bytes.0));
            let request = Request { function, bytes: Bytes(bytes), dtype, op };
            let pick = pick_in_group(communicator, available, version, table, &request, per_channel);
            let pick = pick.ok_or(Unknown::NothingAllowed { library })?;
            let algo_and_proto = AlgoProto { algo: pick.algo, proto: pick.proto };
            let shape = kernel(communicator, version, settings, table, &request, algo_and_proto);
            let kind = if pick.algo.is_nvls() { ChannelKind::Nvls } else { ChannelKind::Usual };
            for number in joint {
                let call = grouped[number];
                let traffic = match function {
                    Function::AllReduce => 2,
                    Function::AllGather | Function::ReduceScatter => u64::from(ranks),
                    Function::Broadcast | Function::Reduce => 1,
                };
                let traffic_per_byte = if pick.proto == Proto::Ll { 4 * traffic } else { traffic };
                let of_kind = ChosenCall { call, kind, traffic_per_byte, max_channels: shape.max_channels };
                chosen.push((number, of_kind, algo_and_proto, shape.threads));
            }
        }
        chosen.sort_by_key(|&(_, of_kind, ..)| of_kind.kind);
        let order: Vec<ChosenCall> = chosen.iter().map(|&(_, of_kind, ..)| of_kind).collect();
        let channels_of = |kind| match kind {
            ChannelKind::Usual => available,
            ChannelKind::Nvls => communicator.nvls_shape(version, settings).channels,
        };
        let placed = place(&order, ranks, min_traffic, channels_of);
        let strategy = |((number, of_kind, algo_and_proto, threads), channels): (_, ChannelRange)| {
            let ChosenCall { call: GroupedCall { function, bytes }, .. } = of_kind;
            let request = Request { function, bytes, dtype, op };
            let count = Some(channels.count);
            let shape =
                kernel_with_max_channels(communicator, version, settings, table, &request, algo_and_proto, count);
            let AlgoProto { algo, proto } = algo_and_proto;
            let algorithm =
                algo.to_algorithm().ok_or_else(|| Unknown::NoSchedule { library, name: format!("{algo} {proto}") })?;
            let strategy = Strategy {
                threads: Some(threads),
                chunk: Some(shape.chunk),
                ..Strategy::new(algorithm, proto.to_protocol(), channels.count)
            };
            Ok(GroupChoice { call: number, strategy, channels })
        };
        chosen.into_iter().zip(placed).map(strategy).collect()
    }
}
