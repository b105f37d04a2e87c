//! Templates: what is folded once for many sizes says what each size's own simulation says.

use fabricast_sim::Folding;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Setting;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::Protocol;
use fabricast_sim::template::{Outline, Template};
use fabricast_sim::timeline::Utilization;
use proptest::prelude::*;
use proptest::sample::select;

use crate::network;
use crate::worlds::{World, orders, scenes};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// A schedule folded for one size says of every other that is cut the same way, on as many blocks or more, what its own
    /// simulation says; and none takes less than it says it does at least.
    #[test]
    fn templates_say_what_runs_say(
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
        // Another protocol first: what is alike with one is tried with the next.
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
