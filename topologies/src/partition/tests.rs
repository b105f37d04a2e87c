use proptest::prelude::*;

use super::board::Board;
use super::*;
use crate::arbitrary::comparable_properties;
use crate::route::{PathClass, RouteOptions, Router};
use crate::{FabricRequest, check, load, preset, read, write};

fn cut(preset: &str, partitions: &[&str]) -> Result<Fabric> {
    let partitions: Vec<Partition> = partitions.iter().map(|text| text.parse().unwrap()).collect();
    apply(preset::load(preset).unwrap(), &partitions)
}

fn figures<'f>(fabric: &'f Fabric, id: &str) -> &'f GpuFigures {
    match &fabric.node(fabric.find(id).unwrap()).figures {
        Figures::Gpu(figures) => figures,
        other => panic!("{other:?}"),
    }
}

fn names(fabric: &Fabric) -> Vec<&str> {
    fabric.gpus().iter().map(|&gpu| &*fabric.node(gpu).id).collect()
}

#[test]
fn instances_replace_their_gpu_with_their_share_of_it() {
    let fabric = cut("hgx-h200", &["gpu1=3g.71gb,4g.71gb", "gpu7=7g.141gb"]).unwrap();
    let ranks = ["gpu0", "gpu1:0", "gpu1:1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7:0"];
    assert_eq!(names(&fabric), ranks);
    let part = figures(&fabric, "gpu1:0");
    assert_eq!(part.model.as_deref(), Some("H200 SXM MIG 3g.71gb"));
    assert_eq!((part.sm_count, part.copy_engines), (Some(60), Some(3)));
    assert_eq!((part.memory, part.memory_bandwidth), (Some(Bytes(75_054_940_160)), Some(Bandwidth(2_400_000_000_000))));
    assert_eq!(figures(&fabric, "gpu1:1").sm_count, Some(64));
    assert_eq!(figures(&fabric, "gpu7:0").memory_bandwidth, figures(&fabric, "gpu0").memory_bandwidth);
    assert!(check::check(&fabric).iter().all(|finding| finding.severity == check::Severity::Note));
}

#[test]
fn invalid_partitions_are_rejected_with_a_reason() {
    let error_text = |preset: &str, text: &str| cut(preset, &[text]).unwrap_err().to_string();
    assert!(error_text("hgx-h200", "gpu0=4g.71gb,4g.71gb").contains("need 8 compute slices of 7"));
    assert!(error_text("hgx-h200", "gpu0=3g.71gb,3g.71gb,1g.18gb").contains("need 9 memory slices of 8"));
    let unknown = error_text("hgx-h200", "gpu0=3g.40gb");
    assert!(
        unknown.contains("H200 has 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, 7g.141gb"),
        "{unknown}"
    );
    assert!(error_text("hgx-h200", "gpu0=2g.35gb+me").contains("no MIG profile 2g.35gb+me"));
    assert!(error_text("hgx-h200", "gpu0=1g.18gb+me,1g.18gb+me").contains("2 instances with +me"));
    assert!(error_text("dgx-v100", "gpu0=1g.5gb").contains("of V100 SXM2 32GB are not known"));
    assert!(error_text("mi300x", "gpu0=1g.5gb").contains("not known"));
    assert!(error_text("hgx-h200", "gpu8=1g.18gb").contains("did you mean gpu"));
    assert!(error_text("hgx-h200", "nvswitch0=1g.18gb").contains("nvswitch0 is no GPU"));
    assert!(error_text("rtx-pro-6000-pcie", "gpu0=2g.48gb,2g.48gb,1g.24gb").contains("5 compute slices of 4"));
    let twice = cut("hgx-h200", &["gpu0=1g.18gb", "gpu[0-1]=1g.18gb"]).unwrap_err().to_string();
    assert_eq!(twice, "gpu0 is partitioned twice");
    let mut restricted = preset::load("hgx-h200").unwrap();
    crate::cluster::restrict(&mut restricted, 4).unwrap();
    let unused = apply(restricted, &["gpu5=1g.18gb".parse().unwrap()]).unwrap_err().to_string();
    assert!(unused.contains("gpu5 is not in use"), "{unused}");
    for wrong in
        ["", "gpu0", "=1g.5gb", "gpu0=", "gpu0=1g5gb", "gpu0=1g.5", "gpu0=1g.5gb,", "gpu0=01g.5gb", "gpu0=+1g.5gb"]
    {
        assert!(wrong.parse::<Partition>().is_err(), "{wrong}");
    }
}

#[test]
fn names_without_a_host_apply_to_all_hosts() {
    let two = load(&FabricRequest { nodes: Some(2), gpus: Some(2), ..FabricRequest::new("hgx-h200") }).unwrap();
    let fabric = apply(two.clone(), &["gpu0=3g.71gb,3g.71gb".parse().unwrap()]).unwrap();
    assert_eq!(names(&fabric), ["n0/gpu0:0", "n0/gpu0:1", "n0/gpu1", "n1/gpu0:0", "n1/gpu0:1", "n1/gpu1"]);
    let fabric = apply(two, &["n1/gpu[0-1]=7g.141gb".parse().unwrap()]).unwrap();
    assert_eq!(names(&fabric), ["n0/gpu0", "n0/gpu1", "n1/gpu0:0", "n1/gpu1:0"]);
}

/// Traffic between instances, and between an instance and another GPU, passes host memory and never NVLink.
#[test]
fn instances_communicate_through_host_memory_over_the_link_of_their_gpu() {
    let fabric = cut("hgx-h200", &["gpu0=3g.71gb,4g.71gb", "gpu4=1g.18gb"]).unwrap();
    let router = Router::new(&fabric, RouteOptions::default());
    let [a, b, near, far] = ["gpu0:0", "gpu0:1", "gpu1", "gpu4:0"].map(|id| fabric.find(id).unwrap());
    let links = |from, to| {
        let path = router.path(from, to).unwrap();
        let links: Vec<String> = path.links().map(|link| fabric.link_name(link)).collect();
        (path.class, links.join(" "))
    };
    let up = "gpu0:0->gpu0 gpu0->pcie_switch0 pcie_switch0->cpu0";
    assert_eq!(links(a, b), (PathClass::Phb, format!("{up} cpu0->pcie_switch0 pcie_switch0->gpu0 gpu0->gpu0:1")));
    assert_eq!(links(a, near), (PathClass::Phb, format!("{up} cpu0->pcie_switch1 pcie_switch1->gpu1")));
    let (class, path) = links(a, far);
    assert_eq!((class, path.contains("cpu0->cpu1")), (PathClass::Sys, true), "{path}");
    // Other GPUs keep their NVLinks, and no NVLink route passes a carrier.
    let other = fabric.find("gpu2").unwrap();
    assert_eq!(links(near, other), (PathClass::Nvl, "gpu1->nvswitch0 nvswitch0->gpu2".to_owned()));
    // A NIC accesses the memory of an instance directly.
    let nic = fabric.find("nic0").unwrap();
    assert_eq!(links(a, nic), (PathClass::Pix, "gpu0:0->gpu0 gpu0->pcie_switch0 pcie_switch0->nic0".to_owned()));
    assert_eq!(links(nic, a).1, "nic0->pcie_switch0 pcie_switch0->gpu0 gpu0->gpu0:0");
    // On a GPU attached by C2C, traffic passes the C2C link.
    let grace = cut("gh200", &["gpu0=3g.48gb,4g.48gb"]).unwrap();
    let router = Router::new(&grace, RouteOptions::default());
    let path = router.path(grace.gpus()[0], grace.gpus()[1]).unwrap();
    assert_eq!(path.class, PathClass::C2c);
}

/// A GPU relays over NVLink unless it carries instances.
#[test]
fn carriers_do_not_relay() {
    let text = "[[node]]\nid = \"gpu[0-2]\"\nkind = \"gpu\"\nmodel = \"A30\"\nmemory = \"24 GB\"\n[[node]]\nid = \"cpu\"\nkind = \"cpu\"\n\
        [[link]]\na = \"gpu[0-1]\"\nb = \"gpu[1-2]\"\nkind = \"nvlink\"\n[[link]]\na = \"gpu[0-2]\"\nb = \"cpu\"\nkind = \"pcie\"\n";
    let fabric = crate::read_text(text, "t.toml").unwrap();
    let class = |fabric: &Fabric| {
        let router = Router::new(fabric, RouteOptions::default());
        router.path(fabric.find("gpu0").unwrap(), fabric.find("gpu2").unwrap()).unwrap().class
    };
    assert_eq!(class(&fabric), PathClass::Nvb);
    assert_eq!(class(&apply(fabric, &["gpu1=2g.12gb".parse().unwrap()]).unwrap()), PathClass::Phb);
}

#[test]
fn failed_gpus_take_their_instances_out_of_service() {
    let fabric = cut("hgx-h200", &["gpu1=3g.71gb,4g.71gb"]).unwrap();
    assert_eq!(names(&fabric.with_failed("gpu1").unwrap()).len(), 7);
    assert_eq!(names(&fabric.with_failed("gpu1:0").unwrap())[..2], ["gpu0", "gpu1:1"]);
    // A slowed GPU has slow external links only.
    let slow = fabric.with_slowed("gpu1", 0.5).unwrap();
    let rate = |name: &str| slow.link(slow.find_link(name).unwrap()[0]).bandwidth;
    assert_eq!((rate("gpu1->pcie_switch1"), rate("gpu1->gpu1:0")), (Some(Bandwidth(31_500_000_000)), None));
}

#[test]
fn partitioned_fabrics_read_back_equal() {
    for (preset, partition) in
        [("hgx-h200", "gpu[2-3]=1g.18gb,2g.35gb,4g.71gb"), ("gh200", "gpu1=7g.96gb"), ("a100-pcie", "gpu0=1g.10gb+me")]
    {
        let fabric = cut(preset, &[partition]).unwrap();
        let spec = write::spec::write(&fabric).unwrap();
        let again = read::spec::parse(&spec, "again").unwrap().build_nodes().unwrap();
        assert_eq!(comparable_properties(&fabric), comparable_properties(&again), "{spec}");
        let json = write::json::write(&fabric, &[]).unwrap();
        assert_eq!(comparable_properties(&fabric), comparable_properties(&read::json::parse(&json, "again").unwrap()));
    }
    let spec = write::spec::write(&cut("hgx-h200", &["gpu0=7g.141gb"]).unwrap()).unwrap();
    let carrier = spec.replace("\"gpu0:0\", \"gpu[1-7]\"", "\"gpu0:0\", \"gpu[0-7]\"");
    assert_ne!(spec, carrier);
    let refused = read::spec::parse(&carrier, "again").unwrap().build_nodes().unwrap_err().to_string();
    assert!(refused.contains("its MIG instances are"), "{refused}");
}

/// NVIDIA's placements of a profile: the memory slices (of eight) at which it may start.
fn starts(compute: u32, memory: u32) -> &'static [u32] {
    match (compute, memory) {
        (1, 1) => &[0, 1, 2, 3, 4, 5, 6],
        (1, 2) => &[0, 2, 4, 6],
        (2, 2) => &[0, 2, 4],
        (3, 4) => &[0, 4],
        _ => &[0],
    }
}

fn can_be_placed(parts: &[InstanceShare], used: u32) -> bool {
    let Some((part, rest)) = parts.split_first() else { return true };
    starts(part.compute, part.memory).iter().any(|&start| {
        let occupied = ((1 << part.memory) - 1) << start;
        used & occupied == 0 && can_be_placed(rest, used | occupied)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sums of slices permit exactly what NVIDIA's placements permit, and the instances never exceed their GPU.
    #[test]
    fn profiles_that_fit_by_sum_can_be_placed(board in 0..13usize, picks in proptest::collection::vec(any::<prop::sample::Index>(), 1..9)) {
        let board = Board::all().nth(board).unwrap();
        let known = board.every_profile();
        let mut profiles: Vec<MigProfile> = picks.iter().map(|pick| *pick.get(&known)).collect();
        for profile in &mut profiles {
            profile.media = profile::MediaEngines::Default;
        }
        profiles.sort_by_key(|profile| std::cmp::Reverse((profile.slices, profile.gigabytes)));
        let gpu = GpuFigures { sm_count: Some(132), memory: Some(Bytes(8000)), ..GpuFigures::default() };
        match board.instance_shares(&profiles) {
            Ok(parts) => {
                if parts[0].memory_slices == 8 {
                    prop_assert!(can_be_placed(&parts, 0), "{profiles:?}");
                }
                let shares: Vec<GpuFigures> = profiles.iter().zip(parts).map(|(profile, part)| instance_figures(&gpu, *profile, part)).collect();
                prop_assert!(shares.iter().map(|share| share.memory.unwrap().0).sum::<u64>() <= 8000);
                prop_assert!(shares.iter().map(|share| share.sm_count.unwrap()).sum::<u32>() <= 132, "{shares:?}");
            }
            Err(_) => {
                let sum = |slices: fn(&MigProfile) -> u32| profiles.iter().map(slices).sum::<u32>();
                let (_, largest) = (sum(|profile| profile.slices), board.every_profile().iter().map(|p| p.gigabytes).max().unwrap());
                prop_assert!(sum(|profile| profile.slices) > 4 || sum(|profile| profile.gigabytes) * 10 > largest * 9);
            }
        }
    }

    #[test]
    fn profiles_read_back_from_their_names(slices in 1..8u32, gigabytes in 1..300u32, media in any::<bool>()) {
        let media = if media { profile::MediaEngines::Extended } else { profile::MediaEngines::Default };
        let profile = MigProfile { slices, gigabytes, media };
        prop_assert_eq!(profile.to_string().parse(), Ok(profile));
    }

    #[test]
    fn any_text_is_a_partition_or_an_error(text in "\\PC{0,24}") {
        let _ = text.parse::<Partition>();
    }
}
