//! Generated page on algorithms (docs/algorithms.md), from the properties that the planner states.

use std::fmt::Write;

use fabricast_collectives::algorithm::Algorithm;
use fabricast_collectives::algorithm::facts::{AlgorithmProperties, Exact, Time, Traffic, facts};
use fabricast_collectives::capabilities::{FabricCapabilities, HostLinks, Hosts, PackedTrees};
use fabricast_collectives::strategy::check_combination;
use fabricast_sim::schedule::{Collective, Protocol};

/// Capabilities of the most capable single host, whose switches reduce and multicast. A combination of algorithm,
/// protocol and collective that it does not support is supported by no single host.
const ONE_HOST: FabricCapabilities = FabricCapabilities {
    hosts: Hosts::One,
    peer_access: Ok(()),
    buffer_placement: Ok(()),
    multicast: Ok(8),
    network_reduction: Ok(()),
    ranks: 8,
    nics_per_host: 0,
    host_links: HostLinks::Other,
    packing: PackedTrees::Assumed,
};
const SEVERAL_HOSTS: FabricCapabilities = FabricCapabilities {
    hosts: Hosts::Several,
    peer_access: Ok(()),
    buffer_placement: Ok(()),
    multicast: Ok(8),
    network_reduction: Ok(()),
    ranks: 16,
    nics_per_host: 8,
    host_links: HostLinks::Other,
    packing: PackedTrees::Assumed,
};

const INTRODUCTION: &str = "\
# Algorithms

The schedules that `fabricast` generates for each collective, with their requirements and cost. This page is printed by
`cargo run --example algorithms`; a test compares it with what the code says, and others hold every schedule's steps, bytes
and simulated time against it.

n ranks on h hosts of g each (n = h·g); *bytes* is the larger buffer of a rank, of an all_to_allv all bytes of its matrix.
**Steps** are transfers one after the other, with one loop; a barrier's are signals. **Sent** is what the busiest rank sends,
in buffers; a * marks a total over all ranks equal to the lower bound of the collective without in-network reduction. **Time**
is that of one loop without software cost, on equal links of latency L and bandwidth B; where algorithms have levels, L and B
are those within hosts, L′ and B′ those between them. Figures marked ² are exact for powers of two. Chains and trees pass on
chunk after chunk; the time of one chunk is given. aᵢ are the sides of the grid of ranks.
";

/// Returns the whole page as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for collective in Collective::ALL {
        let _ = write!(
            page,
            "\n## {collective}\n\n| algorithm | protocols | needs | steps | sent | time |\n|---|---|---|---|---|---|\n"
        );
        for facts in facts().filter(|facts| facts.collective == collective) {
            page.push_str(&row(&facts));
        }
        page.push_str(remark(collective));
    }
    page.push_str("\n## Unsupported combinations\n\n");
    page.push_str("| algorithm | collectives | protocols | hosts | why not |\n|---|---|---|---|---|\n");
    for Refusal { algorithm, collectives, protocols, hosts, reason } in refusals() {
        let collectives: Vec<&str> = collectives.iter().map(|collective| collective.name()).collect();
        let (collectives, protocols) = (collectives.join(", "), names(&protocols));
        let _ = writeln!(page, "| {algorithm} | {collectives} | {protocols} | {hosts} | {reason} |");
    }
    page
}

fn names(protocols: &[Protocol]) -> String {
    protocols.iter().map(|protocol| protocol.name()).collect::<Vec<_>>().join(", ")
}

fn row(facts: &AlgorithmProperties) -> String {
    let AlgorithmProperties { algorithm, collective, steps, sent, .. } = facts;
    let goes = |protocol: &Protocol| {
        [ONE_HOST, SEVERAL_HOSTS]
            .iter()
            .any(|abilities| check_combination(*algorithm, *protocol, *collective, abilities).is_ok())
    };
    let protocols: Vec<Protocol> = Protocol::ALL.into_iter().filter(goes).collect();
    let exact = if facts.exact == Exact::PowersOfTwo { "²" } else { "" };
    let footnote = if facts.traffic == Traffic::Minimum { "\\*" } else { "" };
    let time = match facts.time {
        Time::Levels(text) => text.to_owned(),
        Time::Flat(bytes) => format!("{}{}", times(steps.text, "L"), plus_bytes(bytes.text)),
    };
    format!(
        "| {algorithm}{exact} | {} | {} | {} | {}{footnote} | {time} |\n",
        names(&protocols),
        needs(*algorithm, *collective),
        steps.text,
        sent.text
    )
}

/// Returns the paragraph below the table of a collective; empty for most collectives.
fn remark(collective: Collective) -> &'static str {
    match collective {
        Collective::AllToAllV => {
            "\nBlocks are as large as the matrix says; empty ones are skipped. With equal blocks, times are those of all_to_all. In \
             place, a rank keeps its own block where it is; what it sends and what it gets are different memory. bruck packs \
             blocks for several ranks into one message, whose sizes only the senders know: it is not offered. A halo \
             exchange (`--collective halo --grid 4x2x1`) is an all_to_allv of one-sided puts between neighbours.\n"
        }
        Collective::Barrier => {
            "\nSignals only: flags over symmetric memory, empty slots of a FIFO otherwise. Every rank's end waits for every rank's \
             start.\n"
        }
        _ => "",
    }
}

/// Formats the product of a coefficient and a unit: `(n−1)·L`.
fn times(coefficient: &str, unit: &str) -> String {
    // A remark after a comma refers to another shape of the call.
    let coefficient = coefficient.split(" in a host").next().unwrap_or(coefficient);
    match coefficient {
        "1" => unit.to_owned(),
        sum if sum.contains(" + ") || sum.ends_with("−1") && !sum.contains('(') => format!("({sum})·{unit}"),
        product => format!("{product}·{unit}"),
    }
}

fn plus_bytes(coefficient: &str) -> String {
    if coefficient == "0" {
        return String::new();
    }
    format!(" + {}", times(coefficient, "bytes/B"))
}

/// Returns the requirements of an algorithm on ranks and fabric, apart from protocols.
fn needs(algorithm: Algorithm, collective: Collective) -> &'static str {
    match (algorithm, collective) {
        (Algorithm::Hierarchical, _) => "several hosts of equally many ranks",
        (Algorithm::Tree, Collective::AllReduce) => "hosts of equally many ranks",
        (Algorithm::OneShot, Collective::Barrier) => "–",
        (Algorithm::OneShot, _) => "scratch for n buffers",
        (Algorithm::Nvls, Collective::AllReduce) => {
            "NVLink domains of equally many ranks whose switches reduce and multicast; if several, a network whose \
             switches do, too"
        }
        (Algorithm::Nvls, _) => "one NVLink domain whose switches reduce and multicast",
        (Algorithm::NvlsTree, _) => "several such domains of equally many ranks",
        (Algorithm::CollnetChain, _) => "hosts of equally many ranks on a network whose switches reduce and multicast",
        (Algorithm::TreePacking, _) => "2 to 128 ranks, a device each; trees follow the links",
        _ => "–",
    }
}

/// Combinations of one algorithm that are not supported, for one reason.
struct Refusal {
    algorithm: Algorithm,
    collectives: Vec<Collective>,
    protocols: Vec<Protocol>,
    hosts: &'static str,
    reason: String,
}

/// Returns the unsupported combinations, grouped by algorithm and reason.
fn refusals() -> Vec<Refusal> {
    let mut result: Vec<Refusal> = Vec::new();
    let combinations = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        let collectives = algorithm.collectives().iter();
        collectives.flat_map(move |&collective| Protocol::ALL.map(|protocol| (algorithm, collective, protocol)))
    });
    for (algorithm, collective, protocol) in combinations {
        for (abilities, word) in [(SEVERAL_HOSTS, "any"), (ONE_HOST, "one")] {
            let Err(reason) = check_combination(algorithm, protocol, collective, &abilities) else { continue };
            let reason = reason.to_string();
            match result.iter_mut().find(|refusal| refusal.algorithm == algorithm && refusal.reason == reason) {
                None => result.push(Refusal {
                    algorithm,
                    collectives: vec![collective],
                    protocols: vec![protocol],
                    hosts: word,
                    reason,
                }),
                Some(refusal) => {
                    if !refusal.collectives.contains(&collective) {
                        refusal.collectives.push(collective);
                    }
                    if !refusal.protocols.contains(&protocol) {
                        refusal.protocols.push(protocol);
                    }
                }
            }
        }
    }
    result
}
