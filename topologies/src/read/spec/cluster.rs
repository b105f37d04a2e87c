//! The `[cluster]` table of a spec.

use super::table::{Table, scalar};
use crate::error::{Result, SourceLocation};
use crate::keys::Keys;
use crate::network_spec::{ClusterSpec, NetworkKind, NetworkSpec};

/// Reads the `[cluster]` table: the node, the number of its copies, and the network if stated.
pub(super) fn read(table: &Table<'_>) -> Result<ClusterSpec> {
    table.expect_keys(&["node", "nodes", "network"])?;
    let node = table.required::<String>("node")?;
    let nodes = table.required::<u32>("nodes")?;
    if nodes.value == 0 {
        return Err(table.origin.invalid(nodes.bytes, "nodes: a cluster has 1 host or more, not 0"));
    }
    let network = table.table("network", "network = { kind = \"rail\" }")?;
    Ok(ClusterSpec {
        node: node.value,
        nodes: nodes.value,
        network: network.as_ref().map(read_network).transpose()?,
        node_location: table.origin.locate(node.bytes),
        nodes_location: table.origin.locate(nodes.bytes),
        network_location: network.map_or_else(SourceLocation::default, |network| network.origin.locate(network.bytes)),
    })
}

fn read_network(table: &Table<'_>) -> Result<NetworkSpec> {
    let known: Vec<&str> = std::iter::once("kind").chain(NetworkSpec::KEYS.iter().map(|key| key.name)).collect();
    table.expect_keys(&known)?;
    let mut network = NetworkSpec::with_kind(table.required::<NetworkKind>("kind")?.value);
    for entry in table.entries().filter(|entry| entry.key != "kind") {
        scalar(entry.value)
            .and_then(|value| network.set(entry.key, &value))
            .map_err(|message| table.origin.invalid(entry.value_bytes, message))?;
    }
    Ok(network)
}
