//! Tests of hybrid sharding, in which states are sharded within groups of ranks and replicated among them: traffic
//! between hosts, memory and time.

use fabricast_sim::profile::Profile;
use fabricast_topologies::fabric::Link;
use fabricast_topologies::{Fabric, FabricRequest, LinkKind, NodeKind, Picos, load};

use super::super::{Efficiency, Machine, Share, Step, best_step, step, step_calls};
use super::{SPEEDS, rails, read, with_machine};
use crate::communication::{CommunicationCostModel, EstimatedCosts, Exchange, TimedCall};
use fabricast_search::plan::PlanError;
use fabricast_workload::job::{Dimension, Footprint, Layout, Phase, Training};

fn job(zero: u32, lines: &str) -> Training {
    read(&format!(
        "name = \"j\"\nglobal_batch = 64\nzero = {zero}\nflash_attention = true\n{lines}\
         model = {{ layers = 4, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }}\n"
    ))
}

fn best(fabric: &Fabric, job: &Training) -> (Step, Footprint) {
    with_machine(fabric, |machine| best_step(job, machine).unwrap())
}

#[test]
fn sharding_over_all_ranks_equals_no_shard() {
    let fabric = rails(2);
    for zero in 1..4 {
        let [all, plain] = ["shard = 16\n", ""].map(|shard| job(zero, &format!("{shard}parallel = {{ dp = 16 }}\n")));
        assert_eq!(best(&fabric, &all), best(&fabric, &plain));
    }
}

/// Cost model with constant times for calls within and among sharding groups.
struct Constant {
    within: Picos,
    among: Picos,
    share_links: bool,
}

impl CommunicationCostModel for Constant {
    fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(if exchange.dimension.is_replica_group() { self.among } else { self.within })
    }

    fn share_links(&self, _: &Layout, one: Dimension, other: Dimension) -> bool {
        one.is_replica_group() == other.is_replica_group() || self.share_links
    }
}

/// If all communication is exposed, the gradients of all layers except one are reduced among groups while the next
/// layer is gathered and reduced. If links are shared, or the software has a single stream, the two are serialized.
#[test]
fn streams_overlap_unless_links_are_shared() {
    let [within, among] = [400_000_000_000, 300_000_000_000].map(Picos);
    let predict = |zero: u32, lines: &str, shared: bool| {
        let job = job(zero, &format!("{lines}shard = 4\nparallel = {{ dp = 64 }}\n"));
        let layout = Layout::specified_by(&job, 64).unwrap().unwrap();
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &Constant { within, among, share_links: shared }).unwrap()
    };
    let [concurrent, sequential] = [false, true].map(|shared| predict(3, "", shared));
    assert_eq!(sequential.time - concurrent.time, Picos(3 * among.0));
    assert_eq!(sequential.communication, concurrent.communication);
    assert_eq!(
        [false, true].map(|shared| predict(3, "overlap = false\n", shared).time),
        [predict(3, "overlap = false\n", true).time; 2]
    );
    assert_eq!(predict(1, "", false), predict(1, "", true));
    // With many gradient buckets, the shorter stream ends one bucket after the longer one.
    let predict_accumulating = |shared| predict(3, "accumulate = \"whole\"\nbucket_mb = 100\n", shared);
    let accumulating = job(3, "accumulate = \"whole\"\nbucket_mb = 100\nshard = 4\nparallel = { dp = 64 }\n");
    let buckets: Vec<f64> = step_calls(&accumulating, &predict_accumulating(true).layout)
        .into_iter()
        .filter(|call| call.phase == Phase::Gradients)
        .map(|call| call.calls_per_rank())
        .collect();
    assert!(buckets.len() == 2 && buckets[0] == buckets[1] && buckets[0] > 3.0, "{buckets:?}");
    assert_eq!(
        predict_accumulating(true).time - predict_accumulating(false).time,
        Picos((buckets[0] as u64 - 1) * among.0)
    );
}

/// The size of the sharding group has no effect on kernels.
#[test]
fn kernels_do_not_depend_on_the_shard() {
    let compute_time = |shard: u32| {
        let job = job(3, &format!("shard = {shard}\nparallel = {{ dp = 64 }}\n"));
        let layout = Layout::specified_by(&job, 64).unwrap().unwrap();
        let collective_costs = Constant { within: Picos(1), among: Picos(1), share_links: false };
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &collective_costs).unwrap().share_time(Share::Compute)
    };
    assert_eq!(compute_time(8), compute_time(64));
}

/// With sharding groups within a host, only the reduction among hosts uses the network; with groups over two hosts,
/// both use it. PCIe is shared in both cases.
#[test]
fn link_sharing_follows_placement_of_shards() {
    let hosts = rails(4);
    let network = Some("rail,nics_per_node=2,nic=400Gb/s".parse().unwrap());
    let pcie = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("l40s-pcie") }).unwrap();
    for (fabric, shard, expected) in [(&hosts, 8, false), (&hosts, 4, false), (&hosts, 16, true), (&pcie, 4, true)] {
        let job = job(3, &format!("shard = {shard}\nparallel = {{ tp = 1 }}\n"));
        with_machine(fabric, |machine| {
            let layout = Layout::specified_by(&job, machine.ranks.len() as u32).unwrap().unwrap();
            let (costs, estimated) =
                (machine.simulated.restricted_to(job.collectives), EstimatedCosts::new(machine.simulated));
            let share_links = |collective_costs: &dyn CommunicationCostModel| {
                collective_costs.share_links(&layout, Dimension::Data, Dimension::Replica)
            };
            assert_eq!([share_links(&costs), share_links(&estimated)], [expected; 2], "{shard}");
        });
    }
}

/// Returns the number of bytes that leave hosts in a step over all NICs, without framing.
fn inter_host_bytes(fabric: &Fabric, job: &Training) -> f64 {
    let profile = Profile::for_fabric(fabric).unwrap();
    with_machine(fabric, |machine: &Machine<'_>| {
        let layout = Layout::specified_by(job, machine.ranks.len() as u32).unwrap().unwrap();
        let costs = machine.simulated.restricted_to(job.collectives);
        let timed = costs.timed_calls(&layout, &step_calls(job, &layout)).unwrap();
        let is_sent =
            |link: &Link| LinkKind::NETWORK.contains(&link.kind) && fabric.node(link.from).kind == NodeKind::Nic;
        let sent_bytes = |one: &TimedCall| {
            let load = machine.simulated.load(&layout, &[*one], &[]);
            let sent: f64 = fabric.links().filter(|(_, link)| is_sent(link)).map(|(id, _)| load.bytes_on(id)).sum();
            sent * profile.protocol(one.strategy.protocol).wire_efficiency
        };
        timed.iter().map(sent_bytes).sum()
    })
}

/// A ring over all N ranks of H hosts passes each host's NICs once: (N − 1) / N of each layer's weights in the forward
/// and in the backward pass, of its gradients, and of the embedding twice. If states are sharded over the GPUs of a
/// host, each GPU reduces its part of the gradients among H hosts: 2 (H − 1) / H of all gradients.
#[test]
fn sharding_within_hosts_reduces_network_traffic() {
    for (zero, passes, once) in [(3, 3.0, 2.0), (1, 2.0, 2.0)] {
        for hosts in [2, 4] {
            let fabric = rails(hosts);
            let traffic = |shard: &str| {
                inter_host_bytes(
                    &fabric,
                    &job(zero, &format!("{shard}bucket_mb = 400\nmicro_batch = 2\nparallel = {{ pp = 1 }}\n")),
                )
            };
            let (unsharded, sharded) = (traffic(""), traffic("shard = 8\n"));
            let model = job(zero, "parallel = \"auto\"\n").model;
            let embedding = model.embedding_parameters() as f64;
            let layers = model.parameters() as f64 - embedding;
            let (hosts, ranks) = (f64::from(hosts), f64::from(8 * hosts));
            let micro = 64.0 / ranks / 2.0;
            let repetitions = if zero == 3 { micro } else { 1.0 };
            let ring_bytes = hosts * (ranks - 1.0) / ranks * (passes * repetitions * layers + once * embedding);
            let among = 2.0 * (hosts - 1.0) * (repetitions * layers + embedding);
            for (predicted, expected) in [(unsharded, 2.0 * ring_bytes), (sharded, 2.0 * among)] {
                assert!((predicted / expected - 1.0).abs() < 1e-3, "{zero} {hosts}: {predicted} {expected}");
            }
        }
    }
}

/// With one 100 Gb/s NIC for eight GPUs, storing all weights within each host makes the step faster and needs more
/// memory. The advantage is smaller on a faster network.
#[test]
fn sharding_within_hosts_trades_memory_for_time() {
    let gains = ["nics_per_node=1,nic=100Gb/s", "nics_per_node=8,nic=400Gb/s"].map(|network| {
        let network = Some(format!("rail,{network}").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::new("hgx-h100") }).unwrap();
        let [(full_step, full_memory), (sharded_step, sharded_memory)] =
            ["", "shard = 8\n"].map(|shard| best(&fabric, &job(3, &format!("{shard}parallel = {{ dp = 32 }}\n"))));
        assert_eq!(sharded_memory.optimizer.0, full_memory.optimizer.0.div_ceil(4) * 16);
        assert!(
            sharded_memory.total() > full_memory.total() && sharded_memory.activations == full_memory.activations,
            "{sharded_memory:?} {full_memory:?}"
        );
        full_step.time.0 as f64 / sharded_step.time.0 as f64
    });
    assert!(gains[0] > 1.5 && gains[1] < gains[0], "{gains:?}");
}

/// Degrees whose ranks cannot be divided into sharding groups of this size are not examined.
#[test]
fn search_respects_shard_divisibility() {
    let fabric = rails(2);
    for (shard, is_divisible) in [(8, true), (16, true), (3, false), (32, false)] {
        let job = job(3, &format!("shard = {shard}\nparallel = \"auto\"\n"));
        match with_machine(&fabric, |machine| best_step(&job, machine)) {
            Ok((step, _)) => {
                assert!(is_divisible, "{shard}");
                let [shard_size, groups] =
                    [Dimension::Data, Dimension::Replica].map(|dimension| step.layout.size(dimension));
                assert_eq!((shard_size, shard_size * groups % shard), (shard, 0));
            }
            Err(error) => {
                assert!(!is_divisible && error.to_string().contains("replicas by shard"), "{shard}: {error}");
            }
        }
    }
}
