//! Which library is asked what it would choose by itself.

use clap::{Args, ValueEnum};
use fabricast_planner::library::{Library, Registered};

/// The library beside the plan.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Library")]
pub struct LibraryArgs {
    /// Restrict the picks to what a library can run, and show what it would choose by itself (simulate: run that, where
    /// no strategy is named): `nccl`, `nccl-2.28.9`, `nccl-2.30`, `open_mpi-5.0`; `none` shows no library. By default
    /// that of the profile is shown, and restricts nothing
    #[arg(long, value_name = "NAME", value_parser = choice)]
    pub library: Option<LibraryChoice>,
    /// How the library's own buffers are registered
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_default_value = true)]
    pub registered: RegisteredArg,
}

/// What `--library` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryChoice {
    /// None.
    None,
    /// One.
    One(Library),
}

fn choice(text: &str) -> Result<LibraryChoice, String> {
    if text == "none" {
        return Ok(LibraryChoice::None);
    }
    text.parse().map(LibraryChoice::One).map_err(|error: fabricast_planner::library::UnknownLibrary| error.to_string())
}

/// How buffers are registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RegisteredArg {
    /// Not at all
    #[default]
    Plain,
    /// In symmetric windows
    Symmetric,
}

impl From<RegisteredArg> for Registered {
    fn from(arg: RegisteredArg) -> Self {
        match arg {
            RegisteredArg::Plain => Self::Plain,
            RegisteredArg::Symmetric => Self::Symmetric,
        }
    }
}
