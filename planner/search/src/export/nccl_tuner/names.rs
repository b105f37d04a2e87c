//! Names of functions, algorithms and protocols in the CSV table.

use fabricast_sim::schedule::UnknownName;

use fabricast_libraries::nccl::{Algo, Function, Proto};

const FUNCTIONS: [(Function, &str); 5] = [
    (Function::Broadcast, "broadcast"),
    (Function::Reduce, "reduce"),
    (Function::AllGather, "allgather"),
    (Function::ReduceScatter, "reducescatter"),
    (Function::AllReduce, "allreduce"),
];

const ALGOS: [(Algo, &str); 7] = [
    (Algo::Tree, "tree"),
    (Algo::Ring, "ring"),
    (Algo::CollNetDirect, "collnet_direct"),
    (Algo::CollNetChain, "collnet_chain"),
    (Algo::Nvls, "nvls"),
    (Algo::NvlsTree, "nvls_tree"),
    (Algo::Pat, "pat"),
];

const PROTOS: [(Proto, &str); 3] = [(Proto::Ll, "ll"), (Proto::Ll128, "ll128"), (Proto::Simple, "simple")];

fn parse_name<T: Copy, const N: usize>(
    kind: &'static str,
    word: &str,
    table: &[(T, &'static str); N],
) -> Result<T, UnknownName> {
    let known = table.iter().find(|row| row.1 == word).map(|row| row.0);
    known.ok_or_else(|| UnknownName::new(kind, word, &table.map(|row| row.1)))
}

fn name<T: PartialEq>(value: &T, table: &[(T, &'static str)]) -> &'static str {
    table.iter().find(|row| row.0 == *value).map_or("", |row| row.1)
}

pub(in crate::export) fn function(word: &str) -> Result<Function, UnknownName> {
    parse_name("collective_type", word, &FUNCTIONS)
}

pub(in crate::export) fn algo(word: &str) -> Result<Algo, UnknownName> {
    parse_name("algorithm", word, &ALGOS)
}

pub(in crate::export) fn proto(word: &str) -> Result<Proto, UnknownName> {
    parse_name("protocol", word, &PROTOS)
}

pub(in crate::export) fn function_name(function: Function) -> &'static str {
    name(&function, &FUNCTIONS)
}

pub(in crate::export) fn algo_name(algo: Algo) -> &'static str {
    name(&algo, &ALGOS)
}

pub(in crate::export) fn proto_name(proto: Proto) -> &'static str {
    name(&proto, &PROTOS)
}
