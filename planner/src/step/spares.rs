//! Which GPUs of a machine are at work: all, or as many as a job that looks for its division can be divided among.
//!
//! Racks have 72 GPUs, and jobs powers of two: nothing divides 512 sequences and 80 layers among 72. People leave eight of each rack
//! out then (`placement = "0-63,72-135"`), and so does `parallel = "auto"`: it takes whole hosts, as many as there is a division for, of a
//! host alone as many GPUs, and as many of each NVLink domain where that goes up. Who names degrees or a placement has what is named.

use std::borrow::Cow;

use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Fabric, NodeId};

use super::search::divides;
use crate::job::{Job, JobError, Parallel, Placement, Processes, Training};

/// The device of each rank of a job on a fabric: as it is placed ([`Job::ranks_on`]), less spares.
///
/// # Errors
/// [`JobError`] at `placement`, where that is of other GPUs.
pub fn ranks_at_work<'f>(job: &Job, fabric: &'f Fabric) -> Result<Cow<'f, [NodeId]>, JobError> {
    let all = job.ranks_on(fabric)?;
    let searched = match job {
        Job::Training(job) if job.parallel == Parallel::Auto && job.processes == Processes::PerGpu => job,
        _ => return Ok(all),
    };
    // (Those that somebody placed are named, one by one or in turns.)
    if searched.placement != Placement::Block {
        return Ok(all);
    }
    let hosts = fabric.by_host(&all);
    // (A host may have lost some.)
    let per_host = hosts.iter().map(Vec::len).max().unwrap_or_default();
    Ok(match most(searched, all.len(), per_host) {
        Some(count) if count < all.len() => {
            let whole: Vec<NodeId> = hosts.iter().filter(|host| host.len() == per_host).flatten().copied().collect();
            let from = if count <= whole.len() { &whole[..] } else { &all[..] };
            first_of_each_domain(fabric, from, count).into()
        }
        _ => all,
    })
}

/// The most ranks among which a job is divided somehow: all, whole hosts, or some of a host; `None` where there is no such number.
fn most(job: &Training, all: usize, per_host: usize) -> Option<usize> {
    let hosts = (1..all.div_ceil(per_host.max(1))).rev().map(|hosts| hosts * per_host);
    let numbers = [all].into_iter().chain(hosts).chain((1..per_host).rev());
    numbers.into_iter().find(|&ranks| divides(job, ranks as u32, per_host as u32))
}

/// So many devices, as many of each NVLink domain where these have equally many and that divides, otherwise the first.
fn first_of_each_domain(fabric: &Fabric, all: &[NodeId], count: usize) -> Vec<NodeId> {
    let router = Router::new(fabric, RouteOptions::default());
    let domains: Vec<&[NodeId]> = all.chunk_by(|&a, &b| router.island_of(a) == router.island_of(b)).collect();
    let each = count / domains.len().max(1);
    let are_alike = domains.windows(2).all(|pair| matches!(pair, [a, b] if a.len() == b.len()));
    if are_alike && each > 0 && each * domains.len() == count {
        return domains.iter().flat_map(|domain| domain.iter().take(each)).copied().collect();
    }
    all.iter().take(count).copied().collect()
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{FabricRequest, load};

    use super::*;
    use crate::step::tests::read;

    /// Numbers of the GPUs of a job of 80 layers and so many sequences, and other lines.
    fn at_work(preset: &str, nodes: u32, batch: u32, lines: &str) -> Vec<usize> {
        let fabric = load(&FabricRequest { nodes: Some(nodes), ..FabricRequest::of(preset) }).unwrap();
        let job = read(&format!(
            "name = \"j\"\nglobal_batch = {batch}\n{lines}\n\
             model = {{ layers = 80, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 128256, seq = 8192 }}\n"
        ));
        let found = ranks_at_work(&Job::Training(job), &fabric).unwrap().into_owned();
        found.iter().map(|device| fabric.gpus().iter().position(|gpu| gpu == device).unwrap()).collect()
    }

    #[test]
    fn searches_leave_out_what_nothing_divides() {
        let auto = "parallel = \"auto\"";
        assert_eq!(at_work("gb200-nvl72", 18, 512, auto), (0..64).collect::<Vec<_>>());
        assert_eq!(at_work("gb200-nvl72", 36, 512, auto), (0..64).chain(72..136).collect::<Vec<_>>());
        // Nine hundred sequences go round nine.
        assert_eq!(at_work("gb200-nvl72", 18, 900, auto).len(), 72);
        assert_eq!(at_work("hgx-h100", 4, 512, auto).len(), 32);
        assert_eq!(at_work("gb200-nvl72", 18, 512, "parallel = { tp = 8 }").len(), 72);
    }

    /// A GPU of the first of nine hosts has failed: the other eight are at work, whichever host it is.
    #[test]
    fn hosts_that_lost_a_gpu_are_left_out() {
        let given = load(&FabricRequest { nodes: Some(9), ..FabricRequest::of("hgx-h100") }).unwrap();
        let job = Job::Training(read(
            "name = \"j\"\nglobal_batch = 512\nparallel = \"auto\"\n\
             model = { layers = 8, hidden = 1024, heads = 8, vocab = 512, seq = 512 }\n",
        ));
        for failed in ["n0/gpu0", "n8/gpu7"] {
            let fabric = given.without(failed).unwrap();
            let found = ranks_at_work(&job, &fabric).unwrap();
            assert_eq!(found.len(), 64, "{failed}");
            assert!(fabric.by_host(&found).iter().all(|host| host.len() == 8), "{failed}");
        }
    }
}
