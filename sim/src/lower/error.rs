//! Errors of lowering.

use fabricast_topologies::NodeId;

use crate::schedule::{Rank, ScheduleError, TeamId};

/// Reasons why a schedule cannot run on a fabric.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LowerError {
    /// The schedule has more ranks than the fabric has devices for.
    #[error("the schedule has {ranks} ranks and the fabric has {devices} GPUs in use")]
    TooFewDevices {
        /// Number of ranks of the schedule.
        ranks: u32,
        /// Number of devices available to the schedule.
        devices: usize,
    },
    /// No route joins two ranks that exchange data.
    #[error(transparent)]
    Unreachable(#[from] fabricast_topologies::Error),
    /// A multicast operation names a team that does not exist.
    #[error("there is no team {}", .team.0)]
    NoSuchTeam {
        /// Number of the team that is missing.
        team: TeamId,
    },
    /// No multicasting switch joins the devices of a multicast operation.
    #[error("no multicast: the path between two devices of a team passes a device that does not multicast or reduce")]
    NoMulticast {
        /// Device at which the route begins.
        from: NodeId,
        /// Device at which the route ends.
        to: NodeId,
        /// Device on the route that does not multicast.
        at: NodeId,
    },
    /// The schedule has too many runs to lower.
    #[error(transparent)]
    TooLarge(ScheduleError),
    /// A dependency refers to a run that does not exist.
    #[error("run {run} of rank {} waits for a run that does not exist", .rank.0)]
    NoSuchRun {
        /// Rank whose run has the dependency.
        rank: Rank,
        /// Index of the missing run within its rank's program.
        run: u32,
    },
}
