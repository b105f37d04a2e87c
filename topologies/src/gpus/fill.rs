//! Filling in of figures that a file omits, from the table of GPU models.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::evidence::Vendor;
use super::{Evidence, GpuModel, find_by_pci, models, name};
use crate::error::{Error, Result};
use crate::fabric::{FabricBuilder, Figures, GpuFigures, LinkKind, NodeId, NodeKind, SwitchFigures};

/// The model that the figures name. `None` if the table does not contain it, or if its compute capability contradicts
/// the figures.
#[must_use]
pub fn find_model(figures: &GpuFigures) -> Option<&'static GpuModel> {
    let candidates = name::find(figures.model.as_deref()?);
    let fits =
        |model: &&&GpuModel| figures.compute_capability.is_none_or(|capability| capability == model.compute_capability);
    // A truncated name is disambiguated by memory size.
    let memory_difference = |model: &&GpuModel| match (figures.memory, model.memory) {
        (Some(reported), Some(nominal)) => reported.0.abs_diff(nominal.0),
        _ => 0,
    };
    candidates.iter().filter(fits).copied().min_by_key(memory_difference)
}

/// Fills in those figures that `known` lacks with the figures of a model.
pub(crate) fn complete_figures(mut known: GpuFigures, model: &GpuModel) -> GpuFigures {
    let model_figures = model.figures();
    known.model = known.model.or(model_figures.model);
    known.compute_capability = known.compute_capability.or(model_figures.compute_capability);
    known.sm_count = known.sm_count.or(model_figures.sm_count);
    known.memory = known.memory.or(model_figures.memory);
    known.memory_bandwidth = known.memory_bandwidth.or(model_figures.memory_bandwidth);
    known.copy_engines = known.copy_engines.or(model_figures.copy_engines);
    known.bf16_tflops = known.bf16_tflops.or(model_figures.bf16_tflops);
    known
}

/// Known figures of a GPU; `None` if the device is not a GPU (a MIG instance, for example).
fn gpu_figures(builder: &FabricBuilder, id: NodeId) -> Option<GpuFigures> {
    let node = builder.get(id);
    match &node.figures {
        Figures::Gpu(figures) if node.kind == NodeKind::Gpu => Some((**figures).clone()),
        Figures::None if node.kind == NodeKind::Gpu => Some(GpuFigures::default()),
        _ => None,
    }
}

/// Completes the figures of GPUs whose model is known by name, and of the NVSwitches between them.
pub(crate) fn complete(builder: &mut FabricBuilder) {
    // Copies of a GPU share their figures, so that one look-up is enough for all of them.
    let mut known: FxHashMap<*const GpuFigures, Option<Arc<GpuFigures>>> = FxHashMap::default();
    for id in builder.ids() {
        let node = builder.get(id);
        let Figures::Gpu(figures) = &node.figures else { continue };
        if node.kind != NodeKind::Gpu {
            continue;
        }
        let filled = known.entry(Arc::as_ptr(figures)).or_insert_with(|| {
            let filled = complete_figures((**figures).clone(), find_model(figures)?);
            (filled != **figures).then(|| Arc::new(filled))
        });
        if let Some(filled) = filled.clone() {
            builder.set_figures(id, Figures::Gpu(filled));
        }
    }
    complete_switches(builder, |figures| find_model(figures).is_some());
}

/// Sets in-network reduction and multicast of NVSwitches that do not state it, from the GPU model attached to them. A
/// switch is left unchanged unless `known` is true for the figures of all its GPUs.
pub(crate) fn complete_switches(builder: &mut FabricBuilder, known: impl Fn(&GpuFigures) -> bool) {
    for id in builder.ids() {
        let node = builder.get(id);
        let mut figures = match &node.figures {
            _ if node.kind != NodeKind::Nvswitch => continue,
            Figures::Switch(figures) => (**figures).clone(),
            _ => SwitchFigures::default(),
        };
        if figures.multicast.is_some() {
            continue;
        }
        let gpus: Vec<GpuFigures> =
            builder.neighbours(id).into_iter().filter_map(|gpu| gpu_figures(builder, gpu)).collect();
        let Some(first) = gpus.first().filter(|_| gpus.iter().all(&known)) else { continue };
        let with_switch = |model: &&GpuModel| model.multicast_switch.is_some();
        let find_by_capability = || {
            let same = |model: &&GpuModel| Some(model.compute_capability) == first.compute_capability;
            models().iter().filter(with_switch).find(same)
        };
        let model = find_model(first).filter(with_switch).or_else(find_by_capability);
        // Every NVSwitch since Hopper supports multicast, including later generations that the table does not contain.
        let is_later = first.compute_capability.is_some_and(|capability| (91..900).contains(&capability));
        if model.is_none() && !is_later {
            continue;
        }
        figures.multicast = Some(true);
        figures.model = figures.model.or_else(|| model.and_then(|model| model.multicast_switch.clone()));
        builder.set_figures(id, Figures::Switch(Arc::new(figures)));
    }
}

/// Sets the GPU model that a user names and completes the figures.
///
/// # Errors
/// [`Error::Request`] if the file states another model or capability.
pub(crate) fn set_model(builder: &mut FabricBuilder, model: &GpuModel) -> Result<()> {
    for id in builder.ids() {
        let Some(figures) = gpu_figures(builder, id) else { continue };
        let contradicts = |contradiction: String| {
            let id = &builder.get(id).id;
            Error::Request(format!("GPU model {}: {id} {contradiction}", model.name))
        };
        if let Some(stated) = &figures.model
            && !name::find(stated).iter().any(|stated| stated.name == model.name)
        {
            return Err(contradicts(format!("is a {stated}, as the fabric says")));
        }
        if let Some(stated) = figures.compute_capability.filter(|&stated| stated != model.compute_capability) {
            let (stated, expected) = (super::format_capability(stated), model.capability());
            return Err(contradicts(format!("has compute capability {stated}, as the fabric says, not {expected}")));
        }
        // The name in the file may be truncated.
        let figures = GpuFigures { model: Some(model.name.clone()), ..figures };
        builder.set_figures(id, Figures::Gpu(Arc::new(complete_figures(figures, model))));
    }
    complete_switches(builder, |figures| find_model(figures).is_some());
    builder.gpu_candidates(Vec::new());
    Ok(())
}

/// Identifies the GPUs of a machine's own file, completes their figures, and adds warnings about assumptions. Models
/// that remain possible become the candidates of the fabric.
pub(crate) fn identify(builder: &mut FabricBuilder) {
    identify_gpus(builder, Vendor::Nvidia, FigureSet::Figures);
}

/// Variant of [`identify`] for specs, whose own figures take precedence. It sets only the compute capability, which the
/// cost model requires.
pub(crate) fn identify_capability(builder: &mut FabricBuilder) {
    identify_gpus(builder, Vendor::Nvidia, FigureSet::Capability);
}

/// Figures with which a GPU of identified model is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FigureSet {
    /// All figures, of the first candidate if several remain (but not its model and memory), and multicast of the
    /// NVSwitches.
    Figures,
    /// The compute capability only.
    Capability,
}

/// Variant of [`identify`] for files written by AMD's tools.
pub(crate) fn identify_amd(builder: &mut FabricBuilder) {
    identify_gpus(builder, Vendor::Amd, FigureSet::Figures);
}

fn identify_gpus(builder: &mut FabricBuilder, vendor: Vendor, filled: FigureSet) {
    complete(builder);
    let gpus: Vec<(NodeId, GpuFigures)> =
        builder.ids().into_iter().filter_map(|id| gpu_figures(builder, id).map(|figures| (id, figures))).collect();
    // Machines have GPUs of one model, so a named GPU identifies the others.
    let named: Vec<&'static GpuModel> = gpus.iter().filter_map(|(_, figures)| find_model(figures)).collect();
    let (nameless, evidence) = (unidentified_gpus(&gpus), Evidence { vendor, ..evidence(builder, &gpus) });
    if nameless.is_empty() {
        return;
    }
    if let Some(&first) = named.first().filter(|first| named.iter().all(|model| model.name == first.name)) {
        let fits = |figures: &GpuFigures| {
            figures.compute_capability.is_none_or(|capability| capability == first.compute_capability)
        };
        for &(id, ref figures) in nameless.iter().filter(|(_, figures)| fits(figures)) {
            builder.set_figures(id, Figures::Gpu(Arc::new(complete_figures(figures.clone(), first))));
        }
        complete_switches(builder, |_| true);
        return;
    }
    let (candidates, why) = match evidence.likely_candidates() {
        Some((candidates, why)) => (candidates, Some(why)),
        None => (evidence.candidates(), None),
    };
    // An observed number of links above that of every model is ignored.
    let any = || Evidence { nvlinks: 0, ..evidence }.candidates();
    let candidates = if candidates.is_empty() && evidence.capability.is_none() { any() } else { candidates };
    let Some(&first) = candidates.first() else { return complete_switches(builder, |_| true) };
    let names = || candidates.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    let same_capability = candidates.iter().all(|model| model.compute_capability == first.compute_capability);
    if !same_capability {
        let fitting = if candidates.len() > MAX_LISTED {
            format!("{} models fit, see `list gpus`", candidates.len())
        } else {
            names()
        };
        builder.warn(format!("the GPU model is unknown; name one by --gpu-model: {fitting}"));
        builder.gpu_candidates(candidates.iter().map(|model| model.name.clone()).collect());
        return;
    }
    if let Some(why) = why {
        let generation = generation(first.compute_capability);
        builder.warn(format!("the GPUs are assumed to be {generation}, based on {why} (--gpu-model names another)"));
    }
    if let [_, _, ..] = *candidates {
        builder.warn(format!(
            "the GPUs are one of {} ({}); what differs is {}'s; --gpu-model names one",
            names(),
            first.capability(),
            first.name
        ));
        builder.gpu_candidates(candidates.iter().map(|model| model.name.clone()).collect());
    }
    if filled == FigureSet::Capability {
        for (id, figures) in nameless {
            let known = GpuFigures { compute_capability: Some(first.compute_capability), ..figures };
            builder.set_figures(id, Figures::Gpu(Arc::new(known)));
        }
        return;
    }
    for (id, figures) in nameless {
        let known =
            GpuFigures { model: figures.model.clone(), memory: figures.memory, ..complete_figures(figures, first) };
        let known = if let [only] = *candidates { complete_figures(known, only) } else { known };
        builder.set_figures(id, Figures::Gpu(Arc::new(known)));
    }
    complete_switches(builder, |_| true);
}

/// Maximum number of candidates listed in a warning.
const MAX_LISTED: usize = 12;

/// GPUs whose model is unknown and whose figures are incomplete.
fn unidentified_gpus(gpus: &[(NodeId, GpuFigures)]) -> Vec<(NodeId, GpuFigures)> {
    let open = |figures: &GpuFigures| figures.model.is_none() || figures.compute_capability.is_none();
    gpus.iter().filter(|(_, figures)| find_model(figures).is_none() && open(figures)).cloned().collect()
}

/// Collects the evidence of the GPU model from the links and figures of the GPUs.
fn evidence(builder: &FabricBuilder, gpus: &[(NodeId, GpuFigures)]) -> Evidence {
    let links =
        |id: NodeId, kind: LinkKind| builder.outgoing_links(id).into_iter().filter(move |link| link.kind == kind);
    let nvlinks = |id: NodeId| links(id, LinkKind::Nvlink).map(|link| u32::from(link.lanes)).sum::<u32>();
    let memory = gpus.iter().find_map(|(_, figures)| figures.memory);
    let bridged = |id: NodeId| {
        let mut ends = links(id, LinkKind::Nvlink).map(|link| builder.get(link.to).kind);
        let first = ends.next();
        first.is_none() || (first == Some(NodeKind::Gpu) && ends.next().is_none())
    };
    Evidence {
        bridged: gpus.iter().all(|&(id, _)| bridged(id)),
        capability: gpus.iter().find_map(|(_, figures)| figures.compute_capability),
        nvlinks: gpus.iter().map(|&(id, _)| nvlinks(id)).max().unwrap_or(0),
        has_c2c: gpus.iter().any(|&(id, _)| links(id, LinkKind::C2c).next().is_some()),
        memory,
        vendor: Vendor::Nvidia,
    }
}

/// NVIDIA's name of the GPU generation with a compute capability × 10; `AMD's` for gfx numbers.
pub(crate) fn generation(capability: u32) -> &'static str {
    match capability {
        ..=69 => "Pascal",
        70..=79 => "Volta",
        80..=88 => "Ampere",
        89 => "Ada",
        90..=99 => "Hopper",
        100..=899 => "Blackwell",
        _ => "AMD's",
    }
}

/// The model with these PCI ids. `joined` has 64 bits as in the reader of topology files, with vendor and device at the
/// top.
pub(crate) fn model_by_pci_id(joined: u64) -> Option<&'static GpuModel> {
    find_by_pci((joined >> 48) as u32, (joined >> 32) as u32 & 0xffff)
}
