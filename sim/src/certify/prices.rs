//! Lower bound that prices of links prove.

use fabricast_topologies::route::{Participants, Router};
use fabricast_topologies::{Fabric, LinkId, NodeId};
use rustc_hash::FxHashMap;

use super::check::{Fraction, TOO_LARGE, used_links};
use super::{Certificate, CertificateError};
use crate::schedule::{Call, Collective};

/// Returns the bound that the prices of a certificate prove, in picoseconds. A schedule moves each block along some path
/// of routes, and pays for every byte on every link at least the price of the cheapest path. In a time T, the links carry
/// bytes that cost at most T times the price of their bandwidth.
pub(super) fn proven_bound(
    certificate: &Certificate,
    call: &Call,
    fabric: &Fabric,
    router: &Router<'_>,
    placement: &[NodeId],
) -> Result<u64, CertificateError> {
    let invalid = |text: String| Err(CertificateError::Prices(text));
    if !certificate.cut.is_empty() {
        return invalid("there is a cut as well".to_owned());
    }
    let used = used_links(router, placement);
    let mut prices: FxHashMap<LinkId, u128> = FxHashMap::default();
    let mut bandwidth = 0u128;
    for (name, &price) in &certificate.prices {
        let links = fabric.find_link(name)?;
        let (&[link], true) = (links.as_slice(), price > 0) else {
            return invalid(format!("{name} is not one direction of a link with a price above 0"));
        };
        let Some(rate) = fabric.link(link).bandwidth else { return invalid(format!("{name} has no rate")) };
        if prices.insert(link, price.into()).is_some() {
            return invalid(format!("{name} is another name of a link that has a price"));
        }
        // Links that no route uses carry nothing, so that their bandwidth need not be paid.
        if used.contains(&link) {
            let cost = u128::from(rate.0).checked_mul(price.into()).ok_or(TOO_LARGE)?;
            bandwidth = bandwidth.checked_add(cost).ok_or(TOO_LARGE)?;
        }
    }
    let costs = path_costs(&prices, router, placement)?;
    let ranks = placement.len();
    let pairs: Vec<(usize, usize)> = match (call.collective, call.root.0 as usize) {
        (Collective::AllToAll, _) => (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))).collect(),
        (Collective::Scatter, root) => (0..ranks).map(|to| (root, to)).collect(),
        (Collective::Gather, root) => (0..ranks).map(|from| (from, root)).collect(),
        (other, _) => return Err(CertificateError::Collective(other)),
    };
    let mut paid = Fraction(0, 1);
    for (from, to) in pairs {
        let Some(cost) = costs.get(from * ranks + to).copied().flatten() else {
            return invalid(format!("rank {from} has no path to rank {to}"));
        };
        paid = paid.add(cost).ok_or(TOO_LARGE)?;
    }
    let bytes = paid.0.checked_mul(call.bytes.0.into()).zip(paid.1.checked_mul(ranks as u128)).ok_or(TOO_LARGE)?;
    let (numerator, denominator) = Fraction::new(bytes.0, bytes.1).picos(bandwidth).ok_or(TOO_LARGE)?;
    Ok(u64::try_from(numerator / denominator).unwrap_or(u64::MAX))
}

/// Price of the cheapest path between each two ranks, through any others, by sender, then receiver (Floyd & Warshall,
/// Comm. ACM 1962).
fn path_costs(
    prices: &FxHashMap<LinkId, u128>,
    router: &Router<'_>,
    placement: &[NodeId],
) -> Result<Vec<Option<Fraction>>, CertificateError> {
    let ranks = placement.len();
    let participants = Participants::new(placement);
    let mut costs = vec![None; ranks * ranks];
    for from in 0..ranks {
        costs[from * ranks + from] = Some(Fraction(0, 1));
        for to in (0..ranks).filter(|&to| to != from) {
            let Ok(path) = router.path_for_participants(&participants, placement[from], placement[to]) else {
                continue;
            };
            let mut cost = Fraction(0, 1);
            for hop in path.hops {
                let price = prices.get(&hop.link).copied().unwrap_or(0);
                let part = price.checked_mul(hop.share.numerator.into()).ok_or(TOO_LARGE)?;
                cost = cost.add(Fraction::new(part, hop.share.denominator.into())).ok_or(TOO_LARGE)?;
            }
            costs[from * ranks + to] = Some(cost);
        }
    }
    for through in 0..ranks {
        for from in 0..ranks {
            for to in 0..ranks {
                let parts = costs[from * ranks + through].zip(costs[through * ranks + to]);
                let Some((first, second)) = parts else { continue };
                let cost = first.add(second).ok_or(TOO_LARGE)?;
                let known = &mut costs[from * ranks + to];
                if known.map_or(Ok(true), |known| cost.is_below(known).ok_or(TOO_LARGE))? {
                    *known = Some(cost);
                }
            }
        }
    }
    Ok(costs)
}
