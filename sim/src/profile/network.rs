//! Cost of a library's network transport: the work of NCCL's proxy threads, which thread blocks and NICs wait for.
//!
//! A thread block does not write to a NIC. It writes a message into the connection's buffer, and a proxy thread of the
//! host, one per GPU, posts it. The receiver's proxy detects its completion and notifies the block there. The time of a
//! message of c bytes is therefore, in addition to the cost of its protocol inside a host,
//!
//! ```text
//! latency:  filling the buffer (the block's passes over the message) + fence + post + rendezvous + path + signal
//!           + arrive + flush
//! bytes:    longest of c ÷ its share of the links, the block's passes, and the proxy's message + wire bytes ÷ scan
//! ```
//!
//! | protocol | detection of data by the proxy | detection by the receiver | cost |
//! |---|---|---|---|
//! | ll | reads the flags of all lines, which are in host memory | by the flags | post, scan |
//! | ll128 | a counter after a fence | by the flags | fence, post |
//! | all others | a counter after a fence | proxy's counter, after a flush before Hopper | fence, post, arrive, flush |
//!
//! A transport that sends large messages by rendezvous first exchanges a request with the receiver's NIC. Later messages
//! of the connection overlap with it.
//!
//! With adaptive routing ([`PacketRouting`]), the packets of a message may overtake each other. NCCL therefore sends a
//! message of more than 8 KiB as a write without a notification, and a second write of zero bytes that notifies the
//! receiver. The NIC sends the notification when the data is acknowledged, `signal` later, and continues with the next
//! message of the queue pair when the notification is acknowledged as well. A receiver that polls a counter waits for
//! the notification; with LL and LL128 it reads flags in the data and does not. Measured: all_gather with LL128 on two
//! hosts takes 65 µs with messages of 4.3 KB and 168 µs with 8.7 KB, 15 of them per connection
//! (ctc_h200_2x8_allgather_stream.csv); sends of 16 KiB take 4.7 µs more than those of 8 KiB, and sends of 128 KiB leave
//! a queue pair every 13.4 µs (vultr_b200_16r_sendrecv_2ch.csv), of which the transfer takes 2.6. Messages alternate
//! among several queue pairs.
//!
//! Messages of one connection are pipelined (up to eight slots), so a sequence of them incurs the latency once and the
//! proxy's time for each. A block that sends to one peer only also incurs the fence for each.
//!
//! Source: NCCL 2.30.7 src/transport/net.cc (`sendProxyProgress`, `recvProxyProgress`; buffer locations of each
//! protocol: `sendProxyConnect`; `needFlush`), src/proxy.cc (one progress thread per rank of a communicator),
//! src/transport/net_ib/p2p.cc (`ncclIbMultiSend`), net_ib/init.cc (`ar`). Rendezvous:
//! libfabric fi_cxi(7) (`FI_CXI_RDZV_THRESHOLD`), aws-ofi-nccl include/nccl_ofi_param.h (`EAGER_MAX_SIZE`).

use fabricast_topologies::{Bandwidth, Bytes, Picos};

use crate::schedule::Protocol;

/// Default of [`QueuePairs::largest_ordered`] (NCCL 2.30.7 src/transport/net_ib/p2p.cc: `ncclIbArThreshold`).
pub const LARGEST_ORDERED: Bytes = Bytes(8192);

/// Costs of a network transport in addition to its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkCosts {
    /// Time from a complete message in the buffer until its first byte leaves the NIC: detection and posting by the
    /// proxy, and the work of the transport itself (with libfabric's providers, reordering as well).
    pub post: Picos,
    /// Time until a thread block's stores are visible to the proxy and the NIC.
    pub fence: Picos,
    /// Time from the arrival of a message's last byte until the block that polls its counter continues.
    pub arrive: Picos,
    /// Time until the NIC's writes are visible in GPU memory: a read through the NIC, on GPUs before Hopper.
    pub flush: Picos,
    /// Time of the sending proxy thread for each message of any connection: posting it, testing its completion and
    /// returning its slot.
    pub message: Picos,
    /// Minimum time from one message of a connection to its next one: a sweep of the proxy thread, in which it posts at
    /// most one message of each connection (NCCL 2.28 src/proxy.cc, `progressOps`; src/transport/net.cc,
    /// `sendProxyProgress`). A ring sends one message, or one for each slice, per step; a small all_gather therefore
    /// needs at least this time per step. Sweeps over several busy connections post a message of each.
    pub interval: Picos,
    /// Rate at which the proxy reads data with interleaved flags in host memory, counting both; `None` if this costs no
    /// time.
    pub scan: Option<Bandwidth>,
    /// Additional latency of messages larger than `eager`: the exchange of the transport's rendezvous.
    pub rendezvous: Picos,
    /// Size of the largest message, with its framing, that is sent without a rendezvous; `None`: all are.
    pub eager: Option<Bytes>,
    /// Time until the data of a message of more than [`QueuePairs::largest_ordered`] bytes is acknowledged. With adaptive
    /// routing its notification is sent only then.
    pub signal: Picos,
    /// Queue pairs of a connection. They follow from the machine and the settings of NCCL, and are not fitted.
    pub queue_pairs: QueuePairs,
}

/// Queue pairs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairs {
    /// Number of queue pairs, among which the messages of the connection alternate (NCCL_IB_QPS_PER_CONNECTION).
    pub count: u32,
    /// Routing of their packets.
    pub routing: PacketRouting,
    /// Largest message, framing included, whose notification is sent with its data despite adaptive routing
    /// (NCCL_IB_AR_THRESHOLD).
    pub largest_ordered: Bytes,
    /// Line rate of the NIC; `None` if it is not known.
    pub line_rate: Option<Bandwidth>,
}

/// Routing of the packets of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketRouting {
    /// Each packet may take another path and overtake others. NCCL's default on InfiniBand.
    #[default]
    Adaptive,
    /// All packets take one path. NCCL's default on Ethernet.
    Static,
}

impl QueuePairs {
    /// A single queue pair on InfiniBand.
    pub const ONE: Self =
        Self { count: 1, routing: PacketRouting::Adaptive, largest_ordered: LARGEST_ORDERED, line_rate: None };
}

/// Method by which the sending proxy and the receiver of a message detect its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notification {
    /// Flags in every line of data, read by both proxy and receiver.
    Flags,
    /// A counter for the sending proxy, flags for the receiver.
    CounterThenFlags,
    /// Counters on both sides.
    Counters,
}

/// Returns the notification method of a protocol.
fn notification(protocol: Protocol) -> Notification {
    match protocol {
        Protocol::Ll => Notification::Flags,
        Protocol::Ll128 => Notification::CounterThenFlags,
        Protocol::Simple | Protocol::Symmetric | Protocol::CopyEngine => Notification::Counters,
    }
}

impl NetworkCosts {
    /// Transport without costs in addition to its links.
    pub const FREE: Self = Self {
        post: Picos::ZERO,
        fence: Picos::ZERO,
        arrive: Picos::ZERO,
        flush: Picos::ZERO,
        message: Picos::ZERO,
        interval: Picos::ZERO,
        scan: None,
        rendezvous: Picos::ZERO,
        eager: None,
        signal: Picos::ZERO,
        queue_pairs: QueuePairs::ONE,
    };

    /// Latency of a message in addition to its path, from the time at which its buffer is full, on GPUs that need no
    /// flush.
    #[must_use]
    pub fn latency(&self, protocol: Protocol) -> Picos {
        match notification(protocol) {
            Notification::Flags => self.post,
            Notification::CounterThenFlags => self.fence + self.post,
            Notification::Counters => self.fence + self.post + self.arrive,
        }
    }

    /// Additional latency of the rendezvous for a message of `on_wire` bytes, framing included; 0 if none is needed.
    #[must_use]
    pub fn rendezvous(&self, on_wire: Bytes) -> Picos {
        if self.eager.is_some_and(|eager| on_wire > eager) { self.rendezvous } else { Picos::ZERO }
    }

    /// Additional latency of a message of `on_wire` bytes, framing included, whose notification is sent separately; 0 if
    /// it is sent with the data, or if the receiver reads flags in the data and does not wait for it.
    #[must_use]
    pub fn signal_latency(&self, protocol: Protocol, on_wire: Bytes) -> Picos {
        match notification(protocol) {
            Notification::Flags | Notification::CounterThenFlags => Picos::ZERO,
            Notification::Counters => self.acknowledgement(on_wire),
        }
    }

    /// Time until the data of a message of `on_wire` bytes, framing included, is acknowledged, if its notification is
    /// sent only then; otherwise 0.
    fn acknowledgement(&self, on_wire: Bytes) -> Picos {
        let QueuePairs { routing, largest_ordered, .. } = self.queue_pairs;
        let is_separate = routing == PacketRouting::Adaptive && on_wire > largest_ordered;
        if is_separate { self.signal } else { Picos::ZERO }
    }

    /// Minimum time from the start of a message of `on_wire` bytes, framing included, to that of the next one of its
    /// connection's queue pairs. A queue pair waits for two acknowledgements per message with a separate notification.
    #[must_use]
    pub fn spacing(&self, on_wire: Bytes) -> Picos {
        let waits = self.acknowledgement(on_wire).0.saturating_mul(2);
        if waits == 0 {
            return Picos::ZERO;
        }
        let QueuePairs { count, line_rate, .. } = self.queue_pairs;
        let transfer = line_rate.map_or(Picos::ZERO, |rate| rate.transfer_time(on_wire));
        Picos(waits.saturating_add(transfer.0) / u64::from(count.max(1)))
    }

    /// Time until the proxy can see a message of a protocol; 0 if the proxy reads flags in the data.
    #[must_use]
    pub fn visible_after(&self, protocol: Protocol) -> Picos {
        if notification(protocol) == Notification::Flags { Picos::ZERO } else { self.fence }
    }

    /// Additional latency of a message on receiving GPUs that need a flush.
    #[must_use]
    pub fn flush(&self, protocol: Protocol) -> Picos {
        if notification(protocol) == Notification::Counters { self.flush } else { Picos::ZERO }
    }

    /// Time of the sending proxy for `bytes` of payload in messages of `message` bytes, `on_wire` with their framing; a
    /// partial message costs its share.
    #[must_use]
    pub fn proxy(&self, protocol: Protocol, bytes: Bytes, message: Bytes, on_wire: Bytes) -> Picos {
        let message_size = u128::from(message.0.max(1));
        let parts =
            if bytes < message { bytes.0.into() } else { u128::from(bytes.0).div_ceil(message_size) * message_size };
        let posting = u128::from(self.message.0) * parts / message_size;
        let scanning = match self.scan {
            Some(rate) if notification(protocol) == Notification::Flags => {
                u128::from(on_wire.0) * 1_000_000_000_000 / u128::from(rate.0.max(1))
            }
            _ => 0,
        };
        Picos(u64::try_from(posting + scanning).unwrap_or(u64::MAX))
    }
}

/// Largest payload of a message: one of eight slots of a connection's buffer; for Simple, a slice of two slots of
/// 512 KiB (NCCL 2.30.7 src/include/device.h, collectives.h).
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
        interval: Picos(100),
        scan: Some(Bandwidth(1_000_000_000)),
        rendezvous: Picos(7),
        eager: Some(Bytes(16 << 10)),
        signal: Picos(600),
        queue_pairs: QueuePairs { line_rate: Some(Bandwidth(1_000_000_000_000)), ..QueuePairs::ONE },
    };

    #[test]
    fn only_messages_larger_than_eager_ones_have_a_rendezvous() {
        assert_eq!([16 << 10, (16 << 10) + 1].map(|bytes| COSTS.rendezvous(Bytes(bytes))), [Picos(0), Picos(7)]);
        let never = NetworkCosts { eager: None, ..COSTS };
        assert_eq!(never.rendezvous(Bytes(u64::MAX)), Picos::ZERO);
    }

    #[test]
    fn latency_depends_on_the_notification_method() {
        let all = Protocol::ALL.map(|protocol| COSTS.latency(protocol).0);
        assert_eq!(all, [1_000, 1_200, 1_230, 1_230, 1_230]);
        assert_eq!(Protocol::ALL.map(|protocol| COSTS.flush(protocol).0), [0, 0, 4, 4, 4]);
    }

    #[test]
    fn large_messages_wait_for_acknowledgements_with_adaptive_routing() {
        let [small, large] = [8192, 8193].map(Bytes);
        let latency = |costs: &NetworkCosts, bytes| costs.signal_latency(Protocol::Simple, bytes);
        assert_eq!([small, large].map(|bytes| latency(&COSTS, bytes)), [Picos(0), Picos(600)]);
        // Receivers that read flags in the data do not wait for the notification, but the queue pair does.
        let by_protocol = Protocol::ALL.map(|protocol| COSTS.signal_latency(protocol, large).0);
        assert_eq!(by_protocol, [0, 0, 600, 600, 600]);
        // 8,193 bytes take 8,193 ps at 1 TB/s.
        assert_eq!([small, large].map(|bytes| COSTS.spacing(bytes)), [Picos(0), Picos(1_200 + 8_193)]);
        let with = |queue_pairs| NetworkCosts { queue_pairs, ..COSTS };
        let four = with(QueuePairs { count: 4, ..COSTS.queue_pairs });
        assert_eq!((latency(&four, large), four.spacing(large)), (Picos(600), Picos((1_200 + 8_193) / 4)));
        let ordered = with(QueuePairs { routing: PacketRouting::Static, ..COSTS.queue_pairs });
        assert_eq!((latency(&ordered, large), ordered.spacing(large)), (Picos(0), Picos(0)));
        let threshold = with(QueuePairs { largest_ordered: large, ..COSTS.queue_pairs });
        let above = Bytes(large.0 + 1);
        assert_eq!([large, above].map(|bytes| latency(&threshold, bytes)), [Picos(0), Picos(600)]);
    }

    #[test]
    fn proxy_time_includes_posting_and_scanning_of_ll() {
        assert_eq!(COSTS.proxy(Protocol::Ll128, Bytes(2_001), Bytes(1_000), Bytes(1 << 20)), Picos(1_500_000));
        assert_eq!(COSTS.proxy(Protocol::Ll128, Bytes(500), Bytes(1_000), Bytes(1 << 20)), Picos(250_000));
        assert_eq!(COSTS.proxy(Protocol::Ll, Bytes(500), Bytes(500), Bytes(1_000)), Picos(1_500_000));
    }
}
