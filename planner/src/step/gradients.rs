//! Gradients on their way while the backward pass still runs: buckets, as PyTorch's DistributedDataParallel fills them (Li
//! et al., arXiv 2006.15704, section 3.2).
//!
//! A bucket leaves when the backward pass has come past all of its weights, and when the one before it has arrived.

use fabricast_topologies::Picos;

/// When the last of equal buckets has arrived, of gradients that become ready evenly in each of these stretches of time.
/// `bucket` is what one takes. `tell` is told when each leaves and arrives.
pub(super) fn arrived(
    ready: &[(Picos, Picos)],
    buckets: u64,
    bucket: Picos,
    mut tell: impl FnMut(Picos, Picos),
) -> Picos {
    let stretches = ready.len().max(1) as u64;
    let mut free = Picos::ZERO;
    for (number, &(begin, end)) in (0u64..).zip(ready) {
        // As many as end in this stretch.
        let (from, to) = (number * buckets / stretches, (number + 1) * buckets / stretches);
        let own = to - from;
        for i in 1..=own {
            let share = u128::from((end - begin).0) * u128::from(i) / u128::from(own);
            let filled = begin + Picos(share as u64);
            let leaves = free.max(filled);
            free = leaves + bucket;
            tell(leaves, free);
        }
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(ready: &[(Picos, Picos)], buckets: u64, bucket: Picos) -> Picos {
        super::arrived(ready, buckets, bucket, |_, _| ())
    }

    #[test]
    fn the_last_bucket_is_never_hidden() {
        let ready = [(Picos(1000), Picos(2000))];
        // Fast: each is done before the next is filled. Slow: they queue. One: nothing overlaps.
        assert_eq!(arrived(&ready, 10, Picos(50)), Picos(2050));
        assert_eq!(arrived(&ready, 10, Picos(300)), Picos(1100 + 3000));
        assert_eq!(arrived(&ready, 1, Picos(700)), Picos(2700));
        assert_eq!(arrived(&[(Picos(0), Picos(10)), (Picos(50), Picos(60))], 2, Picos(20)), Picos(80));
    }
}
