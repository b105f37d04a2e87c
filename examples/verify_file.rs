//! Reads a schedule file, proves that it computes its collective, and prints the verdict.
//!
//! ```text
//! cargo run --release --example verify_file
//! cargo run --release --example verify_file -- tests/data/schedules/msccl-allreduce-allpairs-8n-ll-32tb.xml
//! ```
//!
//! The format is detected from the content: fabricast's JSON, MSCCL XML or an MSCCL++ plan. The exit code is 1 if the
//! schedule is wrong. Without a path, the program reads a built-in all_gather of two ranks in MSCCL's format, and a
//! copy of it in which rank 0 stores what it receives in the wrong place:
//!
//! ```text
//! pair.xml: allgather_pair, all_gather of 2 ranks
//!   ok: 4 operations without race or deadlock give every rank its result
//! broken.xml: allgather_pair, all_gather of 2 ranks
//!   unread: operation 0 (rank 0, channel 0, local copy): writes output chunk 0 of rank 0, which is never read …
//! ```
#![allow(clippy::print_stdout, missing_docs)] // a program for people

use std::error::Error;
use std::process::ExitCode;

use fabricast_sim::schedule::format;
use fabricast_sim::verify::{VerifyOptions, verify};

/// Both ranks copy their block to the output, send it to the other rank and receive its block.
const PAIR: &str = r#"<algo name="allgather_pair" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2"
  coll="allgather" inplace="0" outofplace="1" minBytes="0" maxBytes="1048576">
  <gpu id="0" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="1" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="0">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"#;

/// Reads and verifies a text, and prints the verdict. Returns true if the schedule is correct.
fn report(text: &str, name: &str) -> Result<bool, Box<dyn Error>> {
    let schedule = format::read(text, name)?;
    let header = schedule.header();
    println!("{name}: {}, {} of {} ranks", header.name, header.call.collective, header.call.ranks);
    let verdict = verify(&schedule, &VerifyOptions::default());
    match &verdict {
        Ok(verified) => {
            println!("  ok: {} operations without race or deadlock give every rank its result", verified.operations);
        }
        Err(fault) => println!("  {}: {fault}", fault.kind.name()),
    }
    Ok(verdict.is_ok())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    if let Some(path) = std::env::args().nth(1) {
        let is_correct = report(&std::fs::read_to_string(&path)?, &path)?;
        return Ok(if is_correct { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    report(PAIR, "pair.xml")?;
    let received = r#"type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="1""#;
    report(&PAIR.replace(received, &received.replace("dstoff=\"1\"", "dstoff=\"0\"")), "broken.xml")?;
    Ok(ExitCode::SUCCESS)
}
