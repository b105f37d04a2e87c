//! Templates: a schedule folded once for many sizes gives each size the result of its own simulation.

use fabricast_planner::algorithm::{Algorithm, Shape};
use fabricast_sim::Folding;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{BufferUse, Call, Collective, Protocol, Rank};
use fabricast_sim::template::{Outline, Template};
use fabricast_sim::timeline::Utilization;
use fabricast_topologies::Bytes;
use proptest::prelude::*;
use proptest::sample::select;

use crate::generators::Case;
use crate::network;
use crate::worlds::{Plant, World, orders, scenes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// A schedule folded for one size predicts, for every other size with the same chunking on at least as many
    /// blocks, the result of that size's own simulation; and no time is below its lower bound.
    #[test]
    fn template_predictions_equal_simulations(
        scene in scenes(16),
        order in orders(),
        several in any::<bool>(),
        bytes in 1u64..10_000_000,
        threads in select(vec![None, Some(64u16), Some(320)]),
        network in prop_oneof![1 => Just(None), 3 => network::costs().prop_map(Some)],
    ) {
        let order = if several { order } else { order.in_one_loop(order.bytes) };
        let world = World { delays: Vec::new(), ..scene.world() };
        let own = world.profile.network;
        let world = World {
            profile: Profile { network: network.unwrap_or(own), ..world.profile },
            ..world
        };
        let (router, placement) = (world.router(), world.placement());
        let setting = Setting {
            fabric: &world.fabric,
            router: &router,
            placement: &placement,
            profile: &world.profile,
            delays: &[],
        };
        let case = order.over(world.ranks(), world.per_host());
        let header = case.generator().header().clone();
        let Some(outline) = Outline::of(&*case.generator(), setting) else { return Ok(()) };
        // Another protocol first: templates of similar schedules are reused for the next.
        let _ = Template::of(&outline, Protocol::Ll, 1, setting);
        let Ok(Some(template)) = Template::of(&outline, header.protocol, 1, setting) else { return Ok(()) };
        for order in [order.clone(), order.in_one_loop(bytes)] {
            let mut case = order.over(world.ranks(), world.per_host());
            case.shape.threads = threads;
            let generator = case.generator();
            let other = Outline::of(&*generator, setting).map(|outline| outline.print());
            let other = other.filter(|other| other.of_block() == outline.print().of_block());
            let Some(other) = other.filter(|other| template.fits(generator.header(), other.blocks())) else { continue };
            let found = template.run(generator.header(), other.blocks(), &world.profile, Watch::default()).unwrap();
            let whole = world.timed(&*generator, Folding::Off, None).unwrap();
            if !template.is_exact() {
                let least = template.least(generator.header(), other.blocks(), &world.profile);
                prop_assert!(least.is_none_or(|least| least <= whole.time - whole.launch));
                continue;
            }
            prop_assert_eq!(found.end, whole.time - whole.launch);
            prop_assert_eq!(found.bytes, whole.costs.bandwidth + whole.costs.waiting);
            let busiest = Utilization::busiest(&whole.utilization).map(|one| (one.resource, one.fraction));
            prop_assert_eq!(found.busiest.filter(|one| one.1 > 0.0), busiest.filter(|one| one.1 > 0.0));
            let least = template.least(generator.header(), other.blocks(), &world.profile);
            prop_assert!(least.is_none_or(|least| least <= found.end), "{least:?} and {:?}", found.end);
        }
    }
}

/// A template of one channel predicts schedules with more channels where a rank has messages for more peers (eleven)
/// than one channel serves concurrently (eight).
#[test]
fn single_channel_templates_predict_exchanges_on_many_channels() {
    let fabric = Plant::Hosts { preset: "hgx-h200", nodes: 3, gpus: 4, network: "rail" }.build();
    let world = World { profile: Profile::named("nccl-2.28-h200").unwrap(), ..World::ideal(fabric) };
    let (router, placement) = (world.router(), world.placement());
    let setting =
        Setting { fabric: &world.fabric, router: &router, placement: &placement, profile: &world.profile, delays: &[] };
    for collective in [Collective::AllToAll, Collective::AllToAllV] {
        let exchange = |channels: u16| {
            let bytes = Bytes(if collective == Collective::AllToAllV { 12 * 12 * 100_003 } else { 12 * 100_003 });
            let call = Call { collective, bytes, ranks: 12, root: Rank(0), buffers: BufferUse::OutOfPlace };
            let shape = Shape { channels, ranks_per_node: 4, ..Shape::new(call, Protocol::Simple) };
            Case { algorithm: Algorithm::Direct, shape }.generator()
        };
        let outline = Outline::of(&*exchange(1), setting).unwrap();
        let template = Template::of(&outline, Protocol::Simple, 1, setting).unwrap().unwrap();
        for channels in [1, 2, 4] {
            let generator = exchange(channels);
            assert!(template.is_exact() && template.fits(generator.header(), channels));
            let found = template.run(generator.header(), channels, &world.profile, Watch::default()).unwrap();
            let whole = world.timed(&*generator, Folding::Off, None).unwrap();
            assert_eq!(found.end, whole.time - whole.launch, "{collective} on {channels}");
        }
    }
}
