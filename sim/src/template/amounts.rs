//! What a template's operations take of its capacities, and what that comes to where a chunk has a size.

use std::collections::BTreeMap;

use super::Template;
use crate::engine::Pace;
use crate::lower::{Crossing, Effort, OneEffort, Resource, Start, Tasks};
use crate::quantity::{Rate, Work};
use crate::schedule::ChunkSize;
use crate::sharing::{ResourceId, System, Use, WHOLE};

/// A capacity of the folded workload.
#[derive(Debug)]
pub(super) struct Capacity {
    /// The first of those that it stands for.
    pub resource: Resource,
    pub rate: Rate,
    /// What passes it, in units of [`WHOLE`]: by whose coefficient it is, chunks of an operation, operations counted at once.
    pub passing: BTreeMap<(Taken, u32, u32), u128>,
}

/// What an operation takes of a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Taken {
    /// A coefficient, and so much more for each further block.
    Shared,
    /// A coefficient, of a capacity of the block.
    Own,
    /// As the task says, of a block that counts passes.
    Passes(u32),
    /// As the task says, of a proxy, and so much more for each further block.
    Posts(u32),
}

/// What tells capacities apart for which tasks say what is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// All blocks.
    Shared,
    Block,
    Proxy,
}

impl Holder {
    pub(super) fn of(resource: &Resource) -> Self {
        match resource {
            Resource::Lane(..) => Self::Block,
            Resource::Proxy(_) => Self::Proxy,
            _ => Self::Shared,
        }
    }
}

impl Taken {
    /// What a coefficient that may be a task's code says, and how often.
    pub(super) fn of(resource: &Resource, coefficient: u64, task: u32) -> (Self, u64) {
        let is_coded = coefficient >= Tasks::lane_code(0);
        match Holder::of(resource) {
            Holder::Block if is_coded => (Self::Passes(task), coefficient / Tasks::lane_code(task)),
            Holder::Block => (Self::Own, coefficient),
            Holder::Proxy => (Self::Posts(task), coefficient / Tasks::proxy_code(task)),
            Holder::Shared => (Self::Shared, coefficient),
        }
    }
}

/// A route of the folded workload: the capacities with how often each is taken.
#[derive(Debug)]
pub(super) struct Route {
    pub uses: Vec<(ResourceId, Taken, u64)>,
    pub cap: Rate,
    pub weight: u32,
}

/// Costs of the tasks of a template, and amounts.
pub(super) struct Amounts {
    /// By entry of the workload's works.
    pub works: Vec<Work>,
    /// By task.
    efforts: Vec<OneEffort>,
    blocks: u64,
}

impl Amounts {
    /// What holds a task's operations back.
    pub(super) fn pace(&self, task: u32) -> Pace {
        self.effort(task).map(|effort| effort.pace(Start::default())).unwrap_or_default()
    }

    /// What they cost where they leave their host.
    pub(super) fn crossing(&self, task: u32) -> Crossing {
        self.effort(task).map(|effort| effort.crossing).unwrap_or_default()
    }

    fn effort(&self, task: u32) -> Option<&OneEffort> {
        self.efforts.get(task as usize)
    }

    fn coefficient(&self, taken: Taken, times: u64) -> u64 {
        let effort = |task: u32, part: fn(&OneEffort) -> u64| self.effort(task).map_or(0, part);
        match taken {
            Taken::Shared => times.saturating_mul(self.blocks),
            Taken::Own => times,
            Taken::Passes(task) => times.saturating_mul(effort(task, |effort| effort.lane.unwrap_or_default())),
            Taken::Posts(task) => {
                times.saturating_mul(effort(task, |effort| effort.crossing.proxy)).saturating_mul(self.blocks)
            }
        }
    }
}

impl Template {
    /// Costs and amounts where a chunk is of this size.
    pub(super) fn amounts(&self, effort: &Effort<'_>, size: ChunkSize, blocks: u16) -> Amounts {
        let on_wire = |span: u32| match span {
            0 => Work(0),
            span => self.framing.on_wire(Work::of_chunks(size, span)),
        };
        let efforts = self.tasks.all.iter().map(|&(task, span)| {
            let work = on_wire(span);
            effort.of(task, self.framing.payload(work), work)
        });
        let efforts = efforts.collect();
        Amounts { works: self.spans.iter().map(|&span| on_wire(span)).collect(), efforts, blocks: blocks.into() }
    }

    pub(super) fn system(&self, amounts: &Amounts) -> System {
        let mut system = System::new();
        for capacity in &self.capacities {
            system.add_resource(capacity.rate);
        }
        let mut uses: Vec<Use> = Vec::new();
        for route in &self.routes {
            uses.clear();
            let of_use = |&(resource, taken, times): &(ResourceId, Taken, u64)| Use {
                resource,
                coefficient: amounts.coefficient(taken, times),
            };
            uses.extend(route.uses.iter().map(of_use));
            system.add_route(&uses, route.cap, route.weight);
        }
        system
    }

    /// What passes a capacity.
    pub(super) fn passing(&self, capacity: &Capacity, amounts: &Amounts) -> Work {
        let work = |span: u32| {
            let place = self.spans.iter().position(|&one| one == span);
            place.and_then(|place| amounts.works.get(place)).map_or(0, |work| work.0)
        };
        let passed = capacity.passing.iter().map(|(&(taken, span, ops), &times)| {
            let part = work(span) * u128::from(ops) / u128::from(WHOLE);
            part * times * u128::from(amounts.coefficient(taken, 1))
        });
        Work(passed.sum())
    }
}
