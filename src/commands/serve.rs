//! `serve`: the what-if page in a browser.

use std::convert::Infallible;
use std::net::SocketAddr;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::files::{self, StagedFile};
use crate::output::Output;
use crate::serve::{self, ServeError, Settings, TokenUse};

pub fn run(args: &ServeArgs, output: &Output) -> Result<(), Failure> {
    let token = if args.token { TokenUse::Always } else { TokenUse::IfReachable };
    let address = SocketAddr::new(args.address, args.port);
    let settings = Settings { address, names: args.hosts.clone(), token };
    // The link contains the token, so that other users may not read it.
    let write = |link: &str| {
        output.write_all(link, &[], Vec::new(), |staged| {
            staged.iter().try_for_each(StagedFile::restrict_to_owner)?;
            files::commit(staged)
        })
    };
    // It ends by a signal.
    let never: Infallible = serve::serve(&settings, write)?;
    match never {}
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match &error {
            ServeError::Listen { error: cause, .. } if cause.kind() == std::io::ErrorKind::AddrInUse => {
                Self::input_with_help(error.to_string(), "name another port by --port, or any free one by --port 0")
            }
            ServeError::Listen { .. } => Self::input(error.to_string()),
            ServeError::Runtime(_) | ServeError::Random(_) => Self::Failed(error.to_string()),
        }
    }
}
