//! The front door: from what a user asks for (a name or a file, so many hosts, so many GPUs, a network) to a fabric.

use std::path::Path;

use crate::cluster;
use crate::error::{Error, Result};
use crate::fabric::{Figures, Node, NodeKind};
use crate::gpus::{self, GpuModel};
use crate::network_spec::{ClusterSpec, NetworkSpec};
use crate::read::{self, Topology};
use crate::{Fabric, FabricBuilder, preset};

/// Most files that may include each other by `[cluster] node`.
const DEEPEST: usize = 8;

/// Which fabric, and how much of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricRequest {
    /// A preset's name, or the path of a file: a spec, a topology file of NCCL or RCCL, a matrix of
    /// `nvidia-smi topo -m`, or the JSON of `fabric show`.
    pub fabric: String,
    /// Hosts; absent: the whole preset or file.
    pub nodes: Option<u32>,
    /// GPUs of each host that are ranks; absent: all.
    pub gpus: Option<u32>,
    /// What joins the hosts; absent: what the file says, otherwise a rail network with the preset's own NICs.
    pub network: Option<NetworkSpec>,
    /// The model of the GPUs, where the file does not say: a name of [`gpus::name::find`].
    pub gpu: Option<String>,
}

impl FabricRequest {
    /// The whole of a preset or file.
    #[must_use]
    pub fn of(fabric: &str) -> Self {
        Self { fabric: fabric.to_owned(), ..Self::default() }
    }
}

/// The fabric that a request asks for.
///
/// # Errors
/// [`Error::Unknown`] for a name that is neither preset nor file, [`Error::Unreadable`], [`Error::Syntax`] and
/// [`Error::Invalid`] for files, [`Error::Request`] for hosts, GPUs or a network that cannot be.
pub fn load(request: &FabricRequest) -> Result<Fabric> {
    let source = Source::find(&request.fabric, None)?;
    source.fabric(request, 0)
}

/// The fabric that a text describes, whatever its format; `source` names it in errors.
///
/// # Errors
/// [`Error::Syntax`] and [`Error::Invalid`], each with its place.
pub fn read_text(text: &str, source: &str) -> Result<Fabric> {
    let source = Source { name: source.to_owned(), text: text.to_owned(), folder: None };
    source.fabric(&FabricRequest::default(), 0)
}

/// The same with the hosts, GPUs and network asked for; `request.fabric` names the text in errors.
///
/// # Errors
/// As [`load`].
pub fn read_as(text: &str, request: &FabricRequest) -> Result<Fabric> {
    let source = Source { name: request.fabric.clone(), text: text.to_owned(), folder: None };
    source.fabric(request, 0)
}

/// A text and where it came from.
struct Source {
    name: String,
    text: String,
    /// What paths in it are relative to.
    folder: Option<std::path::PathBuf>,
}

impl Source {
    /// A preset by name, or else a file, relative to `folder` where there is one.
    fn find(name: &str, folder: Option<&Path>) -> Result<Self> {
        if let Some(text) = preset::text(name) {
            return Ok(Self { name: name.to_owned(), text: text.to_owned(), folder: None });
        }
        let path = folder.map_or_else(|| Path::new(name).to_owned(), |folder| folder.join(name));
        // What looks like no path was meant as a name.
        let path_like = name.contains(['/', '\\', '.']) || read::can_be_read(&path);
        if name.is_empty() || !path_like {
            return Err(preset::unknown(name));
        }
        let text = read::text_of_file(&path, read::Limit::TOPOLOGY)?;
        Ok(Self { name: path.display().to_string(), text, folder: path.parent().map(Path::to_owned) })
    }

    fn fabric(&self, request: &FabricRequest, depth: usize) -> Result<Fabric> {
        let gpu = request.gpu.as_deref().map(gpus::name::named).transpose()?;
        let spec = match read::parse_as(&self.text, &self.name, gpu)? {
            Topology::Fabric(fabric) => return expand(&fabric, request),
            Topology::Spec(spec) => spec,
        };
        let Some(inner) = &spec.cluster else {
            return expand(&known(spec.build_nodes()?, gpu)?, request);
        };
        if depth == DEEPEST {
            let message = format!("`{}` includes itself, or too many others", self.name);
            return Err(Error::Invalid { place: inner.node_place.clone(), message, help: None });
        }
        let mut fabric = self.cluster(inner, request, depth)?;
        fabric.name = spec.name.clone();
        let mut builder = FabricBuilder::reopen(fabric);
        spec.add_to(&mut builder)?;
        known(builder.finish(), gpu)
    }

    /// The hosts of a `[cluster]`; the request's wishes go before the file's.
    fn cluster(&self, cluster: &ClusterSpec, request: &FabricRequest, depth: usize) -> Result<Fabric> {
        let here = |error: Error| match error {
            Error::Unknown { .. } => {
                let help = match &error {
                    Error::Unknown { near, .. } if !near.is_empty() => {
                        Some(format!("did you mean {}?", near.join(", ")))
                    }
                    _ => None,
                };
                let message = format!("no preset or file is called `{}`", cluster.node);
                Error::Invalid { place: cluster.node_place.clone(), message, help }
            }
            other => other,
        };
        let host = Self::find(&cluster.node, self.folder.as_deref()).map_err(here)?;
        let host = host.fabric(&FabricRequest { gpu: request.gpu.clone(), ..FabricRequest::default() }, depth + 1)?;
        let nodes = request.nodes.unwrap_or(cluster.nodes);
        let network = request.network.as_ref().or(cluster.network.as_ref());
        let asked = request.nodes.is_some() || request.gpus.is_some() || request.network.is_some();
        cluster::build_with_gpus(&host, nodes, request.gpus, network).map_err(|error| match error {
            // The file's own wishes failed: the fault is in the file.
            Error::Request(message) if !asked => {
                let network = cluster.network.is_some();
                let place = if network { &cluster.network_place } else { &cluster.nodes_place };
                Error::Invalid { place: place.clone(), message, help: None }
            }
            other => other,
        })
    }
}

/// A spec's fabric with the GPUs that a user names, or those that its links leave possible where it states none.
fn known(fabric: Fabric, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    if gpu.is_none() && !states_no_gpu(&fabric) {
        return Ok(fabric);
    }
    let mut builder = FabricBuilder::reopen(fabric);
    match gpu {
        Some(model) => gpus::assume(&mut builder, model)?,
        None => gpus::identify_capability(&mut builder),
    }
    Ok(builder.finish())
}

/// Returns true if there are GPUs and none has a compute capability or candidates.
fn states_no_gpu(fabric: &Fabric) -> bool {
    let states = |node: &Node| matches!(&node.figures, Figures::Gpu(gpu) if gpu.compute_capability.is_some());
    let mut gpus = fabric.nodes().map(|(_, node)| node).filter(|node| node.kind == NodeKind::Gpu).peekable();
    gpus.peek().is_some() && fabric.gpu_candidates().is_empty() && !gpus.any(states)
}

/// Applies hosts, GPUs and network to a fabric that says nothing of them itself.
/// So much of `fabric` as a request asks for, or so many copies of it, whatever the request calls it: for a fabric that
/// is neither preset nor file.
///
/// # Errors
/// [`Error::Request`] for hosts, GPUs or a network that cannot be.
pub fn expand(fabric: &Fabric, request: &FabricRequest) -> Result<Fabric> {
    let hosts = hosts_with_gpus(fabric);
    match request.nodes {
        Some(nodes) => cluster::build_with_gpus(fabric, nodes, request.gpus, request.network.as_ref()),
        None if request.network.is_some() && hosts > 1 => {
            cluster::build_with_gpus(fabric, hosts, request.gpus, request.network.as_ref())
        }
        None => {
            let mut fabric = fabric.clone();
            if let Some(gpus) = request.gpus {
                cluster::restrict(&mut fabric, gpus)?;
            }
            Ok(fabric)
        }
    }
}

fn hosts_with_gpus(fabric: &Fabric) -> u32 {
    let mut hosts: Vec<u32> = fabric.gpus().iter().map(|&gpu| fabric.node(gpu).host.0).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.len() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NetworkKind;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn names_and_files_are_told_apart() {
        assert_eq!(load(&FabricRequest::of("hgx-h200")).unwrap().gpus().len(), 8);
        let Err(Error::Unknown { near, .. }) = load(&FabricRequest::of("hgxh200")) else { panic!("loaded") };
        assert_eq!(near.first().map(String::as_str), Some("hgx-h200"));
        assert!(matches!(load(&FabricRequest::of("no/such.toml")), Err(Error::Unreadable { .. })));
        assert!(matches!(load(&FabricRequest::of("")), Err(Error::Unknown { .. })));
    }

    #[test]
    fn files_are_read_by_their_content() {
        let folder = folder();
        let path = folder.path().join("fabric.anything");
        std::fs::write(&path, preset::text("l40s-pcie").unwrap()).unwrap();
        let request = FabricRequest { gpus: Some(4), ..FabricRequest::of(path.to_str().unwrap()) };
        assert_eq!(load(&request).unwrap().gpus().len(), 4);
        std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        let error = load(&FabricRequest::of(path.to_str().unwrap())).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
        assert!(matches!(load(&FabricRequest::of(folder.path().to_str().unwrap())), Err(Error::Unreadable { .. })));
    }

    #[test]
    fn clusters_in_files_expand_and_requests_go_first() {
        let folder = folder();
        let path = folder.path().join("c.toml");
        let text = "[cluster]\nnode = \"hgx-h200\"\nnodes = 3\n[[node]]\nid = \"extra\"\nkind = \"cpu\"\n";
        std::fs::write(&path, text).unwrap();
        let name = path.to_str().unwrap();
        let fabric = load(&FabricRequest::of(name)).unwrap();
        assert_eq!((fabric.name(), fabric.gpus().len()), ("c", 24));
        assert!(fabric.find("n2/gpu7").is_some() && fabric.find("leaf0").is_some() && fabric.find("extra").is_some());
        let request = FabricRequest {
            nodes: Some(2),
            gpus: Some(2),
            network: Some(NetworkSpec::of_kind(NetworkKind::FatTree)),
            ..FabricRequest::of(name)
        };
        assert_eq!(load(&request).unwrap().gpus().len(), 4);

        // A host file beside it, found relative to it; a file that includes itself.
        std::fs::write(folder.path().join("host.toml"), preset::text("dgx-a100").unwrap()).unwrap();
        std::fs::write(&path, "[cluster]\nnode = \"host.toml\"\nnodes = 2\n").unwrap();
        assert_eq!(load(&FabricRequest::of(name)).unwrap().gpus().len(), 16);
        std::fs::write(&path, "[cluster]\nnode = \"c.toml\"\nnodes = 2\n").unwrap();
        let error = load(&FabricRequest::of(name)).unwrap_err();
        assert!(error.to_string().contains("includes itself"), "{error}");
        std::fs::write(&path, "[cluster]\nnode = \"hgx-h20\"\nnodes = 2\n").unwrap();
        let error = load(&FabricRequest::of(name)).unwrap_err();
        assert_eq!(error.place().map(|place| (place.line, place.column)), Some((2, 8)), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("hgx-h200")));
    }
}
