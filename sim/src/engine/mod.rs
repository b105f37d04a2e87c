//! Discrete-event engine: runs a [`Workload`] and determines its completion time and costs.
//!
//! An operation becomes *ready* when its dependencies are done, *sends* after its software time, *flows* after the
//! latency of its path, and is *done* when its bytes have passed at the rates that sharing allots. Messages of one
//! connection are sent in order ([`RunOrder::InTurn`]): the software time of a message overlaps with the transfer of the
//! previous one, and its own transfer follows. On an ordered connection (a line, [`LinePosition`]) one operation
//! transfers data at a time, in an order that does not depend on late ranks. Times are integer picoseconds; all events
//! of one instant are handled before rates are updated; results do not depend on the order of events within an instant.

mod bundle;
mod by_operation;
mod contention_free;
mod costs;
mod deadline;
mod distance;
mod error;
mod graph;
mod idle_capacities;
mod levels;
mod lines;
mod message_order;
mod next_events;
mod outcome;
mod passage_ranges;
#[doc(hidden)] // for its bench
pub mod queue;
mod remaining_paths;
mod run;
mod steady_state;
mod streams;
mod watch;
mod workload;

use fabricast_topologies::Picos;

use crate::quantity::{Rate, Work};
use crate::sharing::{RateRevision, RouteId, Sharing};
use bundle::Bundles;
use by_operation::OperationIndex;
use contention_free::ChainEnd;
use costs::ChainCosts;
pub use costs::Costs;
use deadline::Deadline;
pub use error::EngineError;
use graph::{Arrival, DependencyStates};
use lines::LineStates;
use message_order::{Turn, Turns};
pub use outcome::{Outcome, RateChange, Span};
pub(crate) use passage_ranges::{PassageRange, passage_ranges};
use queue::EventQueue;
pub use run::{run, run_to_end};
use steady_state::SteadyState;
pub use steady_state::SteadyStates;
pub use watch::{Recording, Watch};
pub use workload::{Edge, LinePosition, Pace, PassageTable, PerOp, RouteLatency, RunOrder, WorkRun, Workload};

/// Poll interval of the interrupt flag and of the progress counter, in events.
const POLL_INTERVAL: u64 = 1 << 14;

/// Poll interval of the deadline, in events.
const DEADLINE_POLL_INTERVAL: u64 = 1 << 9;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The first byte of the operation in this slot of `flights` can arrive.
    Flow { slot: u32 },
    /// The next transfer of a route's bundle is done; stale if the bundle's rate changed since the event was scheduled.
    Finish { route: u32 },
    /// The software time of a run's latest operation has ended; the next operation may begin. Sources have no such event.
    Prepared { run: u32 },
    /// The spacing after the operation of a run that last started its transfer has ended; the next one may start.
    Free { run: u32 },
    /// The spacing after the operation that last started its transfer on a line has ended; the next one may start.
    LineFree { line: u32 },
}

/// State of an operation from the instant at which it is ready until it is done.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    run: u32,
    index: u32,
    /// Time at which the operation was ready: its dependencies were done and its rank had started.
    ready: Picos,
    /// Time at which the operation's first byte arrives; later if it has to wait for earlier operations of its run or
    /// line.
    flowing: Picos,
    /// Costs of the chain of operations that ends with this one, up to the end of its software time.
    prepared: ChainCosts,
    /// Costs of the same chain including the operation's own software time, its latency and, once it is done, its
    /// transfer time.
    chain_costs: ChainCosts,
    /// Part of `chain_costs` for the operation's bytes at the rate without contention; 0 until it is done.
    transfer: Picos,
}

/// Start times that the engine gives to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Starts {
    /// Each rank starts at the time that the workload states ([`Pace::not_before`]).
    Given,
    /// Each rank starts with the first rank of its call; its [`Pace::delay`] is omitted.
    OnTime,
}

struct Engine<'a> {
    workload: &'a Workload,
    watch: Watch<'a>,
    starts: Starts,
    now: Picos,
    queue: EventQueue<Event>,
    sharing: Sharing,
    bundles: Bundles,
    waiting: DependencyStates,
    turns: Turns,
    lines: LineStates,
    /// Deadline, and the work to complete by then; `None` without a deadline.
    deadline: Option<Deadline>,
    flights: Vec<Flight>,
    free_flights: Vec<u32>,
    /// Search for a steady state; `None` if the engine does not search, or no run has enough operations left.
    steady_state: Option<SteadyState>,
    /// Number of events after which the run stops if no steady state was skipped; `None` if it does not stop.
    stops_without_skip_at: Option<u64>,
    /// True if the run stopped there.
    is_stopped: bool,
    /// Slots in `flights` of the transfers that end in the current event; a buffer that is reused.
    ended: Vec<u32>,
    /// Last division of work by rate, and its result. Cached because most transfers repeat the previous division.
    last_division: (Work, Rate, Picos),
    /// Ends of operations, by run and index, of the runs for which they are recorded.
    chain_ends: Vec<Vec<ChainEnd>>,
    outcome: Outcome,
}

impl<'a> Engine<'a> {
    fn new(workload: &'a Workload, watch: Watch<'a>, starts: Starts, lines: LineStates) -> Self {
        Self {
            workload,
            watch,
            starts,
            now: Picos::ZERO,
            queue: EventQueue::default(),
            sharing: Sharing::new(&workload.system),
            bundles: Bundles::new(workload.system.route_count()),
            waiting: DependencyStates::new(workload),
            turns: Turns::new(workload),
            lines,
            deadline: watch.until.map(|until| Deadline::new(workload, until)),
            steady_state: SteadyState::search(workload, watch),
            stops_without_skip_at: None,
            is_stopped: false,
            flights: Vec::new(),
            free_flights: Vec::new(),
            ended: Vec::new(),
            last_division: (Work(0), Rate(1), Picos::ZERO),
            chain_ends: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn finished(mut self) -> Result<Outcome, EngineError> {
        self.run()?;
        Ok(self.outcome)
    }

    /// Runs the workload: handles all events in order of time.
    fn run(&mut self) -> Result<(), EngineError> {
        let workload = self.workload;
        self.watch.begin(workload.operation_count());
        if self.watch.recording != Recording::End {
            self.outcome.run_ends = vec![Picos::ZERO; workload.runs.len()];
        }
        self.now = workload.startup;
        let begun = ChainCosts { software: workload.startup, ..ChainCosts::default() };
        (self.outcome.end, self.outcome.costs) = (self.now, begun.costs_at(self.now));
        for run in 0..workload.runs.len() as u32 {
            for range in graph::initially_ready(workload, run) {
                for index in range {
                    self.ready(run, index, begun)?;
                }
            }
        }
        let total = workload.operation_count();
        self.check_deadline()?;
        let (mut next_breath, mut next_look) = (POLL_INTERVAL, DEADLINE_POLL_INTERVAL);
        while let Some(time) = self.queue.next_time() {
            self.now = time;
            // Events that remain after the last operation are stale.
            if let Some(until) = self.watch.until.filter(|&until| time > until && self.outcome.operations < total) {
                return Err(EngineError::Abandoned { until });
            }
            while let Some(event) = self.queue.pop() {
                self.outcome.events += 1;
                match event {
                    Event::Flow { slot } => self.flow(slot)?,
                    Event::Finish { route } => self.finish(RouteId(route))?,
                    Event::Prepared { run } => self.prepared(run)?,
                    Event::Free { run } => self.next_turn(run)?,
                    Event::LineFree { line } => self.lines.free(line),
                }
            }
            self.serve_lines();
            self.settle()?;
            self.skip_periods();
            if self.outcome.events >= next_look && self.outcome.operations < total {
                next_look = self.outcome.events + DEADLINE_POLL_INTERVAL;
                if let Some(deadline) = &mut self.deadline {
                    deadline.follow_paths(workload, self.outcome.events);
                }
                self.check_deadline()?;
            }
            if self.stops_without_skip_at.is_some_and(|limit| self.outcome.events >= limit) {
                self.stops_without_skip_at = None;
                self.is_stopped = self.outcome.skipped == 0;
                if self.is_stopped {
                    return Ok(());
                }
            }
            if self.outcome.events >= next_breath {
                next_breath = self.outcome.events + POLL_INTERVAL;
                self.watch.poll(self.outcome.operations)?;
            }
        }
        self.conclude()
    }

    /// Returns an error if the deadline can no longer be met.
    fn check_deadline(&self) -> Result<(), EngineError> {
        match self.deadline.as_ref().and_then(|deadline| deadline.missed(self.now)) {
            Some(until) => Err(EngineError::Abandoned { until }),
            None => Ok(()),
        }
    }

    fn conclude(&mut self) -> Result<(), EngineError> {
        let total = self.workload.operation_count();
        self.watch.report(self.outcome.operations);
        if self.outcome.operations < total {
            let (run, index) = self.waiting.first_not_done(self.workload);
            return Err(EngineError::Deadlock { done: self.outcome.operations, total, run, index });
        }
        self.outcome.spans.sort_unstable();
        Ok(())
    }

    /// Schedules an operation whose dependencies are done at this instant.
    fn ready(&mut self, run: u32, index: u32, chain_costs: ChainCosts) -> Result<(), EngineError> {
        self.ready_since(run, index, chain_costs, self.now)
    }

    /// Schedules an operation whose dependencies were done at `since`, now or earlier. Its transfer starts after its
    /// software time and latency. An operation that could have started before the present waits for its turn.
    fn ready_since(
        &mut self,
        run: u32,
        index: u32,
        mut chain_costs: ChainCosts,
        since: Picos,
    ) -> Result<(), EngineError> {
        self.record_reached(run, index);
        let pace = self.workload.pace(run, index);
        let passage = self.workload.passage(run, index);
        let ready = since.max(match self.starts {
            Starts::Given => pace.not_before,
            Starts::OnTime => pace.not_before - pace.delay,
        });
        let flowing = Picos(
            ready
                .0
                .checked_add(pace.software.0)
                .and_then(|t| t.checked_add(passage.latency.0))
                .ok_or(EngineError::TooLong { run, index })?,
        );
        chain_costs.start_delay += ready - since;
        chain_costs.software += pace.software;
        let prepared = chain_costs;
        chain_costs.latency += passage.latency;
        let is_late = flowing < self.now;
        if let Some(turn) = self.turns.get_mut(run) {
            turn.preparing = (index, prepared);
            let software_end = (index + 1 < self.workload.runs[run as usize].len).then_some(ready + pace.software);
            if turn.is_source {
                turn.suspended = software_end;
                turn.timely += u32::from(!is_late);
            } else if let Some(software_end) = software_end {
                self.queue.push(software_end, Event::Prepared { run });
            }
        }
        let flight = Flight { run, index, ready, flowing, prepared, chain_costs, transfer: Picos::ZERO };
        let slot = match self.free_flights.pop() {
            Some(slot) => {
                self.flights[slot as usize] = flight;
                slot
            }
            None => {
                self.flights.push(flight);
                self.flights.len() as u32 - 1
            }
        };
        match self.turns.get_mut(run).filter(|_| is_late) {
            Some(turn) => turn.park(index, slot),
            None => self.queue.push(flowing, Event::Flow { slot }),
        }
        Ok(())
    }

    /// Handles the instant at which an operation's first byte can arrive. In a run in [`RunOrder::InTurn`], an operation
    /// that is not the next one is stored until the previous one is done, and is then charged with the costs of that
    /// one's chain.
    fn flow(&mut self, slot: u32) -> Result<(), EngineError> {
        let flight = &mut self.flights[slot as usize];
        if let Some(turn) = self.turns.get_mut(flight.run) {
            if !turn.may_flow(flight.index, self.now) {
                turn.park(flight.index, slot);
                return Ok(());
            }
            flight.chain_costs = turn
                .blocker_costs(self.now)
                .map_or(flight.chain_costs, |blocking_costs| flight.chain_costs.max(blocking_costs));
        }
        self.begin(slot)
    }

    /// Handles the end of the software time of a run's latest operation. In a run in [`RunOrder::InTurn`], the next
    /// operation may then begin.
    fn prepared(&mut self, run: u32) -> Result<(), EngineError> {
        self.prepare_next(run, self.now)
    }

    /// Continues a run after the end, at `since`, of the software time of its latest operation.
    fn prepare_next(&mut self, run: u32, since: Picos) -> Result<(), EngineError> {
        let Some(&mut Turn { preparing: (index, chain_costs), .. }) = self.turns.get_mut(run) else { return Ok(()) };
        match self.waiting.arrive(run, index + 1, since, chain_costs) {
            Arrival::Last(chain_costs) => self.ready_since(run, index + 1, chain_costs, since),
            Arrival::Partial => Ok(()),
        }
    }

    /// Prepares the next operation of a suspended source.
    fn resume(&mut self, run: u32) -> Result<(), EngineError> {
        match self.turns.get_mut(run).and_then(|turn| turn.suspended.take()) {
            Some(since) => self.prepare_next(run, since),
            None => Ok(()),
        }
    }

    /// Starts the transfer of an operation, or queues it in its line.
    fn begin(&mut self, slot: u32) -> Result<(), EngineError> {
        let flight = self.flights[slot as usize];
        if let Some(until) =
            self.deadline.as_ref().and_then(|deadline| deadline.missed_by(flight.run, flight.index, self.now))
        {
            return Err(EngineError::Abandoned { until });
        }
        self.resume(flight.run)?;
        let work = self.workload.work(flight.run, flight.index);
        match self.workload.passage(flight.run, flight.index).route {
            Some(route) if work.0 > 0 => {
                match self.workload.line(flight.run, flight.index) {
                    Some(line) => {
                        let operation = OperationIndex { run: flight.run, index: flight.index };
                        self.lines.join(self.workload, line, self.now, operation, slot);
                    }
                    None => self.transfer(slot, route, work),
                }
                Ok(())
            }
            _ => {
                self.space(slot);
                self.done(slot)
            }
        }
    }

    /// Starts the spacing ([`Pace::spacing`]) after an operation that begins its transfer, if its run is in
    /// [`RunOrder::InTurn`]. Returns its end, and the costs of the operation's chain up to then.
    fn space(&mut self, slot: u32) -> (Picos, ChainCosts) {
        let Flight { run, index, chain_costs, .. } = self.flights[slot as usize];
        let spacing = self.workload.pace(run, index).spacing;
        let free = (self.now + spacing, ChainCosts { software: chain_costs.software + spacing, ..chain_costs });
        if let Some(turn) = self.turns.get_mut(run) {
            turn.free = free;
        }
        free
    }

    /// Starts the transfer of an operation's bytes over its route. Operations without bytes have no spacing on a line.
    fn transfer(&mut self, slot: u32, route: RouteId, work: Work) {
        let free = self.space(slot);
        let Flight { run, index, .. } = self.flights[slot as usize];
        if let Some(line) = self.workload.line(run, index).filter(|_| free.0 > self.now) {
            self.lines.space(line, free);
        }
        if let Some(deadline) = &mut self.deadline {
            deadline.begins(run, route, work);
        }
        let rate = self.sharing.rate(route);
        self.bundles.join(route, rate, self.now, slot, work);
        self.sharing.start(&self.workload.system, route);
    }

    /// Starts the next operation on each line on which an operation arrived or ended at this instant, if no transfer is
    /// in progress there. An operation that waited is charged with the costs of the chain of the previous one.
    fn serve_lines(&mut self) {
        while let Some((slot, blocking_costs)) = self.lines.next(self.now) {
            let flight = &mut self.flights[slot as usize];
            if let Some(blocking_costs) = blocking_costs {
                flight.chain_costs =
                    if flight.flowing == self.now { flight.chain_costs.max(blocking_costs) } else { blocking_costs };
            }
            flight.flowing = self.now;
            let Flight { run, index, .. } = *flight;
            if let Some(route) = self.workload.passage(run, index).route {
                self.transfer(slot, route, self.workload.work(run, index));
            }
        }
    }

    /// Completes the transfers of a bundle that are done.
    fn finish(&mut self, route: RouteId) -> Result<(), EngineError> {
        let mut ended = std::mem::take(&mut self.ended);
        self.bundles.leave(route, self.sharing.rate(route), self.now, &mut ended);
        for &slot in &ended {
            self.sharing.stop(&self.workload.system, route);
            self.add_transfer_costs(slot, route);
            let Flight { run, index, chain_costs, .. } = self.flights[slot as usize];
            if let Some(line) = self.workload.line(run, index)
                && let Some(free) = self.lines.leave(line, self.now, chain_costs)
            {
                self.queue.push(free, Event::LineFree { line });
            }
            self.done(slot)?;
        }
        if self.watch.recording == Recording::Spans && !ended.is_empty() && self.sharing.count(route) == 0 {
            self.outcome.rates.push(RateChange { at: self.now, route, total: Rate(0) });
        }
        ended.clear();
        self.ended = ended;
        Ok(())
    }

    /// Charges a transfer for the time that it would need without contention; the rest of its time is waiting.
    fn add_transfer_costs(&mut self, slot: u32, route: RouteId) {
        let flight = self.flights[slot as usize];
        let work = self.workload.work(flight.run, flight.index);
        let solo = self.workload.system.solo(route);
        if (self.last_division.0, self.last_division.1) != (work, solo) {
            self.last_division = (work, solo, work.duration(solo).unwrap_or(Picos::ZERO));
        }
        let alone = self.last_division.2;
        let transfer = alone.min(self.now - flight.flowing);
        let flight = &mut self.flights[slot as usize];
        flight.transfer = transfer;
        flight.chain_costs.bandwidth += transfer;
    }

    /// Records for the steady-state search that an operation is ready, or that an operation that it waits for is done.
    fn record_reached(&mut self, run: u32, index: u32) {
        if let Some(steady_state) = &mut self.steady_state {
            steady_state.record_reached(run, index);
        }
    }

    fn done(&mut self, slot: u32) -> Result<(), EngineError> {
        let flight = self.flights[slot as usize];
        self.free_flights.push(slot);
        self.outcome.operations += 1;
        if let Some(steady_state) = &mut self.steady_state {
            steady_state.record_done(flight.run, flight.index);
        }
        let counts = flight.run < self.workload.background_from;
        if counts && self.now >= self.outcome.end {
            let ending = (self.now, flight.chain_costs.costs_at(self.now));
            (self.outcome.end, self.outcome.costs) = ending.max((self.outcome.end, self.outcome.costs));
        }
        if let Some(end) = self.outcome.run_ends.get_mut(flight.run as usize) {
            *end = self.now;
        }
        let recorded = self.chain_ends.get_mut(flight.run as usize);
        if let Some(end) = recorded.and_then(|ends| ends.get_mut(flight.index as usize)) {
            *end = ChainEnd { time: self.now, costs: flight.chain_costs };
        }
        if self.watch.recording == Recording::Spans {
            let Flight { run, index, ready, flowing, prepared, chain_costs, transfer } = flight;
            let prepared = prepared.costs_at(ready + self.workload.pace(run, index).software);
            let begun = ChainCosts { bandwidth: chain_costs.bandwidth - transfer, ..chain_costs }.costs_at(flowing);
            let costs = chain_costs.costs_at(self.now);
            self.outcome.spans.push(Span {
                run,
                index,
                ready,
                flowing,
                done: self.now,
                costs,
                costs_at_first_byte: begun,
                costs_after_software: prepared,
            });
        }
        for i in self.waiting.run_dependents(flight.run) {
            let edge = self.waiting.dependent(i);
            if edge.is_turn() {
                continue;
            }
            for index in edge.sources(flight.index, self.workload.runs[edge.run as usize].len) {
                self.record_reached(edge.run, index);
                if let Arrival::Last(chain_costs) = self.waiting.arrive(edge.run, index, self.now, flight.chain_costs) {
                    self.ready(edge.run, index, chain_costs)?;
                }
            }
        }
        match self.turns.get_mut(flight.run) {
            Some(turn) => {
                (turn.done, turn.at, turn.chain_costs) = (flight.index + 1, self.now, flight.chain_costs);
                if turn.free.0 > self.now {
                    let free = turn.free.0;
                    self.queue.push(free, Event::Free { run: flight.run });
                    return Ok(());
                }
                self.next_turn(flight.run)
            }
            None => Ok(()),
        }
    }

    /// Starts the next operation of a run in [`RunOrder::InTurn`] if its first byte has arrived and no earlier operation
    /// is unfinished.
    fn next_turn(&mut self, run: u32) -> Result<(), EngineError> {
        let Some(turn) = self.turns.get_mut(run) else { return Ok(()) };
        let Some(&(index, slot)) = turn.parked.front() else { return Ok(()) };
        if !turn.may_flow(index, self.now) {
            return Ok(());
        }
        turn.parked.pop_front();
        let parked = &mut self.flights[slot as usize];
        let blocking_costs = turn.blocker_costs(self.now).unwrap_or(parked.chain_costs);
        parked.chain_costs =
            if parked.flowing == self.now { parked.chain_costs.max(blocking_costs) } else { blocking_costs };
        parked.flowing = self.now;
        self.begin(slot)
    }

    /// Updates rates after the changes of this instant, and reschedules the finish events that depend on them.
    fn settle(&mut self) -> Result<(), EngineError> {
        let Self { workload, watch, sharing, bundles, queue, now, flights, outcome, .. } = self;
        let mut overlong = None;
        sharing.settle(&workload.system, |revised| {
            let RateRevision { route, before, rate, count } = revised;
            match bundles.reschedule(route, before, rate, *now) {
                Ok(time) => queue.push(time, Event::Finish { route: route.0 }),
                Err(slot) => overlong = Some(slot),
            }
            if watch.recording == Recording::Spans {
                let total = Rate(rate.0.saturating_mul(u64::from(count)));
                outcome.rates.push(RateChange { at: *now, route, total });
            }
        });
        match overlong {
            None => Ok(()),
            Some(slot) => {
                let Flight { run, index, .. } = flights[slot as usize];
                Err(EngineError::TooLong { run, index })
            }
        }
    }
}
