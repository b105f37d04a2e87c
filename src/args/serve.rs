//! Arguments of `serve`.

use std::net::{IpAddr, Ipv4Addr};

use clap::Args;

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on; others than the loopback address are reachable from other machines, with a token
    ///
    /// The token is part of the printed address. The connection is not encrypted: for remote use, prefer an SSH tunnel
    /// to the loopback address.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub address: IpAddr,
    /// Port to listen on; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 8380)]
    pub port: u16,
    /// Host name by which browsers may open the page; may be repeated; default: localhost and IP addresses
    #[arg(long = "host", value_name = "NAME", value_parser = host_name)]
    pub hosts: Vec<String>,
    /// Require a token on the loopback address too, for machines with several users
    #[arg(long)]
    pub token: bool,
}

/// Maximum length of a host name (RFC 1035, section 2.3.4).
const MAX_HOST_NAME: usize = 253;

/// Reads a host name as browsers state it, without scheme and port.
///
/// # Errors
/// Message that says what is expected.
fn host_name(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() < 64 && label.bytes().all(is_valid)
    };
    match text.len() <= MAX_HOST_NAME && text.split('.').all(is_label) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected a host name without scheme and port, such as node17.example.org".to_owned()),
    }
}
