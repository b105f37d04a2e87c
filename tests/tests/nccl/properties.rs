//! Properties for random communicators: there is a choice for every size, the choice has the lowest cost in the table,
//! and its kernel is within limits.

use fabricast_libraries::nccl::Pattern;
use fabricast_libraries::nccl::{
    Algo, AlgoProto, Communicator, CostTable, Cpu, Function, MAX_CHANNELS, NcclVersion, Proto, Request, Settings,
    expected_time, kernel, pick,
};
use fabricast_topologies::Bytes;
use fabricast_topologies::route::PathClass;
use proptest::prelude::*;

use super::{communicator, graph};

fn communicators() -> impl Strategy<Value = Communicator> {
    let class = prop::sample::select(PathClass::ALL.to_vec());
    let cpu = prop::sample::select(vec![Cpu::Intel, Cpu::Amd, Cpu::Power, Cpu::Other]);
    let sm = prop::sample::select(vec![60, 70, 80, 86, 90, 100, 120]);
    (1u32..=64, 1u32..=16, sm, 1u16..=32, 1u32..=96, class.clone(), class, cpu, 0u16..=16).prop_map(
        |(nodes, per_node, sm, channels, speed, inside, between, cpu, heads)| {
            let mut comm = communicator(nodes, per_node, sm, channels, f64::from(speed));
            comm.cpu = cpu;
            for graph in [&mut comm.graphs.ring, &mut comm.graphs.tree] {
                (graph.intra_class, graph.inter_class) = (inside, between);
            }
            comm.graphs.nvls = (heads > 0 && sm >= 90).then(|| graph(Pattern::Nvls, heads, 40.0, 60.0));
            comm
        },
    )
}

fn versions() -> impl Strategy<Value = NcclVersion> {
    prop::sample::select(NcclVersion::ALL.to_vec())
}

fn functions() -> impl Strategy<Value = Function> {
    prop::sample::select(Function::ALL.to_vec())
}

fn sizes() -> impl Strategy<Value = u64> {
    (0u32..=40, 0.0f64..1.0).prop_map(|(power, part)| (1u64 << power) + ((1u64 << power) as f64 * part) as u64)
}

proptest! {
    #[test]
    fn every_size_has_a_choice_and_it_is_the_cheapest(
        comm in communicators(), version in versions(), function in functions(), bytes in sizes(),
    ) {
        let settings = Settings::default();
        let table = CostTable::new(&comm, version, &settings);
        let request = Request::new(function, Bytes(bytes));
        let channels = comm.channels(&settings);
        let choice = pick(&comm, channels, version, &table, &request).expect("a choice");
        if comm.ranks > 1 {
            let times = Algo::ALL.into_iter().flat_map(|algo| Proto::ALL.map(|proto| (algo, proto)));
            let min_time = times.filter_map(|(algo, proto)| expected_time(&comm, channels, version, &table, &request, algo, proto)).min();
            prop_assert_eq!(Some(choice.time), min_time);
        }
        let kernel = kernel(&comm, version, &settings, &table, &request, AlgoProto { algo: choice.algo, proto: choice.proto });
        prop_assert!(kernel.channels >= 1 && kernel.channels <= kernel.max_channels, "{:?}", kernel);
        prop_assert!(kernel.max_channels <= MAX_CHANNELS);
        prop_assert!((96..=640).contains(&kernel.threads), "{:?}", kernel);
        prop_assert!(kernel.chunk.0 > 0 && kernel.loops >= 1, "{:?}", kernel);
    }

    #[test]
    fn settings_bound_channels(
        comm in communicators(), min_ctas in 1u16..=64, max_ctas in 1u16..=64, function in functions(), bytes in sizes(),
    ) {
        let (settings, unknown) = Settings::parse(&format!("NCCL_MIN_CTAS={min_ctas} NCCL_MAX_CTAS={max_ctas}")).unwrap();
        prop_assert!(unknown.is_empty());
        let channels = comm.channels(&settings);
        prop_assert!(channels <= max_ctas && (channels >= min_ctas || channels == max_ctas));
        let table = CostTable::new(&comm, NcclVersion::V2_28_9, &settings);
        let request = Request::new(function, Bytes(bytes));
        let choice = pick(&comm, channels, NcclVersion::V2_28_9, &table, &request).unwrap();
        let kernel = kernel(&comm, NcclVersion::V2_28_9, &settings, &table, &request, AlgoProto { algo: choice.algo, proto: choice.proto });
        prop_assert!(kernel.channels <= max_ctas, "{:?}", kernel);
    }
}
