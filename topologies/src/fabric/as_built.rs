//! The fabric as built: the same devices and links, none of them out of service.

use std::sync::OnceLock;

use super::Fabric;

/// Copy of a fabric with all links in service, made on first use. A clone starts without one, since clones are made to
/// be changed.
#[derive(Debug, Default)]
pub(crate) struct IntactCopy(OnceLock<Box<Fabric>>);

impl Clone for IntactCopy {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Fabric {
    /// Returns this fabric with all links in service, with the same ids, ranks and slowed links; `None` if no link is
    /// out of service.
    #[must_use]
    pub fn as_built(&self) -> Option<&Self> {
        let has_failures = self.graph.raw_edges().iter().any(|edge| edge.weight.failed);
        has_failures.then(|| {
            &**self.intact.0.get_or_init(|| {
                let mut copy = self.clone();
                copy.graph.edge_weights_mut().for_each(|link| link.failed = false);
                Box::new(copy)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::{FabricRequest, load};

    #[test]
    fn fabrics_as_built_have_all_links_and_the_present_rates() {
        let whole = load(&FabricRequest::new("dgx-v100")).unwrap();
        assert!(whole.as_built().is_none());
        let slow = whole.with_slowed("gpu0-gpu1", 0.5).unwrap();
        let broken = slow.with_failed("gpu0-gpu1").unwrap();
        let built = broken.as_built().unwrap();
        assert!(built.links().map(|(_, link)| link).eq(slow.links().map(|(_, link)| link)));
        // A copy that is changed has a copy as built of its own.
        let worse = broken.with_slowed("gpu0-gpu2", 0.5).unwrap();
        assert!(!worse.as_built().unwrap().links().map(|(_, link)| link).eq(built.links().map(|(_, link)| link)));
    }
}
