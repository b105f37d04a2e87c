//! Hybrid sharding: states sharded within groups of ranks and replicated among them. Traffic between hosts, memory and
//! time.

use fabricast_topologies::fabric::Link;
use fabricast_topologies::{Fabric, FabricRequest, LinkKind, NodeKind, load};

use super::tests::{SPEEDS, on, rails, read};
use super::{
    Efficiency, Estimated, Exchange, Machine, Picos, PlanError, PricedCall, Share, Step, Tariff, best_step, calls, step,
};
use crate::job::{Dimension, Footprint, Layout, Phase, Training};

fn job(zero: u32, more: &str) -> Training {
    read(&format!(
        "name = \"j\"\nglobal_batch = 64\nzero = {zero}\nflash_attention = true\n{more}\
         model = {{ layers = 4, hidden = 4096, heads = 32, vocab = 32000, seq = 2048 }}\n"
    ))
}

fn best(fabric: &Fabric, job: &Training) -> (Step, Footprint) {
    on(fabric, |machine| best_step(job, machine).unwrap())
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
    meet: bool,
}

impl Tariff for Constant {
    fn time(&self, _: &Layout, exchange: Exchange) -> Result<Picos, PlanError> {
        Ok(if exchange.dimension.is_of_replicas() { self.among } else { self.within })
    }

    fn meet(&self, _: &Layout, one: Dimension, other: Dimension) -> bool {
        assert!(!one.is_of_replicas() && other.is_of_replicas());
        self.meet
    }
}

/// If all communication is exposed, the gradients of all layers but one are reduced among groups while the next layer
/// is gathered and reduced. Shared links, or software with a single stream, serialize the two.
#[test]
fn streams_overlap_unless_links_are_shared() {
    let [within, among] = [400_000_000_000, 300_000_000_000].map(Picos);
    let of = |zero: u32, more: &str, meet: bool| {
        let job = job(zero, &format!("{more}shard = 4\nparallel = {{ dp = 64 }}\n"));
        let layout = Layout::given(&job, 64).unwrap().unwrap();
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &Constant { within, among, meet }).unwrap()
    };
    let [at_once, in_turn] = [false, true].map(|meet| of(3, "", meet));
    assert_eq!(in_turn.time - at_once.time, Picos(3 * among.0));
    assert_eq!(in_turn.communication, at_once.communication);
    assert_eq!(
        [false, true].map(|meet| of(3, "overlap = false\n", meet).time),
        [of(3, "overlap = false\n", true).time; 2]
    );
    assert_eq!(of(1, "", false), of(1, "", true));
    // Many gradient buckets: the shorter stream ends one bucket after the longer.
    let whole = |meet| of(3, "accumulate = \"whole\"\nbucket_mb = 100\n", meet);
    let text = job(3, "accumulate = \"whole\"\nbucket_mb = 100\nshard = 4\nparallel = { dp = 64 }\n");
    let buckets: Vec<f64> = calls(&text, &whole(true).layout)
        .into_iter()
        .filter(|call| call.phase == Phase::Gradients)
        .map(|call| call.times())
        .collect();
    assert!(buckets.len() == 2 && buckets[0] == buckets[1] && buckets[0] > 3.0, "{buckets:?}");
    assert_eq!(whole(true).time - whole(false).time, Picos((buckets[0] as u64 - 1) * among.0));
}

/// Kernels do not depend on the sharding group.
#[test]
fn kernels_do_not_depend_on_the_shard() {
    let of = |shard: u32| {
        let job = job(3, &format!("shard = {shard}\nparallel = {{ dp = 64 }}\n"));
        let layout = Layout::given(&job, 64).unwrap().unwrap();
        let tariff = Constant { within: Picos(1), among: Picos(1), meet: false };
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &tariff).unwrap().of(Share::Compute)
    };
    assert_eq!(of(8), of(64));
}

/// Sharding groups within a host leave the network to the reduction among hosts; groups over two hosts do not, and PCIe
/// is shared in both cases.
#[test]
fn link_sharing_follows_placement_of_shards() {
    let hosts = rails(4);
    let network = Some("rail,nics_per_node=2,nic=400Gb/s".parse().unwrap());
    let pcie = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::of("l40s-pcie") }).unwrap();
    for (fabric, shard, expected) in [(&hosts, 8, false), (&hosts, 4, false), (&hosts, 16, true), (&pcie, 4, true)] {
        let job = job(3, &format!("shard = {shard}\nparallel = {{ tp = 1 }}\n"));
        on(fabric, |machine| {
            let layout = Layout::given(&job, machine.ranks.len() as u32).unwrap().unwrap();
            let (allowed, estimated) = (machine.simulated.allowing(job.collectives), Estimated::new(machine.simulated));
            let meet = |tariff: &dyn Tariff| tariff.meet(&layout, Dimension::Data, Dimension::Replica);
            assert_eq!([meet(&allowed), meet(&estimated)], [expected; 2], "{shard}");
        });
    }
}

/// Bytes that leave hosts in a step, without framing.
fn leaves_hosts(fabric: &Fabric, job: &Training) -> f64 {
    on(fabric, |machine: &Machine<'_>| {
        let layout = Layout::given(job, machine.ranks.len() as u32).unwrap().unwrap();
        let allowed = machine.simulated.allowing(job.collectives);
        let priced = allowed.priced(&layout, &calls(job, &layout)).unwrap();
        let is_sent =
            |link: &Link| LinkKind::NETWORK.contains(&link.kind) && fabric.node(link.from).kind == NodeKind::Nic;
        let of = |one: &PricedCall| {
            let load = machine.simulated.load(&layout, &[*one]);
            let sent: f64 = fabric.links().filter(|(_, link)| is_sent(link)).map(|(id, _)| load.of(id)).sum();
            sent * machine.simulated.profile.protocol(one.strategy.protocol).wire_efficiency
        };
        priced.iter().map(of).sum()
    })
}

/// A ring over all N ranks of H hosts passes each host's NICs once: (N - 1) / N of each layer's weights forward and
/// backward, of its gradients, and of the embedding twice. Sharded over the GPUs of a host, each GPU reduces its part
/// of the gradients among H hosts: 2 (H - 1) / H of all.
#[test]
fn sharding_within_hosts_reduces_network_traffic() {
    for (zero, passes, once) in [(3, 3.0, 2.0), (1, 2.0, 2.0)] {
        for hosts in [2, 4] {
            let fabric = rails(hosts);
            let of = |shard: &str| {
                leaves_hosts(
                    &fabric,
                    &job(zero, &format!("{shard}bucket_mb = 400\nmicro_batch = 2\nparallel = {{ pp = 1 }}\n")),
                )
            };
            let (whole, parts) = (of(""), of("shard = 8\n"));
            let model = job(zero, "parallel = \"auto\"\n").model;
            let words = model.embedding_parameters() as f64;
            let layers = model.parameters() as f64 - words;
            let (hosts, ranks) = (f64::from(hosts), f64::from(8 * hosts));
            let micro = 64.0 / ranks / 2.0;
            let each = if zero == 3 { micro } else { 1.0 };
            let round = hosts * (ranks - 1.0) / ranks * (passes * each * layers + once * words);
            let among = 2.0 * (hosts - 1.0) * (each * layers + words);
            for (told, expected) in [(whole, 2.0 * round), (parts, 2.0 * among)] {
                assert!((told / expected - 1.0).abs() < 1e-3, "{zero} {hosts}: {told} {expected}");
            }
        }
    }
}

/// With one 100 Gb/s NIC for eight GPUs, keeping weights inside the host is worth the memory; the gain falls with a
/// faster network.
#[test]
fn sharding_within_hosts_trades_memory_for_time() {
    let gains = ["nics_per_node=1,nic=100Gb/s", "nics_per_node=8,nic=400Gb/s"].map(|network| {
        let network = Some(format!("rail,{network}").parse().unwrap());
        let fabric = load(&FabricRequest { nodes: Some(4), network, ..FabricRequest::of("hgx-h100") }).unwrap();
        let [(whole, all), (parts, own)] =
            ["", "shard = 8\n"].map(|shard| best(&fabric, &job(3, &format!("{shard}parallel = {{ dp = 32 }}\n"))));
        assert_eq!(own.optimizer.0, all.optimizer.0.div_ceil(4) * 16);
        assert!(own.total() > all.total() && own.activations == all.activations, "{own:?} {all:?}");
        whole.time.0 as f64 / parts.time.0 as f64
    });
    assert!(gains[0] > 1.5 && gains[1] < gains[0], "{gains:?}");
}

/// Degrees for which sharding groups of this size do not divide the ranks are not tried.
#[test]
fn search_respects_shard_divisibility() {
    let fabric = rails(2);
    for (shard, found) in [(8, true), (16, true), (3, false), (32, false)] {
        let job = job(3, &format!("shard = {shard}\nparallel = \"auto\"\n"));
        match on(&fabric, |machine| best_step(&job, machine)) {
            Ok((step, _)) => {
                assert!(found, "{shard}");
                let [own, groups] = [Dimension::Data, Dimension::Replica].map(|of| step.layout.size(of));
                assert_eq!((own, own * groups % shard), (shard, 0));
            }
            Err(error) => {
                assert!(!found && error.to_string().contains("copies by shard"), "{shard}: {error}");
            }
        }
    }
}
