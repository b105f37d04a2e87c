//! Lowering of concurrent schedules by their first groups of thread blocks, if all groups are equal.

use fabricast_topologies::route::{BufferLocation, Ecmp};

use super::channels::{RepresentativeGroup, multiply_shared_traffic};
use super::{LowerError, LoweredWorkload, RankClasses, ScheduleInstance, lower, lower_representatives};
use crate::schedule::StoredPrograms;

/// Lowers schedules that share a fabric. If the groups of thread blocks of every schedule are equal, lowers only first
/// groups and also returns the number of groups that each represents; otherwise lowers all blocks and returns `None`
/// with them. The channels' own capacities ([`Resource::Channel`](super::Resource)) are then listed for first groups only;
/// the traffic of every other capacity includes all groups.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub fn lower_first_groups(parties: &[ScheduleInstance<'_>]) -> Result<(LoweredWorkload, Option<u64>), LowerError> {
    match FirstGroups::find(parties) {
        Some(ones) => Ok((ones.lower(parties)?, Some(ones.groups()))),
        None => Ok((lower(parties)?, None)),
    }
}

/// Lowers one rank of each class of a schedule and, if groups of thread blocks are equal, only its first group. Also
/// returns the number of groups that this group represents. `None` if the traffic of a class cannot be divided among
/// capacities.
///
/// # Errors
/// [`LowerError`], as [`lower`].
pub(crate) fn lower_first_ranks(
    party: ScheduleInstance<'_>,
    classes: &RankClasses,
) -> Result<Option<(LoweredWorkload, u64)>, LowerError> {
    let Some(group) = find_representative_group(&party, Some(classes)) else {
        return Ok(lower_representatives(party, classes)?.map(|lowered| (lowered, 1)));
    };
    let generator = &group.schedule();
    let lowered = lower_representatives(ScheduleInstance { generator, ..party }, classes)?;
    Ok(lowered.map(|mut lowered| {
        multiply_shared_traffic(group.groups(), &mut lowered);
        (lowered, group.groups())
    }))
}

/// First groups of several schedules.
struct FirstGroups<'a> {
    /// First group of each distinct schedule.
    groups: Vec<RepresentativeGroup<'a>>,
    /// Index of each party's schedule in `groups`.
    party_groups: Vec<usize>,
}

impl<'a> FirstGroups<'a> {
    /// Finds the first groups of all schedules. `None` if the groups of a schedule differ, or schedules have different
    /// numbers of groups, because first groups would then not load shared capacities in proportion to all groups.
    fn find(parties: &[ScheduleInstance<'a>]) -> Option<Self> {
        let mut groups = Self { groups: Vec::new(), party_groups: Vec::with_capacity(parties.len()) };
        let mut firsts: Vec<&ScheduleInstance<'a>> = Vec::new();
        for party in parties {
            let is_same_schedule = |first: &&ScheduleInstance<'a>| std::ptr::addr_eq(first.generator, party.generator);
            let number = firsts.iter().position(is_same_schedule).unwrap_or(firsts.len());
            if number == firsts.len() {
                groups.groups.push(find_representative_group(party, None)?);
                firsts.push(party);
            }
            groups.party_groups.push(number);
        }
        groups.groups.windows(2).all(|pair| pair[0].groups() == pair[1].groups()).then_some(groups)
    }

    /// Returns the number of groups that each first group represents.
    fn groups(&self) -> u64 {
        self.groups.first().map_or(1, RepresentativeGroup::groups)
    }

    /// Lowers the first group of each schedule, and multiplies its shared traffic by the number of groups.
    fn lower(&self, parties: &[ScheduleInstance<'a>]) -> Result<LoweredWorkload, LowerError> {
        let generators: Vec<StoredPrograms<'_>> = self.groups.iter().map(RepresentativeGroup::schedule).collect();
        let replace_generator = |(&number, party): (&usize, &ScheduleInstance<'a>)| {
            generators.get(number).map(|generator| ScheduleInstance::new(generator, party.setting))
        };
        let firsts: Vec<ScheduleInstance<'_>> =
            self.party_groups.iter().zip(parties).filter_map(replace_generator).collect();
        let mut lowered = lower(&firsts)?;
        multiply_shared_traffic(self.groups(), &mut lowered);
        Ok(lowered)
    }
}

/// Returns the group that represents all groups of a schedule; `None` unless they are equal and use the same routes.
pub(crate) fn find_representative_group<'a>(
    party: &ScheduleInstance<'a>,
    classes: Option<&'a RankClasses>,
) -> Option<RepresentativeGroup<'a>> {
    let options = party.setting.router.options();
    // Hashed ECMP selects routes per channel, and managed memory migrates on first touch, which depends on the channel.
    let by_channel = matches!(options.ecmp, Ecmp::Hashed { .. }) || options.buffers == BufferLocation::Managed;
    if by_channel { None } else { RepresentativeGroup::find(party.generator, classes) }
}
