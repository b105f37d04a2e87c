//! NCCL's choices for the calls of a group, which run in one kernel ([`nccl::place`](crate::nccl::place)).

use fabricast_collectives::strategy::Strategy;
use fabricast_sim::schedule::{Call, DataType, ReduceOp};
use fabricast_topologies::Bytes;

use crate::nccl::{
    AlgoProto, CallChoice, ChannelKind, Function, GroupCall, Placement, Proto, Request, joint_choices, kernel,
    kernel_with_max_channels, min_channel_traffic, pick_group_call, place,
};
use crate::{BufferRegistration, Chooser, Unknown};

/// Strategy of a call of a group, and its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupChoice {
    /// Index of the call.
    pub call: usize,
    /// Strategy of the call, with the number of its channels.
    pub strategy: Strategy,
    /// Channels of the call. A channel runs the calls that use it in sequence.
    pub placement: Placement,
}

/// Call of a group whose algorithm and protocol are chosen, without its channels.
#[derive(Clone, Copy)]
struct JointChoice {
    /// Index of the call.
    call: usize,
    /// Properties that determine the channels.
    choice: CallChoice,
    cell: AlgoProto,
    threads: u16,
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
        let group_call = |call: &Call| {
            let function = Function::from_collective(call.collective).ok_or_else(|| unknown(call))?;
            Ok(GroupCall { function, bytes: call.bytes })
        };
        let group_calls: Vec<GroupCall> = calls.iter().map(group_call).collect::<Result<_, Unknown>>()?;
        let (empty, with_data): (Vec<usize>, Vec<usize>) =
            (0..calls.len()).partition(|&number| group_calls[number].bytes.0 == 0);
        let with_data_calls: Vec<GroupCall> = with_data.iter().map(|&number| group_calls[number]).collect();
        let (ranks, settings) = (communicator.ranks, self.settings());
        let (dtype, op): (DataType, ReduceOp) = (self.conditions().dtype, self.conditions().op);
        let available = communicator.channels(settings);
        let per_channel = (with_data.len() as u32).div_ceil(u32::from(available.max(1)));
        let mut choices: Vec<JointChoice> = Vec::with_capacity(with_data.len());
        for joint in joint_choices(&with_data_calls, ranks) {
            let Some(&one) = joint.first() else { continue };
            let function = with_data_calls[one].function;
            let bytes = joint.iter().fold(0u64, |sum, &number| sum.saturating_add(with_data_calls[number].bytes.0));
            let request = Request { function, bytes: Bytes(bytes), dtype, op };
            let pick = pick_group_call(communicator, available, version, table, &request, per_channel);
            let pick = pick.ok_or(Unknown::NothingAllowed { library })?;
            let cell = AlgoProto { algo: pick.algo, proto: pick.proto };
            let shape = kernel(communicator, version, settings, table, &request, cell);
            let kind = if pick.algo.is_nvls() { ChannelKind::Nvls } else { ChannelKind::Usual };
            for number in joint {
                let call = with_data_calls[number];
                let traffic = match function {
                    Function::AllReduce => 2,
                    Function::AllGather | Function::ReduceScatter => u64::from(ranks),
                    Function::Broadcast | Function::Reduce => 1,
                };
                let traffic_per_byte = if pick.proto == Proto::Ll { 4 * traffic } else { traffic };
                let choice = CallChoice { call, kind, traffic_per_byte, max_channels: shape.max_channels };
                choices.push(JointChoice { call: with_data[number], choice, cell, threads: shape.threads });
            }
        }
        choices.sort_by_key(|joint| joint.choice.kind);
        let order: Vec<CallChoice> = choices.iter().map(|joint| joint.choice).collect();
        let channels_of = |kind| match kind {
            ChannelKind::Usual => available,
            ChannelKind::Nvls => communicator.nvls_shape(version, settings).channels,
        };
        let placements = place(&order, ranks, min_traffic, channels_of);
        let with_channels = |(joint, placement): (JointChoice, Placement)| {
            let JointChoice { call, choice, cell, threads } = joint;
            let GroupCall { function, bytes } = choice.call;
            let request = Request { function, bytes, dtype, op };
            let count = placement.channels.count;
            let shape = kernel_with_max_channels(communicator, version, settings, table, &request, cell, Some(count));
            let AlgoProto { algo, proto } = cell;
            let algorithm =
                algo.to_algorithm().ok_or_else(|| Unknown::NoSchedule { library, name: format!("{algo} {proto}") })?;
            let strategy = Strategy {
                threads: Some(threads),
                chunk: Some(shape.chunk),
                ..Strategy::new(algorithm, proto.to_protocol(), count)
            };
            Ok(GroupChoice { call, strategy, placement })
        };
        // NCCL discards calls without data (src/enqueue.cc, `collTaskAppend`).
        let discarded = empty.into_iter().map(|call| {
            let strategy = self.choose(&calls[call])?.strategy;
            Ok(GroupChoice { call, strategy, placement: Placement::empty() })
        });
        choices.into_iter().zip(placements).map(with_channels).chain(discarded).collect()
    }
}
