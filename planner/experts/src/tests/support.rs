//! GPUs, links and tokens of kernels.

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{FabricRequest, load};

use crate::{Exchange, ExchangeKernel, ExchangeRanks, RoutingPattern, TokenRouting, TokenType};
use fabricast_sim::profile::Profile;

/// Returns the reason that a kernel does not exchange the tokens of `experts` experts between all GPUs of `nodes` hosts.
fn reason(preset: &str, nodes: u32, kernel: ExchangeKernel, experts: u32) -> Option<String> {
    reason_with(preset, nodes, kernel, experts, TokenType::Fp8)
}

fn reason_with(
    preset: &str,
    nodes: u32,
    kernel: ExchangeKernel,
    experts: u32,
    token_type: TokenType,
) -> Option<String> {
    let network = (nodes > 1).then(|| "rail,nics_per_node=8,nic=400Gb/s".parse().unwrap());
    let fabric = load(&FabricRequest { nodes: Some(nodes), network, ..FabricRequest::new(preset) }).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric).unwrap();
    let ranks = ExchangeRanks::new(&router, fabric.gpus()).unwrap();
    let routing = TokenRouting::new(128, 7168, experts, 8, RoutingPattern::Random).unwrap();
    let exchange =
        Exchange { router: &router, ranks: &ranks, links: &profile.links, routing: &routing, kernel, sms: None };
    exchange.check_support(token_type).err().map(|reason| reason.to_string())
}

/// Normal kernels need NVLink inside a host; low-latency kernels reach peers over PCIe as well.
#[test]
fn kernels_need_gpus_and_links_of_their_library() {
    for kernel in ExchangeKernel::ALL {
        assert_eq!(reason("hgx-h100", 1, kernel, 256), None, "{kernel:?}");
        assert!(reason("dgx-a100", 1, kernel, 256).unwrap().contains("compute capability 9.0"), "{kernel:?}");
        assert!(reason("mi300x", 1, kernel, 256).unwrap().contains("NVIDIA"), "{kernel:?}");
        let without_nvlink = reason("h100-pcie", 1, kernel, 256);
        let low_latency = [ExchangeKernel::DeepEpLowLatency, ExchangeKernel::NcclEpLowLatency, ExchangeKernel::Pplx];
        match low_latency.contains(&kernel) {
            true => assert_eq!(without_nvlink, None, "{kernel:?}"),
            false => assert!(without_nvlink.unwrap().contains("NVLink between all GPUs of a host"), "{kernel:?}"),
        }
        assert!(reason("hgx-h100", 1, kernel, 257).unwrap().contains("257 experts do not divide evenly"), "{kernel:?}");
    }
    assert!(reason("hgx-h100", 2, ExchangeKernel::TensorRtOneSided, 256).unwrap().contains("one NVLink domain"));
    assert_eq!(reason("hgx-h100", 2, ExchangeKernel::DeepEp, 256), None);
}

/// Hopper has no instruction that converts to 4 bits.
#[test]
fn tokens_of_four_bits_need_blackwell() {
    let kernel = ExchangeKernel::TensorRtOneSided;
    let reason = |preset| reason_with(preset, 1, kernel, 256, TokenType::Nvfp4);
    assert!(reason("hgx-h100").unwrap().contains("compute capability 10.0"));
    assert_eq!(reason("hgx-b200"), None);
}
