//! Torus network: one router per host, with the bandwidth of its NICs divided among its neighbours.

use super::network::NetworkFigures;
use crate::NodeId;
use crate::error::{Error, Result};
use crate::fabric::FabricBuilder;

/// Joins hosts in a torus of `dimensions`. The default is the most cubic shape with this number of hosts.
pub(super) fn join(builder: &mut FabricBuilder, network: &NetworkFigures, hosts: &[Vec<NodeId>]) -> Result<()> {
    let sides: Vec<usize> = match &network.spec.dimensions {
        Some(sides) => sides.iter().map(|&side| side as usize).collect(),
        None => cubic(hosts.len()),
    };
    let product = sides.iter().try_fold(1usize, |product, &side| product.checked_mul(side));
    if product != Some(hosts.len()) {
        let written: Vec<String> = sides.iter().map(ToString::to_string).collect();
        let message = format!("a torus of {} does not hold {} hosts exactly", written.join(" x "), hosts.len());
        return Err(Error::Request(message));
    }
    builder.set_host_grid(sides.iter().filter_map(|&side| u32::try_from(side).ok()).collect());
    let mut routers = Vec::with_capacity(hosts.len());
    for (number, nics) in hosts.iter().enumerate() {
        let router = network.switch(builder, &format!("router{number}"))?;
        for (rail, &nic) in nics.iter().enumerate() {
            network.plug(builder, nic, rail, router);
        }
        routers.push(router);
    }
    // Two cables per dimension; if a side is 2, both lead to the same neighbour.
    let cables: u64 = 2 * sides.iter().filter(|&&side| side > 1).count() as u64;
    let rate = network.uplink_bandwidth(network.host_rate() / cables.max(1));
    let mut stride = 1;
    for &side in &sides {
        for (number, &router) in routers.iter().enumerate() {
            let position = number / stride % side;
            let next = number - position * stride + (position + 1) % side * stride;
            let Some(&neighbour) = routers.get(next) else { continue };
            match side {
                1 => {}
                2 if position == 0 => network.trunk(builder, router, neighbour, 2 * rate),
                2 => {}
                _ => network.trunk(builder, router, neighbour, rate),
            }
        }
        stride *= side;
    }
    Ok(())
}

/// Three sides whose product is `hosts`, as equal as possible.
fn cubic(hosts: usize) -> Vec<usize> {
    let largest = |n: usize, limit: usize| (1..=limit).rev().find(|&side| n.is_multiple_of(side)).unwrap_or(1);
    let first = largest(hosts, (hosts as f64).cbrt().round() as usize);
    let rest = hosts / first.max(1);
    let second = largest(rest, (rest as f64).sqrt().round() as usize);
    vec![rest / second.max(1), second, first]
}

#[cfg(test)]
mod tests {
    use super::cubic;

    #[test]
    fn sides_multiply_to_the_hosts() {
        for hosts in 1..200 {
            assert_eq!(cubic(hosts).iter().product::<usize>(), hosts, "{hosts}");
        }
        assert_eq!(cubic(64), [4, 4, 4]);
        assert_eq!(cubic(7), [7, 1, 1]);
    }
}
