//! Tests of lowered calls of many loops with smaller chunks at the end: each operation has the work of its chunk, and
//! tables grow with the number of distinct runs, not with that of operations.

use std::collections::BTreeMap;

use fabricast_collectives::algorithm::{Algorithm, Shape};
use fabricast_sim::lower::lower;
use fabricast_sim::profile::Profile;
use fabricast_sim::quantity::Work;
use fabricast_sim::schedule::{Buffer, BufferUse, Call, Collective, Program, Protocol, Rank};
use fabricast_sim::{Folding, ScheduleInstance};
use fabricast_topologies::Bytes;

use crate::generators::Case;
use crate::testbed::{FabricSpec, Testbed};

fn testbed() -> Testbed {
    let fabric = FabricSpec::Hosts { preset: "hgx-h200", nodes: 1, gpus: 4, network: "rail" }.build();
    Testbed { profile: Profile::named("nccl-2.28-h200").unwrap(), ..Testbed::ideal(fabric) }
}

fn ring(bytes: u64) -> Case {
    let buffers = BufferUse::OutOfPlace;
    let call = Call { collective: Collective::AllReduce, bytes: Bytes(bytes), ranks: 4, root: Rank(0), buffers };
    let shape = Shape { channels: 2, chunk: Some(Bytes(1 << 18)), ..Shape::new(call, Protocol::Simple) };
    Case { algorithm: Algorithm::Ring, shape }
}

#[test]
fn runs_with_two_sizes_of_chunks_share_tables() {
    let testbed = testbed();
    let (router, placement) = (testbed.router(), testbed.placement());
    let setting = testbed.environment(&router, &placement);
    // The call has 400 loops, and a last one with chunks a third as large.
    let case = ring((1 << 21) * 400 + (1 << 21) / 3);
    let generator = case.generator();
    let header = generator.header();
    assert!(!header.layout.is_even());
    let lowered = lower(&[ScheduleInstance::new(&*generator, setting)]).unwrap();
    let workload = &lowered.workload;
    let mut work_by_size = BTreeMap::new();
    let mut longest = 0;
    let mut scratch = Program::default();
    for rank in (0..header.call.ranks).map(Rank) {
        let program = generator.read(rank, &mut scratch);
        for (number, run) in (lowered.rank_starts[rank.0 as usize]..).zip(program.runs()) {
            longest = longest.max(run.len as usize);
            let walk = if run.dst_buffer == Buffer::Scratch { run.src } else { run.dst };
            for i in (0..run.len).filter(|_| run.kind.moves_data()) {
                let size = header.layout.size(walk.at(i));
                let key = (size.numerator, size.denominator);
                let work = workload.work(number, i);
                assert_eq!(*work_by_size.entry(key).or_insert(work), work, "{rank:?} {number} {i}");
            }
        }
    }
    let sizes: Vec<Work> = work_by_size.into_values().collect();
    assert_eq!(sizes.len(), 2, "{sizes:?}");
    assert!(longest > 400 && workload.operation_count() > 20 * longest as u64);
    assert!(workload.works.len() < 3 * longest, "{} works", workload.works.len());
    assert!(workload.paces.len() < 20 * longest, "{} paces", workload.paces.len());
}

/// The last loop takes the time of its own chunks: the call is between one without it and one with a complete
/// additional loop.
#[test]
fn last_loop_takes_the_time_of_its_own_chunks() {
    let testbed = testbed();
    let time = |bytes: u64| testbed.run(&*ring(bytes).generator(), Folding::WhereProved).unwrap().time;
    let [without, third, two_thirds, full] = [0, 1, 2, 3].map(|thirds| time((1 << 21) * 40 + (1 << 21) / 3 * thirds));
    assert!(
        without < third && third < two_thirds && two_thirds < full,
        "{without:?} {third:?} {two_thirds:?} {full:?}"
    );
}
