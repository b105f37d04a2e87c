//! `gpu bench`: measures the GPUs and their links.

use fabricast_validate::gpu::bench::{self, Depth, Plan};

use crate::args::BenchArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::output_format::Format;

pub fn run(args: &BenchArgs, output: &Output) -> Result<(), Failure> {
    let plan = Plan {
        depth: if args.quick { Depth::Quick } else { Depth::Full },
        gpus: args.gpus.map(std::num::NonZeroUsize::get),
    };
    let measured = bench::run(plan, &args.libraries.choices())?;
    match output.format {
        Format::Json => output.write_json(&measured),
        Format::Csv => output.write(&measured.csv()),
        Format::Text => output.write(&measured.to_string()),
    }
}
