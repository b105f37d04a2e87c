//! Load of a template's operations on capacities, and the amount of that load for a given chunk size.

use super::Template;
use super::loops::LoopOrder;
use crate::engine::Pace;
use crate::lower::{Crossing, OperationCost, OperationCosts, Resource, Start, Task, Tasks};
use crate::quantity::{Rate, Work};
use crate::schedule::ChunkSize;
use crate::sharing::{ResourceId, System, Use, WHOLE};

/// Capacity of the folded workload, with the load of all operations on it.
#[derive(Debug)]
pub(super) struct Capacity {
    /// First of the resources that the capacity represents.
    pub resource: Resource,
    pub rate: Rate,
    /// Load in units of [`WHOLE`], in order of kind of load, number of chunks per operation, and number of operations
    /// counted together. Most capacities have one or two entries.
    load: Vec<((LoadKind, u32, u32), u128)>,
}

/// Number of equal operations that load a capacity.
#[derive(Clone, Copy)]
pub(super) struct OperationNumber {
    /// Operations counted together.
    pub in_group: u128,
    /// Sum of the coefficients with which such groups of operations load the capacity.
    pub times: u128,
}

impl Capacity {
    pub(super) fn new(resource: Resource, rate: Rate) -> Self {
        Self { resource, rate, load: Vec::new() }
    }

    /// Adds load of `ops` operations of `span` chunks each.
    pub(super) fn add_load(&mut self, kind: LoadKind, span: u32, ops: u32, times: u64) {
        let key = (kind, span, ops);
        match self.load.binary_search_by_key(&key, |&(known, _)| known) {
            Ok(index) => self.load[index].1 += u128::from(times),
            Err(index) => self.load.insert(index, (key, u128::from(times))),
        }
    }
}

/// Kind of load that an operation puts on a capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoadKind {
    /// Coefficient that is multiplied by the number of groups.
    Shared,
    /// Coefficient on a capacity that belongs to the block.
    Own,
    /// Busy time of the block in the passes of a task; holds the number of the task.
    Passes(u32),
    /// Proxy time of a task, multiplied by the number of groups; holds the number of the task.
    Posts(u32),
}

/// Owner of a capacity, which determines the kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacityOwner {
    /// All groups share the capacity.
    Shared,
    Block,
    Proxy,
}

impl CapacityOwner {
    pub(super) fn from_resource(resource: &Resource) -> Self {
        match resource {
            Resource::Channel(..) => Self::Block,
            Resource::Proxy(_) => Self::Proxy,
            _ => Self::Shared,
        }
    }
}

impl LoadKind {
    /// Returns the kind of load encoded in a coefficient, and its multiplicity.
    pub(super) fn decode(resource: &Resource, coefficient: u64, task: u32) -> (Self, u64) {
        let is_coded = coefficient >= Tasks::channel_code(0);
        match CapacityOwner::from_resource(resource) {
            CapacityOwner::Block if is_coded => (Self::Passes(task), coefficient / Tasks::channel_code(task)),
            CapacityOwner::Block => (Self::Own, coefficient),
            CapacityOwner::Proxy => (Self::Posts(task), coefficient / Tasks::proxy_code(task)),
            CapacityOwner::Shared => (Self::Shared, coefficient),
        }
    }
}

/// Route of the folded workload: its capacities, each with the kind of load and its multiplicity.
#[derive(Debug)]
pub(super) struct Route {
    pub uses: Vec<(ResourceId, LoadKind, u64)>,
    pub cap: Rate,
    pub weight: u32,
}

/// Costs of a template's tasks, and amounts of work.
pub(super) struct Amounts {
    /// Amount of work of each entry of the workload's works.
    pub works: Vec<Work>,
    /// Costs of an operation of each task, by task number.
    operation_costs: Vec<OperationCost>,
    groups: u64,
}

impl Amounts {
    /// Returns the software time and spacing of a task's operations.
    pub(super) fn pace(&self, task: u32) -> Pace {
        self.operation_cost(task).map(|cost| cost.pace(Start::default())).unwrap_or_default()
    }

    /// Returns the network cost of a task's operations that leave their host.
    pub(super) fn crossing(&self, task: u32) -> Crossing {
        self.operation_cost(task).map(|cost| cost.crossing).unwrap_or_default()
    }

    fn operation_cost(&self, task: u32) -> Option<&OperationCost> {
        self.operation_costs.get(task as usize)
    }

    fn coefficient(&self, kind: LoadKind, times: u64) -> u64 {
        let cost = |task: u32, part: fn(&OperationCost) -> u64| self.operation_cost(task).map_or(0, part);
        match kind {
            LoadKind::Shared => times.saturating_mul(self.groups),
            LoadKind::Own => times,
            LoadKind::Passes(task) => times.saturating_mul(cost(task, |cost| cost.channel_cost.unwrap_or_default())),
            LoadKind::Posts(task) => {
                times.saturating_mul(cost(task, |cost| cost.crossing.proxy)).saturating_mul(self.groups)
            }
        }
    }
}

impl Template {
    /// Returns the costs and amounts for a chunk size, in a call of `loops` loops on a number of equal groups.
    pub(super) fn amounts(
        &self,
        operation_costs: &OperationCosts<'_>,
        size: ChunkSize,
        loops: u32,
        groups: u16,
    ) -> Amounts {
        let on_wire = |span: u32| match span {
            0 => Work(0),
            span => self.framing.on_wire(Work::from_chunks(size, span)),
        };
        let in_loops = |task: Task| match self.loop_order {
            LoopOrder::Repeated => task.in_loops(loops, self.rounds),
            LoopOrder::Other => task,
        };
        let costs = self.tasks.all.iter().map(|&(task, span)| {
            let work = on_wire(span);
            operation_costs.operation_cost(in_loops(task), self.framing.payload(work), work)
        });
        let costs = costs.collect();
        // Most consecutive entries have the same span.
        let mut last = (0, Work(0));
        let works = self.spans.iter().map(|&span| {
            if last.0 != span {
                last = (span, on_wire(span));
            }
            last.1
        });
        Amounts { works: works.collect(), operation_costs: costs, groups: groups.into() }
    }

    /// Returns the template's capacities, with its routes for each of the given amounts.
    pub(super) fn system<'a>(&self, parts: impl IntoIterator<Item = &'a Amounts>) -> System {
        let mut system = System::new();
        for capacity in &self.capacities {
            system.add_resource(capacity.rate);
        }
        let mut uses: Vec<Use> = Vec::new();
        for amounts in parts {
            for route in &self.routes {
                uses.clear();
                let to_use = |&(resource, kind, times): &(ResourceId, LoadKind, u64)| Use {
                    resource,
                    coefficient: amounts.coefficient(kind, times),
                };
                uses.extend(route.uses.iter().map(to_use));
                system.add_route(&uses, route.cap, route.weight);
            }
        }
        system
    }

    /// Returns the total work that passes through a capacity.
    pub(super) fn passing(&self, capacity: &Capacity, amounts: &Amounts) -> Work {
        self.passing_operations(capacity, amounts, |operations| operations)
    }

    /// Variant of [`Self::passing`] for other numbers of operations.
    pub(super) fn passing_operations(
        &self,
        capacity: &Capacity,
        amounts: &Amounts,
        number: impl Fn(OperationNumber) -> OperationNumber,
    ) -> Work {
        self.passing_at_cost(capacity, amounts, number, |kind, _| amounts.coefficient(kind, 1))
    }

    /// Variant of [`Self::passing`] in which each pass of a block has the lowest cost of those that move as many chunks.
    /// In schedules whose operations in one loop differ from those in another, further loops have at least this work.
    pub(super) fn min_passing(&self, capacity: &Capacity, amounts: &Amounts) -> Work {
        let lowest = |kind: LoadKind, span: u32| {
            let alike = capacity.load.iter().filter(|((other, other_span, _), _)| {
                *other_span == span && std::mem::discriminant(other) == std::mem::discriminant(&kind)
            });
            alike.map(|&((other, ..), _)| amounts.coefficient(other, 1)).min().unwrap_or_default()
        };
        self.passing_at_cost(capacity, amounts, |operations| operations, lowest)
    }

    /// Variant of [`Self::passing_operations`] for another cost of loads, by kind and number of chunks.
    fn passing_at_cost(
        &self,
        capacity: &Capacity,
        amounts: &Amounts,
        number: impl Fn(OperationNumber) -> OperationNumber,
        cost: impl Fn(LoadKind, u32) -> u64,
    ) -> Work {
        let span_work = |span: u32| {
            let index = self.spans.iter().position(|&one| one == span);
            index.and_then(|index| amounts.works.get(index)).map_or(0, |work| work.0)
        };
        let passed = capacity.load.iter().map(|&((kind, span, in_group), times)| {
            let OperationNumber { in_group, times } = number(OperationNumber { in_group: in_group.into(), times });
            let part = span_work(span) * in_group / u128::from(WHOLE);
            part * times * u128::from(cost(kind, span))
        });
        Work(passed.sum())
    }
}
