//! Library whose default choice is predicted.

use clap::{Args, ValueEnum};
use fabricast_libraries::{BufferRegistration, Library};

/// Library that the plan is restricted to or compared with.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Library")]
pub struct LibraryArgs {
    /// Library to plan for and compare with, for example `nccl-2.28.9`; `none` for no library
    ///
    /// Restricts the candidates to those that the library can run, and shows the library's default choice (`simulate`
    /// runs that choice if no strategy is given). Examples: `nccl`, `nccl-2.30`, `open_mpi-5.0`. Default: the profile's
    /// library is shown and does not restrict the candidates.
    #[arg(long, value_name = "NAME", value_parser = parse_library)]
    pub library: Option<LibraryChoice>,
    /// Registration of the library's buffers
    #[arg(long, value_enum, value_name = "HOW", default_value_t, hide_default_value = true)]
    pub registered: RegisteredArg,
}

/// Value of `--library`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryChoice {
    /// `none`: no library restricts the candidates, and no default choice is shown.
    None,
    /// The library that restricts the candidates and whose default choice is shown.
    One(Library),
}

fn parse_library(text: &str) -> Result<LibraryChoice, String> {
    if text == "none" {
        return Ok(LibraryChoice::None);
    }
    text.parse().map(LibraryChoice::One).map_err(|error: fabricast_libraries::UnknownLibrary| error.to_string())
}

/// Registration of buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RegisteredArg {
    /// Not registered
    #[default]
    Plain,
    /// Registered as symmetric windows
    Symmetric,
}

impl From<RegisteredArg> for BufferRegistration {
    fn from(arg: RegisteredArg) -> Self {
        match arg {
            RegisteredArg::Plain => Self::Plain,
            RegisteredArg::Symmetric => Self::Symmetric,
        }
    }
}
