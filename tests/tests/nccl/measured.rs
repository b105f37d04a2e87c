//! Compares with NCCL 2.28.9's log on 8 H200 with NVLS off: every cell of its table, every choice, every channel count.

use fabricast_libraries::nccl::graph::NvlsUse;
use fabricast_libraries::nccl::{
    Algo, AlgoProto, Communicator, CostTable, Function, NcclVersion, PatSetting, Proto, Request, Settings, Unavailable,
    kernel, max_threads,
};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

use super::{Picker, communicator};

const LOG: &str = include_str!("../../data/nccl/h200-2.28.9-no-nvls.txt");

/// Returns the node that wrote the log, described by its topology file alone.
fn h200() -> Picker {
    let path = format!("{}/data/topologies/h200-node.xml", env!("CARGO_MANIFEST_DIR"));
    let fabric = load(&FabricRequest::new(&path)).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    Picker::new(Communicator::from_fabric(&fabric, &router, fabric.gpus(), NvlsUse::Off).unwrap(), NcclVersion::V2_28_9)
}

/// Returns the rows of the log's table: the function or `Max NThreads`, and the cells of three algorithms, one after
/// the other.
fn rows(name: &str) -> Vec<Vec<String>> {
    let rows = LOG.lines().filter(|line| line.split('|').next().is_some_and(|head| head.trim() == name));
    rows.map(|line| line.split('|').skip(1).map(|cell| cell.trim().to_owned()).filter(|c| !c.is_empty()).collect())
        .collect()
}

#[test]
fn cost_table_matches_nccls_log() {
    let picker = h200();
    let mut compared = 0;
    for function in [Function::Broadcast, Function::Reduce, Function::AllGather, Function::AllReduce] {
        let blocks = rows(function.name());
        assert_eq!(blocks.len(), 3, "{function}");
        for (index, text) in blocks.concat().iter().enumerate() {
            let (algo, proto) = (Algo::ALL[index / 3], Proto::ALL[index % 3]);
            let (latency, bandwidth) = text.split_once('/').unwrap();
            let cell = picker.table.cell(function, algo, proto);
            let (us, gb_per_s): (f64, f64) = (latency.trim().parse().unwrap(), bandwidth.trim().parse().unwrap());
            assert!(
                (cell.latency.us() - us).abs() < 0.1,
                "{function} {algo} {proto}: {} µs, logged {us}",
                cell.latency.us()
            );
            assert!(
                (cell.bandwidth.gb_per_s() - gb_per_s).abs() < 0.1,
                "{function} {algo} {proto}: {} GB/s, logged {gb_per_s}",
                cell.bandwidth.gb_per_s()
            );
            assert_eq!(cell.availability.is_ok(), gb_per_s > 0.0, "{function} {algo} {proto}");
            compared += 1;
        }
    }
    assert_eq!(compared, 4 * 21);
}

#[test]
fn threads_match_nccls_log() {
    let picker = h200();
    for (index, text) in rows("Max NThreads").concat().iter().enumerate() {
        let (algo, proto) = (Algo::ALL[index / 3], Proto::ALL[index % 3]);
        let threads = max_threads(&picker.communicator, picker.version, &picker.settings, algo, proto);
        assert_eq!(threads.to_string(), *text, "{algo} {proto}");
    }
}

#[test]
fn choices_and_channel_counts_match_nccls_log() {
    let picker = h200();
    let mut compared = 0;
    for line in LOG.lines().filter(|line| line.starts_with("AllReduce:")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bytes: u64 = words[1].parse().unwrap();
        let last = words[8].rsplit("..").next().unwrap().trim_end_matches('}');
        let pick = picker.pick(Function::AllReduce, bytes);
        assert!(pick.algo.name().eq_ignore_ascii_case(words[5]), "{line}: {pick:?}");
        assert!(pick.proto.name().eq_ignore_ascii_case(words[7]), "{line}: {pick:?}");
        let request = Request::new(Function::AllReduce, Bytes(bytes));
        let chosen = AlgoProto { algo: pick.algo, proto: pick.proto };
        let kernel = kernel(&picker.communicator, picker.version, &picker.settings, &picker.table, &request, chosen);
        assert_eq!((kernel.channels - 1).to_string(), last, "{line}: {kernel:?}");
        compared += 1;
    }
    assert_eq!(compared, 28);
}

#[test]
fn unavailable_strategies_give_a_reason() {
    let picker = h200();
    let availability = |algo, proto| picker.table.cell(Function::AllReduce, algo, proto).availability;
    assert_eq!(availability(Algo::Nvls, Proto::Simple), Err(Unavailable::NoNvls));
    assert_eq!(availability(Algo::CollNetChain, Proto::Simple), Err(Unavailable::NoCollNet));
    assert_eq!(availability(Algo::Nvls, Proto::Ll), Err(Unavailable::NoKernel));
    let gather = picker.table.cell(Function::AllGather, Algo::Pat, Proto::Simple).availability;
    assert_eq!(gather, Err(Unavailable::PatNeedsSingleRankNodes));
}

#[test]
fn unavailable_pat_gives_its_own_reason() {
    let availability = |sm: u32, pat: PatSetting| {
        let settings = Settings { pat, ..Settings::default() };
        let table = CostTable::new(&communicator(4, 1, sm, 2, 12.0), NcclVersion::V2_28_9, &settings);
        table.cell(Function::AllGather, Algo::Pat, Proto::Simple).availability
    };
    assert_eq!(availability(90, PatSetting::Auto), Ok(()));
    assert_eq!(availability(90, PatSetting::Off), Err(Unavailable::PatExcluded));
    assert_eq!(availability(52, PatSetting::Auto), Err(Unavailable::PatNeedsPascal));
    assert_eq!(availability(52, PatSetting::On), Ok(()));
}

/// Returns the out-of-place times of an nccl-tests log: (bytes, µs).
fn log(name: &str) -> Vec<(u64, f64)> {
    let path = format!("{}/../validate/data/h200-node/logs/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<&str>>());
    rows.filter_map(|words| Some((words.first()?.parse().ok()?, words.get(5)?.parse().ok()?))).collect()
}

/// Two GPUs of the same node: the time of a forced strategy equals that of NCCL's own choice only if it is the same
/// strategy. No log of the choices exists, so they are inferred from times.
#[test]
fn choices_on_two_gpus_match_their_times() {
    let path = format!("{}/data/topologies/h200-node.xml", env!("CARGO_MANIFEST_DIR"));
    let fabric = load(&FabricRequest { gpus: Some(2), ..FabricRequest::new(&path) }).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let picker = Picker::new(
        Communicator::from_fabric(&fabric, &router, fabric.gpus(), NvlsUse::Off).unwrap(),
        NcclVersion::V2_28_9,
    );
    let strategies: Vec<(Algo, Proto)> =
        [Algo::Ring, Algo::Tree].into_iter().flat_map(|algo| Proto::ALL.map(|proto| (algo, proto))).collect();
    let forced: Vec<_> = strategies
        .iter()
        .map(|(algo, proto)| log(&format!("g_allreduce_x2_{}_{}", algo.name(), proto.name())))
        .collect();
    let mut compared = 0;
    for (bytes, default_us) in log("g_allreduce_x2_default") {
        // For smaller sizes all strategies are limited by the host to the same time.
        if bytes < 1 << 18 {
            continue;
        }
        let time = |log: &Vec<(u64, f64)>| log.iter().find(|row| row.0 == bytes).map(|row| (row.1 - default_us).abs());
        let distances = forced.iter().zip(&strategies).filter_map(|(log, strategy)| Some((time(log)?, *strategy)));
        let nearest = distances.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1;
        let pick = picker.pick(Function::AllReduce, bytes);
        assert_eq!((pick.algo, pick.proto), nearest, "{bytes}");
        compared += 1;
    }
    assert!(compared >= 10, "{compared}");
}
