//! Memory traffic of elementwise kernels, by the software that a job states. A job may state none.
//!
//! A job that states neither its software nor its kernels gets the mean of the extremes: fused kernels have the least
//! traffic, eager ones the most.

use fabricast_workload::job::{KernelFusion, Training};

use super::elementwise::{ElementwiseTraffic, PassBytes};

/// Fusion with the least and with the most traffic.
pub const EXTREMES: [KernelFusion; 2] = [KernelFusion::Fused, KernelFusion::Eager];

/// Traffic of the implementations between which a job's software lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoftwareTraffic([ElementwiseTraffic; 2]);

impl SoftwareTraffic {
    pub(super) fn new(job: &Training) -> Self {
        let fusions = job.fusion.map_or(EXTREMES, |fusion| [fusion; 2]);
        Self(fusions.map(|fusion| ElementwiseTraffic::new(job, fusion)))
    }

    /// Returns the bytes of one kernel, or of operators that count as one.
    pub(super) fn bytes(self, kernel: impl Fn(ElementwiseTraffic) -> PassBytes) -> PassBytes {
        let [a, b] = self.0.map(kernel);
        a.mean(b)
    }

    /// Returns the bytes of several kernels in their order. Implementations with fewer kernels have none in place of the
    /// last ones.
    pub(super) fn kernels<B: AsRef<[PassBytes]>>(self, kernels: impl Fn(ElementwiseTraffic) -> B) -> Vec<PassBytes> {
        let [a, b] = self.0.map(kernels);
        let (a, b) = (a.as_ref(), b.as_ref());
        let at = |list: &[PassBytes], index: usize| list.get(index).copied().unwrap_or_default();
        (0..a.len().max(b.len())).map(|index| at(a, index).mean(at(b, index))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use super::*;

    fn traffic(lines: &str) -> SoftwareTraffic {
        let text = "name = \"j\"\nglobal_batch = 1\nparallel = { tp = 1 }\nmodel = { layers = 1, hidden = 64, heads = 1, gated = true, vocab = 128, seq = 8 }\n";
        let job = read(&format!("{text}kernels = \"fused\"\n"));
        let fusion = match lines {
            "" => None,
            lines => read(&format!("{text}{lines}")).fusion,
        };
        SoftwareTraffic::new(&Training { fusion, ..job })
    }

    #[test]
    fn unstated_software_moves_the_mean_of_fused_and_eager_bytes() {
        let [fused, eager, unstated] = ["kernels = \"fused\"", "kernels = \"eager\"", ""].map(traffic);
        let norms = [fused, eager, unstated].map(|software| software.bytes(|traffic| traffic.norm(1000)).backward);
        let [fused_norm, eager_norm, unstated_norm] = norms;
        assert!(fused_norm < eager_norm && unstated_norm == (fused_norm + eager_norm) / 2, "{norms:?}");
        let sums = [fused, eager, unstated].map(|software| {
            let kernels = software.kernels(|traffic| traffic.logits(1000));
            kernels.iter().map(|bytes| bytes.forward + bytes.backward).sum::<u64>()
        });
        assert_eq!(sums[2], (sums[0] + sums[1]) / 2, "{sums:?}");
    }
}
