//! Writes a schedule of its own, verifies it, simulates it, and compares it with a ring and with the lower bound.
//!
//! ```text
//! cargo run --release --example own_schedule
//! cargo run --release --example own_schedule -- schedule.json
//! ```
//!
//! The schedule is an all_gather over a ring in both directions. With a path, it is also written there, for `fabricast
//! simulate --schedule` and `fabricast gpu run --schedule`. On eight H200 it prints:
//!
//! ```text
//! bidirectional_ring: all_gather of 8 ranks in 64 operations, verified
//! bidirectional_ring   30.97 µs
//! ring                 44.52 µs
//! lower bound           2.54 µs
//! ```
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;

use fabricast_collectives::algorithm::{Algorithm, Shape, generator};
use fabricast_collectives::bound::Bounds;
use fabricast_sim::engine::Watch;
use fabricast_sim::lower::Environment;
use fabricast_sim::profile::Profile;
use fabricast_sim::schedule::{
    Blocks, Buffer, BufferUse, Call, Channel, Collective, Dependency, Header, Layout, OpKind, Program, Protocol, Rank,
    Run, Schedule, ScheduleGenerator, Walk, json,
};
use fabricast_sim::verify::{VerifyOptions, verify};
use fabricast_sim::{LaunchMode, SimulationOptions, simulate};
use fabricast_topologies::route::{RouteOptions, Router};
use fabricast_topologies::{Bytes, FabricRequest, load};

/// All_gather in which every rank passes half of the blocks to the next rank and the others to the previous one.
struct BidirectionalRing(Header);

impl ScheduleGenerator for BidirectionalRing {
    fn header(&self) -> &Header {
        &self.0
    }

    fn program(&self, rank: Rank, program: &mut Program) {
        let ranks = self.0.call.ranks;
        let (own, input, output) = (Walk::fixed(rank.0), Buffer::Input, Buffer::Output);
        // Run 0 copies the own block to its place in the output.
        let (kind, channel, src, dst) = (OpKind::Copy, Channel(0), own, own);
        let copy = Run { len: 1, kind, channel, peer: own, src_buffer: input, src, dst_buffer: output, dst, span: 1 };
        program.push(copy, &[]);
        // Run 1 sends blocks r, r − 1, … to the next rank, run 2 blocks r, r + 1, … to the previous one.
        let (next, previous) = ((rank.0 + 1) % ranks, (rank.0 + ranks - 1) % ranks);
        let directions = [(next, previous, ranks - 1, ranks / 2), (previous, next, 1, (ranks - 1) / 2)];
        for (channel, (to, from, step, len)) in (0u16..).zip(directions) {
            let blocks = Walk::cyclic(0, rank.0, step, ranks);
            let (kind, channel, peer) = (OpKind::Put, Channel(channel), Walk::fixed(to));
            let put = Run { len, kind, channel, peer, src_buffer: output, src: blocks, dst: blocks, ..copy };
            // A block is sent once it has been copied, or has arrived from the other neighbour.
            let arrived = Dependency::shifted(Rank(from), 1 + u32::from(channel.0), -1);
            program.push(put, &[Dependency::on_operation(rank, 0, 0), arrived]);
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let fabric = load(&FabricRequest::new("hgx-h200"))?;
    let ranks = fabric.gpus().len() as u32;
    let (collective, buffers) = (Collective::AllGather, BufferUse::OutOfPlace);
    let call = Call { collective, bytes: Bytes(1 << 20), ranks, root: Rank(0), buffers };
    let ring = BidirectionalRing(Header {
        name: "bidirectional_ring".to_owned(),
        call,
        protocol: Protocol::Simple,
        channels: 2,
        blocks: Blocks::default(),
        layout: Layout::equal(call.bytes, ranks),
        scratch_chunks: 0,
        teams: Vec::new(),
        certificate: None,
    });
    let schedule = Schedule::build(&ring)?;
    let verified = verify(&schedule, &VerifyOptions { fifo_depth: Some(8) })?;
    let name = &schedule.header().name;
    println!("{name}: {collective} of {ranks} ranks in {} operations, verified", verified.operations);

    let router = Router::new(&fabric, RouteOptions::default());
    let profile = Profile::for_fabric(&fabric)?;
    let setting =
        Environment { fabric: &fabric, router: &router, placement: fabric.gpus(), profile: &profile, delays: &[] };
    let mode = LaunchMode { gpus_per_host: ranks, ..LaunchMode::default() };
    let own = simulate(&schedule, setting, mode, SimulationOptions::default(), Watch::default())?;
    let ring = generator(Algorithm::Ring, &Shape { channels: 2, ..Shape::new(call, Protocol::Simple) })?;
    let ring = simulate(ring.as_ref(), setting, mode, SimulationOptions::default(), Watch::default())?;
    let bound = Bounds::new(&fabric, &router, fabric.gpus(), 0).bound(&call);
    for (name, time) in [(name.as_str(), own.time), ("ring", ring.time), ("lower bound", bound.time)] {
        println!("{name:<18} {:>7.2} µs", time.us());
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(&path, json::to_json(&schedule))?;
        println!("written to {path}");
    }
    Ok(())
}
