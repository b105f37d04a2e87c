//! Time of the host between launches and synchronizations.

use super::items::Synchronization;
use super::node::{Activity, TimelineNode};
use super::recording::Nanos;
use super::segments::Segment;

/// Launches and synchronizations of the host, from which its time follows.
#[derive(Default)]
pub(super) struct Host {
    points: Vec<HostPoint>,
}

struct HostPoint {
    /// Time of the launch, or return of the synchronization.
    order: Nanos,
    /// Time until which the host works before the node can start.
    arrival: Nanos,
    kind: HostPointKind,
}

enum HostPointKind {
    /// Launch of a node.
    Launch(usize),
    /// Synchronization that began at a time, with nodes the last of which ended at another.
    Synchronize { after: Vec<usize>, begin: Nanos, ended: Nanos },
}

impl Host {
    /// Adds the launch of a node that started at `start` and whose other predecessors had ended at `ready`. If the
    /// launch is later, the host delayed the node, and the time from launch to start belongs to the launch.
    pub fn launch(&mut self, node: usize, launch: Nanos, start: Nanos, ready: Nanos) {
        let arrival = if launch >= ready { start } else { launch.min(start) };
        self.points.push(HostPoint { order: launch, arrival, kind: HostPointKind::Launch(node) });
    }

    pub fn synchronize(&mut self, sync: &Synchronization, after: Vec<usize>) {
        let kind = HostPointKind::Synchronize { after, begin: sync.begin, ended: sync.ended };
        self.points.push(HostPoint { order: sync.time, arrival: sync.time, kind });
    }

    /// Adds the nodes of the host, and their effect on the nodes that they launch. `finish`: end of the host's work.
    pub fn add(mut self, nodes: &mut Vec<TimelineNode>, segments: &[Segment], finish: Nanos) {
        self.points.sort_by_key(|point| (point.order, point.arrival));
        // A later launch cannot arrive before an earlier one.
        let mut until = finish.max(self.points.last().map_or(0, |point| point.arrival));
        let last = until;
        for point in self.points.iter_mut().rev() {
            point.arrival = point.arrival.min(until);
            until = point.arrival;
        }
        let (mut current, mut time): (Option<usize>, Nanos) = (None, 0);
        for point in self.points {
            match point.kind {
                HostPointKind::Launch(node) => {
                    advance(nodes, &mut current, &mut time, point.arrival);
                    // The part of a segment that waited for its launch is not computation.
                    let segment = segments.get(node);
                    if let Some(node) = nodes.get_mut(node) {
                        node.after.extend(current);
                        if let (Activity::Compute(busy), Some(segment)) = (&mut node.activity, segment) {
                            *busy = (*busy).min(segment.end - time.min(segment.end));
                        }
                    }
                }
                HostPointKind::Synchronize { after, begin, ended } => {
                    // The host works until it calls.
                    advance(nodes, &mut current, &mut time, begin.min(point.arrival));
                    let after = after.into_iter().chain(current).collect();
                    nodes.push(TimelineNode { activity: Activity::Synchronize, after });
                    current = Some(nodes.len() - 1);
                    time = time.max(ended.min(point.arrival));
                }
            }
        }
        advance(nodes, &mut current, &mut time, last);
    }
}

/// Adds host time up to `arrival`.
fn advance(nodes: &mut Vec<TimelineNode>, current: &mut Option<usize>, time: &mut Nanos, arrival: Nanos) {
    if arrival > *time {
        nodes
            .push(TimelineNode { activity: Activity::Host(arrival - *time), after: current.iter().copied().collect() });
        *current = Some(nodes.len() - 1);
        *time = arrival;
    }
}
