//! Collectives between `ncclGroupStart` and `ncclGroupEnd`, which NCCL runs as one kernel.
//!
//! The calls of a group divide the channels. NCCL chooses the algorithm and protocol of all calls of one function
//! jointly, if the largest has less than four times the traffic of the smallest. It then places the calls, smallest
//! first, on consecutive channels, each of which takes an equal share of the traffic of all calls. Calls on different
//! channels run concurrently; a channel with several calls runs them in sequence.
//!
//! Source: NCCL 2.30.7 `src/enqueue.cc` (`ncclPrepareTasks`: sums of calls within a factor of four;
//! `scheduleCollTasksToPlan`: channels). Not modelled: groups that exceed the memory for work of one kernel, which NCCL
//! divides among several, sends and receives, and releases before 2.21, which divide channels by other rules.

use fabricast_topologies::Bytes;

use super::index::Function;
use super::version::{ChannelSplit, NcclVersion};

/// Ratio of traffic from which calls are chosen separately.
const JOINT_RATIO: u64 = 4;
/// Granularity of parts, in bytes.
const GRAIN: u64 = 16;

/// Call of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupCall {
    /// NCCL function of the call.
    pub function: Function,
    /// Message size as in nccl-tests: the larger buffer of a rank.
    pub bytes: Bytes,
}

/// Consecutive channels of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelRange {
    /// First channel.
    pub first: u16,
    /// Number of channels; 0 for a call without data.
    pub count: u16,
}

impl ChannelRange {
    /// Range of a call without data.
    pub const EMPTY: Self = Self { first: 0, count: 0 };

    /// Returns true if the call uses a channel.
    #[must_use]
    pub fn contains(self, channel: u16) -> bool {
        (self.first..self.first + self.count).contains(&channel)
    }

    /// Returns true if both calls use a common channel.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first.max(other.first) < (self.first + self.count).min(other.first + other.count)
    }
}

/// Consecutive channels with equal parts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelPart {
    /// The channels.
    pub channels: ChannelRange,
    /// Bytes of the call that all of these channels carry.
    pub bytes: Bytes,
}

/// Channels of a call of a group. The first and the last channel may carry less than the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// All channels.
    pub channels: ChannelRange,
    /// Parts of the call, by channel; none for a call without data.
    pub parts: Vec<ChannelPart>,
}

impl Placement {
    /// Placement of a call without data.
    #[must_use]
    pub fn empty() -> Self {
        Self { channels: ChannelRange::EMPTY, parts: Vec::new() }
    }
}

/// Kind of a kernel's channels, which are divided separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelKind {
    /// Rings and trees.
    Usual,
    /// NVLS.
    Nvls,
}

/// Call with the choices that determine its channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallChoice {
    /// The call.
    pub call: GroupCall,
    /// Kind of its channels.
    pub kind: ChannelKind,
    /// Traffic in bytes per byte of a rank's part, four times as much with LL.
    pub traffic_per_byte: u64,
    /// Number of channels that the thresholds allow for the calls that were chosen jointly.
    pub max_channels: u16,
}

/// Minimum traffic of a channel with work, in bytes (`MinTrafficPerChannel`); `None` for versions that divide channels by
/// other rules.
pub(crate) fn min_channel_traffic(version: NcclVersion) -> Option<Bytes> {
    match version.rules().channel_split {
        ChannelSplit::Traffic(minimum) => Some(minimum),
        ChannelSplit::Evenly | ChannelSplit::Cells => None,
    }
}

/// Bytes of a rank's part of a call, as NCCL counts them, and the channel traffic in bytes per byte.
fn rank_traffic(call: GroupCall, ranks: u32) -> (u64, u64) {
    let blocks = blocks(call.function, ranks);
    let per_byte = if call.function == Function::AllReduce { 2 } else { blocks };
    (call.bytes.0.div_ceil(blocks), per_byte)
}

/// Number of ranks' parts of which the larger buffer of a call consists.
fn blocks(function: Function, ranks: u32) -> u64 {
    match function {
        Function::AllGather | Function::ReduceScatter => u64::from(ranks.max(1)),
        Function::AllReduce | Function::Broadcast | Function::Reduce => 1,
    }
}

/// Traffic of a call over all its channels, in bytes, without the factor of LL.
fn traffic(call: GroupCall, ranks: u32) -> u64 {
    let (bytes, per_byte) = rank_traffic(call, ranks);
    bytes.saturating_mul(per_byte)
}

/// Calls whose algorithm and protocol NCCL chooses jointly: indices of the calls, in the order in which they are placed.
/// All have the same function.
#[must_use]
pub fn joint_choices(calls: &[GroupCall], ranks: u32) -> Vec<Vec<usize>> {
    let mut by_size: Vec<usize> = (0..calls.len()).collect();
    by_size.sort_by_key(|&number| std::cmp::Reverse(traffic(calls[number], ranks)));
    // Functions in the order of their largest calls, and the calls of each with the smallest first.
    let mut functions: Vec<Function> = Vec::new();
    for &number in &by_size {
        if !functions.contains(&calls[number].function) {
            functions.push(calls[number].function);
        }
    }
    let mut choices: Vec<Vec<usize>> = Vec::new();
    for function in functions {
        let mut smallest = None;
        for &number in by_size.iter().rev().filter(|&&number| calls[number].function == function) {
            let size = traffic(calls[number], ranks);
            match (smallest, choices.last_mut()) {
                (Some(smallest), Some(joint)) if size < JOINT_RATIO * smallest => joint.push(number),
                _ => {
                    choices.push(vec![number]);
                    smallest = Some(size);
                }
            }
        }
    }
    choices
}

/// Returns the channels of each call, in the order of `calls`, which is the order of placement. `min_traffic`: minimum
/// traffic of a channel with work. `available`: number of channels of each kind.
#[must_use]
pub fn place(
    calls: &[CallChoice],
    ranks: u32,
    min_traffic: Bytes,
    available: impl Fn(ChannelKind) -> u16,
) -> Vec<Placement> {
    let mut placements = Vec::with_capacity(calls.len());
    let mut current: Option<ChannelCursor> = None;
    for choice in calls {
        let cursor = match current {
            Some(cursor) if cursor.kind == choice.kind => cursor,
            _ => ChannelCursor::new(calls, choice.kind, ranks, min_traffic.0.max(1), available(choice.kind)),
        };
        let (placement, next) = cursor.place(choice, ranks);
        placements.push(placement);
        current = Some(next);
    }
    placements
}

/// Position in the channels of one kind, of which those before have their share of the traffic.
#[derive(Clone, Copy, Debug)]
struct ChannelCursor {
    kind: ChannelKind,
    /// Minimum traffic of a channel with work, in bytes.
    min_traffic: u64,
    /// Number of channels.
    max: u64,
    /// Share of the traffic of a channel.
    per_channel: u64,
    /// Channel of the next call.
    channel: u64,
    /// Traffic of this channel, in bytes.
    traffic: u64,
}

impl ChannelCursor {
    fn new(calls: &[CallChoice], kind: ChannelKind, ranks: u32, min_traffic: u64, available: u16) -> Self {
        let max = u64::from(available.max(1));
        let of_kind = || calls.iter().filter(move |choice| choice.kind == kind);
        let channels = of_kind().map(|choice| u64::from(choice.max_channels)).sum::<u64>().clamp(1, max);
        let share = |choice: &CallChoice| {
            let (bytes, _) = rank_traffic(choice.call, ranks);
            bytes.saturating_mul(choice.traffic_per_byte).max(min_traffic)
        };
        let traffic = of_kind().map(share).fold(0, u64::saturating_add);
        Self {
            kind,
            min_traffic,
            max,
            per_channel: (traffic / channels).div_ceil(GRAIN) * GRAIN,
            channel: 0,
            traffic: 0,
        }
    }

    /// Places a call, and returns its channels and the state after it.
    fn place(mut self, choice: &CallChoice, ranks: u32) -> (Placement, Self) {
        let (bytes, _) = rank_traffic(choice.call, ranks);
        let per_byte = choice.traffic_per_byte.max(1);
        let cell = self.min_traffic.div_ceil(per_byte).div_ceil(GRAIN) * GRAIN;
        let cell_traffic = cell * per_byte;
        let cells = bytes.div_ceil(cell).max(1);
        let each = cells.min(self.per_channel.div_ceil(cell_traffic)).max(1);
        let is_last = self.channel + 1 == self.max;
        let room = self.per_channel.saturating_sub(self.traffic);
        let mut low = if is_last { cells } else { cells.min(room.div_ceil(cell_traffic)) };
        let (mut middle, mut high) = ((cells - low) / each, (cells - low) % each);
        let mut middle_cells = each;
        if self.max < self.channel + u64::from(low > 0) + middle + u64::from(high > 0) {
            // The remaining channels share the remaining cells.
            middle = (self.max - self.channel).saturating_sub(2);
            middle_cells = (cells - low) / (middle + 1);
            high = middle_cells + (cells - low) % (middle + 1);
        }
        if high == 0 && middle > 0 {
            (high, middle) = (middle_cells, middle - 1);
        }
        if low == 0 {
            self.channel += 1;
            (low, middle, high) = if middle == 0 { (high, 0, 0) } else { (middle_cells, middle - 1, high) };
            self.traffic = 0;
        }
        let count = u64::from(low > 0) + middle + u64::from(high > 0);
        let first = self.channel;
        let of_cells = [(u64::from(low > 0), low), (middle, middle_cells), (u64::from(high > 0), high)];
        let parts =
            parts(choice.call, ranks, first as u16, of_cells.map(|(count, cells)| (count as u16, cells * cell)));
        if high > 0 {
            self.channel += count - 1;
            self.traffic = high * cell_traffic;
        } else if middle > 0 {
            self.channel += count;
            self.traffic = 0;
        } else {
            self.traffic += low * cell_traffic;
        }
        if self.traffic >= self.per_channel && self.channel + 1 != self.max {
            self.channel += 1;
            self.traffic = 0;
        }
        (Placement { channels: ChannelRange { first: first as u16, count: count as u16 }, parts }, self)
    }
}

/// Returns the parts of a call from its first channel on. `shares`: number of channels, and bytes of a rank's part on each of
/// them. Channels with equal shares form one part; the last part has what remains.
fn parts(call: GroupCall, ranks: u32, first: u16, shares: [(u16, u64); 3]) -> Vec<ChannelPart> {
    let mut merged: Vec<(u16, u64)> = Vec::new();
    for (count, share) in shares.into_iter().filter(|&(count, _)| count > 0) {
        match merged.last_mut() {
            Some(last) if last.1 == share => last.0 += count,
            _ => merged.push((count, share)),
        }
    }
    let blocks = blocks(call.function, ranks);
    let (mut channel, mut rest) = (first, call.bytes.0);
    let last = merged.len().saturating_sub(1);
    let part = |(number, (count, share)): (usize, (u16, u64))| {
        let bytes = if number == last { rest } else { rest.min(u64::from(count) * share * blocks) };
        let part = ChannelPart { channels: ChannelRange { first: channel, count }, bytes: Bytes(bytes) };
        (channel, rest) = (channel + count, rest - bytes);
        part
    };
    merged.into_iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce(bytes: u64) -> GroupCall {
        GroupCall { function: Function::AllReduce, bytes: Bytes(bytes) }
    }

    /// Simple all_reduces of these sizes, on up to `max_channels` channels each.
    fn choices(sizes: &[u64], max_channels: u16) -> Vec<CallChoice> {
        let call = |&bytes: &u64| CallChoice {
            call: all_reduce(bytes),
            kind: ChannelKind::Usual,
            traffic_per_byte: 2,
            max_channels,
        };
        sizes.iter().map(call).collect()
    }

    fn ranges(sizes: &[u64], max_channels: u16, available: u16) -> Vec<(u16, u16)> {
        let ranges = place(&choices(sizes, max_channels), 8, Bytes(32 << 10), |_| available);
        ranges.into_iter().map(|placement| (placement.channels.first, placement.channels.count)).collect()
    }

    /// Two calls leave the rest of a channel to each other: the shared one has as much traffic as the others.
    #[test]
    fn parts_of_calls_fill_shared_channels() {
        let placements = place(&choices(&[32 << 20, 64 << 20], 24), 8, Bytes(32 << 10), |_| 20);
        let mut traffic = vec![0; 20];
        for (placement, bytes) in placements.iter().zip([32u64 << 20, 64 << 20]) {
            assert_eq!(placement.parts.iter().map(|part| part.bytes.0).sum::<u64>(), bytes);
            for ChannelPart { channels: ChannelRange { first, count }, bytes } in &placement.parts {
                for channel in *first..first + count {
                    traffic[usize::from(channel)] += bytes.0 / u64::from(*count);
                }
            }
        }
        assert!(placements[0].channels.overlaps(placements[1].channels));
        // Shares are multiples of 16 KiB, and the last channel has the rest.
        let share = ((96u64 << 20) / 20).div_ceil(16 << 10) * (16 << 10);
        let expected: Vec<u64> =
            (0..20).map(|channel| if channel < 19 { share } else { (96 << 20) - 19 * share }).collect();
        assert_eq!(traffic, expected);
    }

    #[test]
    fn equal_calls_divide_the_channels() {
        assert_eq!(ranges(&[48 << 20], 24, 24), [(0, 24)]);
        assert_eq!(ranges(&[48 << 20; 2], 24, 24), [(0, 12), (12, 12)]);
        assert_eq!(ranges(&[48 << 20; 4], 24, 24), [(0, 6), (6, 6), (12, 6), (18, 6)]);
        // Small calls need one channel each. More calls than channels share the channels evenly.
        assert_eq!(ranges(&[1 << 10; 3], 1, 24), [(0, 1), (1, 1), (2, 1)]);
        let many = ranges(&[1 << 10; 48], 1, 24);
        assert!((0..24).all(|channel| many.iter().filter(|range| **range == (channel, 1)).count() == 2), "{many:?}");
    }

    #[test]
    fn calls_without_data_overlap_no_other_call() {
        let range = |first, count| ChannelRange { first, count };
        assert!(range(2, 3).overlaps(range(4, 1)) && !range(2, 3).overlaps(range(5, 1)));
        for other in [range(0, 4), range(2, 1), ChannelRange::EMPTY] {
            assert!(!range(1, 0).overlaps(other) && !other.overlaps(range(1, 0)), "{other:?}");
        }
    }

    #[test]
    fn calls_within_a_factor_of_four_are_chosen_jointly() {
        let gather = GroupCall { function: Function::AllGather, bytes: Bytes(1 << 20) };
        let calls = [all_reduce(4096), all_reduce(1024), gather, all_reduce(4095), all_reduce(64 << 20)];
        assert_eq!(joint_choices(&calls, 8), [vec![1, 3], vec![0], vec![4], vec![2]]);
        assert_eq!(joint_choices(&[], 8), Vec::<Vec<usize>>::new());
    }
}
