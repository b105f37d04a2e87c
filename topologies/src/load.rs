//! Entry point of the crate: builds the fabric of a request (name or file, number of hosts and GPUs, network).

use std::path::Path;

use crate::cluster;
use crate::error::{Error, Result};
use crate::fabric::{Figures, HostDrives, Node, NodeKind};
use crate::gpus::{self, GpuModel};
use crate::network_spec::{ClusterSpec, NetworkSpec};
use crate::read::{self, Topology};
use crate::{Fabric, FabricBuilder, preset};

/// Maximum depth of nested `[cluster] node` references from file to file.
const MAX_INCLUDE_DEPTH: usize = 8;

/// Request for a fabric: a preset or file, the number of its hosts and ranks, and the network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricRequest {
    /// A preset's name, or the path of a file: a spec, a topology file of NCCL or RCCL, a matrix of
    /// `nvidia-smi topo -m`, or the JSON of `fabric show`.
    pub fabric: String,
    /// Number of hosts. `None`: all of the preset or file.
    pub nodes: Option<u32>,
    /// Number of GPUs per host that are ranks. `None`: all.
    pub gpus: Option<u32>,
    /// Network between the hosts. `None`: the network of the file, otherwise a rail network with the preset's own NICs.
    pub network: Option<NetworkSpec>,
    /// Model of the GPUs where the file does not state it; a name accepted by [`gpus::name::find`].
    pub gpu: Option<String>,
    /// Drives of each host. `None`: not stated.
    pub drives: Option<HostDrives>,
}

impl FabricRequest {
    /// Requests the whole of a preset or file.
    #[must_use]
    pub fn new(fabric: &str) -> Self {
        Self { fabric: fabric.to_owned(), ..Self::default() }
    }
}

/// Builds the fabric of a request.
///
/// # Errors
/// [`Error::Unknown`] for a name that is neither preset nor file, [`Error::Unreadable`], [`Error::Syntax`] and
/// [`Error::Invalid`] for files, [`Error::Request`] for hosts, GPUs or a network that the fabric cannot have.
pub fn load(request: &FabricRequest) -> Result<Fabric> {
    let source = Source::find(&request.fabric, None)?;
    Ok(source.fabric(request, 0)?.with_drives(request.drives))
}

/// Builds the fabric that a text in any supported format describes; `source` names the text in errors.
///
/// # Errors
/// [`Error::Syntax`] and [`Error::Invalid`], each with its source location.
pub fn read_text(text: &str, source: &str) -> Result<Fabric> {
    let source = Source { name: source.to_owned(), text: text.to_owned(), folder: None };
    source.fabric(&FabricRequest::default(), 0)
}

/// Variant of [`read_text`] with the hosts, GPUs and network of a request; `request.fabric` names the text in errors.
///
/// # Errors
/// The errors of [`load`].
pub fn read_request(text: &str, request: &FabricRequest) -> Result<Fabric> {
    let source = Source { name: request.fabric.clone(), text: text.to_owned(), folder: None };
    Ok(source.fabric(request, 0)?.with_drives(request.drives))
}

/// Text of a preset or file, and its name in errors.
struct Source {
    name: String,
    text: String,
    /// Folder that relative paths in the text refer to.
    folder: Option<std::path::PathBuf>,
}

impl Source {
    /// Finds a preset by name, otherwise a file, relative to `folder` if given.
    fn find(name: &str, folder: Option<&Path>) -> Result<Self> {
        if let Some(text) = preset::text(name) {
            return Ok(Self { name: name.to_owned(), text: text.to_owned(), folder: None });
        }
        let path = folder.map_or_else(|| Path::new(name).to_owned(), |folder| folder.join(name));
        // A name that does not look like a path is an unknown preset, not a missing file.
        let path_like = name.contains(['/', '\\', '.']) || read::can_be_read(&path);
        if name.is_empty() || !path_like {
            return Err(preset::unknown(name));
        }
        let text = read::read_text_file(&path, read::Limit::TOPOLOGY)?;
        Ok(Self { name: path.display().to_string(), text, folder: path.parent().map(Path::to_owned) })
    }

    fn fabric(&self, request: &FabricRequest, depth: usize) -> Result<Fabric> {
        let gpu = request.gpu.as_deref().map(gpus::name::find_unique).transpose()?;
        let spec = match read::parse_with_gpu(&self.text, &self.name, gpu)? {
            Topology::Fabric(fabric) => return expand(&fabric, request),
            Topology::Spec(spec) => spec,
        };
        let Some(inner) = &spec.cluster else {
            return expand(&set_gpu_model(spec.build_nodes()?, gpu)?, request);
        };
        if depth == MAX_INCLUDE_DEPTH {
            let message = format!("`{}` includes itself, or too many others", self.name);
            return Err(Error::Invalid { location: inner.node_location.clone(), message, help: None });
        }
        let mut fabric = self.cluster(inner, request, depth)?;
        fabric.name = spec.name.clone();
        let mut builder = FabricBuilder::reopen(fabric);
        spec.add_to(&mut builder)?;
        set_gpu_model(builder.finish(), gpu)
    }

    /// Builds the hosts of a `[cluster]`; values of the request override those of the file.
    fn cluster(&self, cluster: &ClusterSpec, request: &FabricRequest, depth: usize) -> Result<Fabric> {
        let locate_error = |error: Error| match error {
            Error::Unknown { .. } => {
                let help = match &error {
                    Error::Unknown { suggestions: near, .. } if !near.is_empty() => {
                        Some(format!("did you mean {}?", near.join(", ")))
                    }
                    _ => None,
                };
                let message = format!("no preset or file is called `{}`", cluster.node);
                Error::Invalid { location: cluster.node_location.clone(), message, help }
            }
            other => other,
        };
        let host = Self::find(&cluster.node, self.folder.as_deref()).map_err(locate_error)?;
        let host = host.fabric(&FabricRequest { gpu: request.gpu.clone(), ..FabricRequest::default() }, depth + 1)?;
        let nodes = request.nodes.unwrap_or(cluster.nodes);
        let network = request.network.as_ref().or(cluster.network.as_ref());
        let is_overridden = request.nodes.is_some() || request.gpus.is_some() || request.network.is_some();
        cluster::build_with_gpus(&host, nodes, request.gpus, network).map_err(|error| match error {
            // The request did not override values of the file, so the error is in the file.
            Error::Request(message) if !is_overridden => {
                let network = cluster.network.is_some();
                let location = if network { &cluster.network_location } else { &cluster.nodes_location };
                Error::Invalid { location: location.clone(), message, help: None }
            }
            other => other,
        })
    }
}

/// Sets the GPU model of a spec's fabric: the model that the user names, or, if the spec states none, the models that
/// its links allow.
fn set_gpu_model(fabric: Fabric, gpu: Option<&'static GpuModel>) -> Result<Fabric> {
    if gpu.is_none() && !states_no_gpu(&fabric) {
        return Ok(fabric);
    }
    let mut builder = FabricBuilder::reopen(fabric);
    match gpu {
        Some(model) => gpus::set_model(&mut builder, model)?,
        None => gpus::identify_capability(&mut builder),
    }
    Ok(builder.finish())
}

/// Returns true if the fabric has GPUs, has no candidate models, and states the compute capability of none of its GPUs.
fn states_no_gpu(fabric: &Fabric) -> bool {
    let states = |node: &Node| matches!(&node.figures, Figures::Gpu(gpu) if gpu.compute_capability.is_some());
    let mut gpus = fabric.nodes().map(|(_, node)| node).filter(|node| node.kind == NodeKind::Gpu).peekable();
    gpus.peek().is_some() && fabric.gpu_candidates().is_empty() && !gpus.any(states)
}

/// Applies the hosts, GPUs and network of a request to a fabric that exists already. `request.fabric` is ignored.
///
/// # Errors
/// [`Error::Request`] for hosts, GPUs or a network that the fabric cannot have.
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
    fn presets_and_files_are_distinguished() {
        assert_eq!(load(&FabricRequest::new("hgx-h200")).unwrap().gpus().len(), 8);
        let Err(Error::Unknown { suggestions: near, .. }) = load(&FabricRequest::new("hgxh200")) else {
            panic!("loaded")
        };
        assert_eq!(near.first().map(String::as_str), Some("hgx-h200"));
        assert!(matches!(load(&FabricRequest::new("no/such.toml")), Err(Error::Unreadable { .. })));
        assert!(matches!(load(&FabricRequest::new("")), Err(Error::Unknown { .. })));
    }

    #[test]
    fn file_format_is_detected_from_content() {
        let folder = folder();
        let path = folder.path().join("fabric.anything");
        std::fs::write(&path, preset::text("l40s-pcie").unwrap()).unwrap();
        let request = FabricRequest { gpus: Some(4), ..FabricRequest::new(path.to_str().unwrap()) };
        assert_eq!(load(&request).unwrap().gpus().len(), 4);
        std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        let error = load(&FabricRequest::new(path.to_str().unwrap())).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
        assert!(matches!(load(&FabricRequest::new(folder.path().to_str().unwrap())), Err(Error::Unreadable { .. })));
    }

    #[test]
    fn requests_override_clusters_in_files() {
        let folder = folder();
        let path = folder.path().join("c.toml");
        let text = "[cluster]\nnode = \"hgx-h200\"\nnodes = 3\n[[node]]\nid = \"extra\"\nkind = \"cpu\"\n";
        std::fs::write(&path, text).unwrap();
        let name = path.to_str().unwrap();
        let fabric = load(&FabricRequest::new(name)).unwrap();
        assert_eq!((fabric.name(), fabric.gpus().len()), ("c", 24));
        assert!(fabric.find("n2/gpu7").is_some() && fabric.find("leaf0").is_some() && fabric.find("extra").is_some());
        let request = FabricRequest {
            nodes: Some(2),
            gpus: Some(2),
            network: Some(NetworkSpec::with_kind(NetworkKind::FatTree)),
            ..FabricRequest::new(name)
        };
        assert_eq!(load(&request).unwrap().gpus().len(), 4);

        // Two cases: a host file in the same folder, found by its relative path, and a file that includes itself.
        std::fs::write(folder.path().join("host.toml"), preset::text("dgx-a100").unwrap()).unwrap();
        std::fs::write(&path, "[cluster]\nnode = \"host.toml\"\nnodes = 2\n").unwrap();
        assert_eq!(load(&FabricRequest::new(name)).unwrap().gpus().len(), 16);
        std::fs::write(&path, "[cluster]\nnode = \"c.toml\"\nnodes = 2\n").unwrap();
        let error = load(&FabricRequest::new(name)).unwrap_err();
        assert!(error.to_string().contains("includes itself"), "{error}");
        std::fs::write(&path, "[cluster]\nnode = \"hgx-h20\"\nnodes = 2\n").unwrap();
        let error = load(&FabricRequest::new(name)).unwrap_err();
        assert_eq!(error.location().map(|location| (location.line, location.column)), Some((2, 8)), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("hgx-h200")));
    }
}
