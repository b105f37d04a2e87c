//! Copies of the states over some of the ranks each: what that saves between hosts, and what it takes of memory and time.

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
fn a_copy_over_all_ranks_is_what_it_is_without_a_shard() {
    let fabric = rails(2);
    for zero in 1..4 {
        let [all, plain] = ["shard = 16\n", ""].map(|shard| job(zero, &format!("{shard}parallel = {{ dp = 16 }}\n")));
        assert_eq!(best(&fabric, &all), best(&fabric, &plain));
    }
}

/// Calls within groups take so long, and those among them.
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

/// Where calls are all that is waited for, gradients of all layers but one are added up among groups while the next layer is gathered
/// and reduced; links that both need, and software that has one stream for both, leave one after the other.
#[test]
fn rows_go_on_at_once_where_nothing_keeps_them() {
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
    // Buckets of gradients, many of them: the shorter row ends one bucket after the longer.
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

/// Kernels are those of a whole layer, whoever adds up what.
#[test]
fn kernels_are_the_same_whatever_the_shard() {
    let of = |shard: u32| {
        let job = job(3, &format!("shard = {shard}\nparallel = {{ dp = 64 }}\n"));
        let layout = Layout::given(&job, 64).unwrap().unwrap();
        let tariff = Constant { within: Picos(1), among: Picos(1), meet: false };
        step(&job, &layout, &SPEEDS, &Efficiency::default(), &tariff).unwrap().of(Share::Compute)
    };
    assert_eq!(of(8), of(64));
}

/// Copies within a host leave the network to what is added up among hosts; those over two hosts do not, nor does PCIe leave its own.
#[test]
fn rows_meet_where_they_go_by_the_same_links() {
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

/// Bytes that leave hosts in a step, without what frames them.
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

/// What goes round all N ranks of H hosts passes each host's NICs once: (N - 1) / N of each layer's weights forward and backward, of its
/// gradients, and of the words' twice. Spread over the GPUs of a host, each adds up its part of the gradients among H: 2 (H - 1) / H of all.
#[test]
fn copies_of_a_host_send_less_to_others() {
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

/// Over one NIC of 100 Gb/s for eight GPUs, weights that stay in a host are worth their memory; the less the faster the network.
#[test]
fn copies_of_a_host_are_faster_over_slow_networks_and_hold_more() {
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

/// Degrees that leave no groups of so many copies are not tried.
#[test]
fn searches_keep_to_what_the_shard_divides() {
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
