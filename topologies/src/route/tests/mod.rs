//! Tests of routing: classes and paths on the presets, options, equal-cost paths, failures, and properties of arbitrary
//! fabrics.

mod machines;
mod network;
mod orbits;
mod properties;
mod representative_links;
mod small;
mod transit;

use crate::route::{Path, PathClass, RouteOptions, Router};
use crate::{Fabric, NodeId};

/// The device with this id.
fn find_device(fabric: &Fabric, id: &str) -> NodeId {
    fabric.find(id).unwrap_or_else(|| panic!("no {id}"))
}

/// The path between two devices given by id.
fn find_path(fabric: &Fabric, options: RouteOptions, from: &str, to: &str) -> Path {
    let router = Router::new(fabric, options);
    router.path(find_device(fabric, from), find_device(fabric, to)).unwrap_or_else(|error| panic!("{error}"))
}

fn class(fabric: &Fabric, from: &str, to: &str) -> PathClass {
    find_path(fabric, RouteOptions::default(), from, to).class
}

/// The ids of the devices along a single path, including its ends.
fn stations(fabric: &Fabric, path: &Path) -> Vec<String> {
    let ids = path.hops.iter().map(|hop| fabric.node(fabric.ends(hop.link).1).id.to_string());
    let first = path.hops.first().map(|hop| fabric.node(fabric.ends(hop.link).0).id.to_string());
    first.into_iter().chain(ids).collect()
}

fn spec(text: &str) -> Fabric {
    crate::read_text(text, "test").unwrap_or_else(|error| panic!("{error}"))
}
