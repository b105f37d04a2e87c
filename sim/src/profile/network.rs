//! What a library's network transport costs: the work of NCCL's proxy threads, which thread blocks and NICs wait for.
//!
//! A block does not write to a NIC. It writes a message into the connection's buffer and a proxy thread of the host, one for
//! each GPU, posts it; the receiving host's proxy sees it complete and tells the block there. So a message of c bytes takes,
//! besides what its protocol costs inside a host,
//!
//! ```text
//! latency:  what fills the buffer (the block's passes over the message) + fence + post + path + arrive + flush
//! bytes:    the longest of c ÷ its share of the links, its block's passes, and of the proxy's time: message + wire bytes ÷ scan
//! ```
//!
//! | protocol | how the proxy learns of data | how the receiver learns of it | so it pays |
//! |---|---|---|---|
//! | ll | reads the flags of all lines, which lie in host memory | by the flags | post, scan |
//! | ll128 | a counter behind a fence | by the flags | fence, post |
//! | all others | a counter behind a fence | its proxy moves a counter, behind a flush before Hopper | fence, post, arrive, flush |
//!
//! Messages of one connection follow each other without waiting (up to eight slots), so a chain of them pays the latency
//! once, and the time of the proxy each.
//!
//! Source: NCCL 2.30.7 src/transport/net.cc (`sendProxyProgress`, `recvProxyProgress`; where the buffers of each protocol
//! lie: `sendProxyConnect`; `needFlush`), src/proxy.cc (a progress thread for each rank of a communicator).

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use crate::schedule::Protocol;

/// What a network transport costs beyond its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCosts {
    /// From a message that is ready in its buffer to its first byte leaving the NIC: the proxy finds and posts it, and
    /// whatever the transport does (of libfabric's providers, rendezvous and reordering too).
    pub post: Picos,
    /// Until what a block wrote is visible to proxy and NIC.
    pub fence: Picos,
    /// From a message's last byte to the block that waits for its counter.
    pub arrive: Picos,
    /// Until what the NIC wrote to the GPU's memory is visible there: a read through the NIC, on GPUs before Hopper.
    pub flush: Picos,
    /// The proxy's own time for a message.
    pub message: Picos,
    /// How fast it reads flags among data in host memory, flags and data counted; `None`: at once.
    pub scan: Option<Bandwidth>,
}

/// How those who wait for a message learn of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// By flags in every line, on both sides.
    Flags,
    /// The proxy by a counter, the receiver by flags.
    CounterThenFlags,
    /// By counters.
    Counters,
}

/// How a protocol tells of messages.
fn told(protocol: Protocol) -> Told {
    match protocol {
        Protocol::Ll => Told::Flags,
        Protocol::Ll128 => Told::CounterThenFlags,
        Protocol::Simple | Protocol::Symmetric | Protocol::CopyEngine => Told::Counters,
    }
}

impl NetworkCosts {
    /// No cost.
    pub const FREE: Self = Self {
        post: Picos::ZERO,
        fence: Picos::ZERO,
        arrive: Picos::ZERO,
        flush: Picos::ZERO,
        message: Picos::ZERO,
        scan: None,
    };

    /// What a message waits besides its path, its buffer full, on GPUs that need no flush.
    #[must_use]
    pub fn latency(&self, protocol: Protocol) -> Picos {
        match told(protocol) {
            Told::Flags => self.post,
            Told::CounterThenFlags => self.fence + self.post,
            Told::Counters => self.fence + self.post + self.arrive,
        }
    }

    /// What GPUs that need a flush wait on top.
    #[must_use]
    pub fn flush(&self, protocol: Protocol) -> Picos {
        if told(protocol) == Told::Counters { self.flush } else { Picos::ZERO }
    }

    /// How long the sending proxy is busy with so many bytes, `on_wire` with their framing, in messages of a size: a part of
    /// a message takes its part of the time.
    #[must_use]
    pub fn proxy(&self, protocol: Protocol, bytes: Bytes, message: Bytes, on_wire: Bytes) -> Picos {
        let whole = u128::from(message.0.max(1));
        let parts = if bytes < message { bytes.0.into() } else { u128::from(bytes.0).div_ceil(whole) * whole };
        let posting = u128::from(self.message.0) * parts / whole;
        let scanning = match self.scan {
            Some(rate) if told(protocol) == Told::Flags => {
                u128::from(on_wire.0) * 1_000_000_000_000 / u128::from(rate.0.max(1))
            }
            _ => 0,
        };
        Picos(u64::try_from(posting + scanning).unwrap_or(u64::MAX))
    }
}

/// The most payload of a message: a slot of a connection's buffer, of eight; in simple two of 512 KiB, a slice (NCCL 2.30.7
/// src/include/device.h, collectives.h).
#[must_use]
pub fn largest_message(protocol: Protocol) -> Bytes {
    match protocol {
        Protocol::Ll => Bytes(32 << 10),
        Protocol::Ll128 => Bytes(576_000),
        Protocol::Simple | Protocol::Symmetric | Protocol::CopyEngine => Bytes(1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: NetworkCosts = NetworkCosts {
        post: Picos(1_000),
        fence: Picos(200),
        arrive: Picos(30),
        flush: Picos(4),
        message: Picos(500_000),
        scan: Some(Bandwidth(1_000_000_000)),
    };

    #[test]
    fn each_protocol_pays_what_its_messages_wait_for() {
        let all = Protocol::ALL.map(|protocol| COSTS.latency(protocol).0);
        assert_eq!(all, [1_000, 1_200, 1_230, 1_230, 1_230]);
        assert_eq!(Protocol::ALL.map(|protocol| COSTS.flush(protocol).0), [0, 0, 4, 4, 4]);
    }

    #[test]
    fn a_proxy_posts_messages_and_reads_the_lines_of_ll() {
        assert_eq!(COSTS.proxy(Protocol::Ll128, Bytes(2_001), Bytes(1_000), Bytes(1 << 20)), Picos(1_500_000));
        assert_eq!(COSTS.proxy(Protocol::Ll128, Bytes(500), Bytes(1_000), Bytes(1 << 20)), Picos(250_000));
        assert_eq!(COSTS.proxy(Protocol::Ll, Bytes(500), Bytes(500), Bytes(1_000)), Picos(1_500_000));
    }
}
