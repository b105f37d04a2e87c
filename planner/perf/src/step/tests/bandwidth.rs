//! Tests that a higher bandwidth is never slower: steps and calls over networks of the same kind with different rates.

use fabricast_sim::schedule::Collective;
use fabricast_topologies::{Bytes, Fabric, FabricRequest, Picos, load};

use super::{steps, with_machine};
use crate::communication::{CommunicationCostModel, Exchange};
use fabricast_workload::job::{CollectiveCandidates, Degrees, Dimension, Layout};

/// Returns two hosts with eight NICs of `rate` Gb/s each.
fn hosts(preset: &str, rate: u32) -> Fabric {
    let network = Some(format!("rail,nics_per_node=8,nic={rate}Gb/s").parse().unwrap());
    load(&FabricRequest { nodes: Some(2), network, ..FabricRequest::new(preset) }).unwrap()
}

/// Returns the times to transfer 8 KiB and 32 MiB to the next host.
fn transfer_times(fabric: &Fabric) -> Vec<Picos> {
    let layout = Layout { degrees: Degrees { tensor: 8, pipeline: 2, ..Degrees::default() } };
    let exchange =
        |bytes| Exchange { dimension: Dimension::Pipeline, collective: Collective::SendRecv, bytes: Bytes(bytes) };
    with_machine(fabric, |machine| {
        let costs = machine.simulated.restricted_to(CollectiveCandidates::Library);
        [8 << 10, 32 << 20].map(|bytes| costs.time(&layout, exchange(bytes)).unwrap()).to_vec()
    })
}

/// Step and transfer times decrease with the rate of the NICs, so no rate is mistaken for another kind of network.
/// (Strategies change with the rate, and a faster strategy may slow overlapping kernels more: steps may differ by 1 %.)
#[test]
fn faster_nics_are_not_slower() {
    let job = "name = \"j\"\nglobal_batch = 32\nflash_attention = true\nparallel = { tp = 1 }\n\
               model = { layers = 24, hidden = 2048, heads = 16, ffn = 8192, vocab = 50304, seq = 2048 }\n";
    for preset in ["hgx-h100", "dgx-a100"] {
        let mut last: Option<Vec<Picos>> = None;
        for rate in [100, 150, 190, 200, 210, 300, 400] {
            let fabric = hosts(preset, rate);
            let mut times = transfer_times(&fabric);
            times.extend(steps(&fabric, &[job.to_owned()]).iter().map(|step| step.time));
            if let Some(before) = last.replace(times.clone()) {
                let longer = |(now, then): (&Picos, &Picos)| now.0 as f64 > 1.01 * then.0 as f64;
                assert!(!times.iter().zip(&before).any(longer), "{preset} {rate}: {times:?} {before:?}");
            }
        }
    }
}
