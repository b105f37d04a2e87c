//! Ranks and channels that share each device, over all concurrent schedules.

use fabricast_topologies::NodeId;

use super::ScheduleInstance;
use super::block_time::channel_rate_limit;
use crate::quantity::Rate;
use crate::schedule::Protocol;

/// Demand of the ranks of all concurrent schedules on each device.
#[derive(Debug)]
pub(super) struct DeviceDemand {
    /// Number of channels that run on SMs, by device.
    channels: Vec<u32>,
    /// Rate of the fastest of these channels; `None` if no protocol limits the rate of its channels.
    pub channel_rate: Option<Rate>,
    /// True if memories serve more than the links of their device: local copies, local reductions, or transfers between
    /// ranks on one device.
    pub has_local_work: bool,
}

impl DeviceDemand {
    /// Counts the channels of all schedule instances. `local_work`: true for each one that copies or reduces locally.
    pub fn new(parties: &[ScheduleInstance<'_>], mut local_work: impl Iterator<Item = bool>) -> Self {
        let nodes = parties.first().map_or(0, |party| party.setting.fabric.node_count());
        let mut crowd = Self {
            channels: vec![0; nodes],
            channel_rate: None,
            has_local_work: local_work.any(|has_local_work| has_local_work),
        };
        let mut is_used = vec![false; nodes];
        for ScheduleInstance { generator, setting, .. } in parties {
            let header = generator.header();
            let on_sms = header.protocol != Protocol::CopyEngine;
            let channel_rate =
                channel_rate_limit(setting.profile.protocol(header.protocol).channel_limit).filter(|_| on_sms);
            let blocks = header.channels.div_ceil(header.blocks.split.channels());
            crowd.channel_rate = crowd.channel_rate.max(channel_rate);
            for device in setting.placement.iter().take(header.call.ranks as usize) {
                if let Some(used) = is_used.get_mut(device.0 as usize) {
                    crowd.has_local_work |= std::mem::replace(used, true);
                }
                if let (Some(_), Some(channels)) = (channel_rate, crowd.channels.get_mut(device.0 as usize)) {
                    *channels = channels.saturating_add(blocks.into());
                }
            }
        }
        crowd
    }

    /// Returns the number of channels that run on a device's SMs.
    pub fn channels(&self, device: NodeId) -> u32 {
        self.channels.get(device.0 as usize).copied().unwrap_or(0)
    }
}
