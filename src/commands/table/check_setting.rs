//! Conditions under which a table is checked.

use fabricast_libraries::Chooser;
use fabricast_sim::LaunchMode;
use fabricast_sim::profile::Profile;
use fabricast_topologies::route::Router;
use fabricast_topologies::{Fabric, NodeId};

/// Fabric, profile, launch mode and library that a table is checked against.
pub struct CheckSetting<'a> {
    pub fabric: &'a Fabric,
    pub router: &'a Router<'a>,
    pub placement: &'a [NodeId],
    pub profile: &'a Profile,
    pub mode: LaunchMode,
    pub chooser: &'a Chooser,
}

impl CheckSetting<'_> {
    /// Number of ranks of the checked communicator.
    pub fn ranks(&self) -> u32 {
        self.placement.len() as u32
    }
}
