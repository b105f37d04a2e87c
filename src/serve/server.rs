//! Server: sockets, connections and their limits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::access::{Access, TOKEN, Token};
use super::answer::Answerer;
use super::jobs::Jobs;
use super::random::RandomError;
use super::routes::router;

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 128;

/// Time in which a connection must send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum size of the headers of a request, in bytes.
const MAX_HEADERS: usize = 32 * 1024;

/// Interval at which tickets are checked.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time until the next attempt to accept connections after an error, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Requirement of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUse {
    /// Only on addresses that other machines can reach.
    IfReachable,
    /// Always.
    Always,
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on; port 0 is any free port.
    pub address: SocketAddr,
    /// Host names that are valid in addition to `localhost` and IP addresses.
    pub names: Vec<String>,
    /// Requirement of a token.
    pub token: TokenUse,
}

/// A server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Requested address.
        address: SocketAddr,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The asynchronous runtime cannot start.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
    /// There is no token.
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Serves the page until the process ends. `started` receives the address to open.
///
/// # Errors
/// [`ServeError`], and the error of `started`.
pub fn serve<E: From<ServeError>>(
    settings: &Settings,
    started: impl FnOnce(&str) -> Result<(), E>,
) -> Result<Infallible, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    runtime.map_err(ServeError::Runtime)?.block_on(async {
        let listen_error = |error| ServeError::Listen { address: settings.address, error };
        let listener = TcpListener::bind(settings.address).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let needs_token = settings.token == TokenUse::Always || !address.ip().is_loopback();
        let token = if needs_token { Some(Token::draw().map_err(ServeError::from)?) } else { None };
        started(&link(address, token.as_ref()))?;
        let names = settings.names.iter().map(|name| name.to_ascii_lowercase()).collect();
        let answerer = Answerer::default();
        let jobs = Arc::new(Jobs::new(Box::new(move |study, progress| answerer.answer(study, progress))));
        tokio::spawn(expire_tickets(Arc::clone(&jobs)));
        Ok(accept(listener, router(Access { token, names }, jobs)).await)
    })
}

/// Returns the address to open. A server on all addresses is opened by the loopback address.
fn link(address: SocketAddr, token: Option<&Token>) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    let query = token.map_or_else(String::new, |token| format!("?{TOKEN}={}", token.value()));
    format!("http://{}/{query}", SocketAddr::new(ip, address.port()))
}

async fn expire_tickets(jobs: Arc<Jobs>) {
    let mut interval = tokio::time::interval(EXPIRY_INTERVAL);
    loop {
        interval.tick().await;
        jobs.expire(Instant::now());
    }
}

async fn accept(listener: TcpListener, router: Router) -> Infallible {
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = Arc::clone(&connections).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let connection = connection(stream, router.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

/// Serves a connection until it ends. Its errors concern the peer only.
async fn connection(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let _ = connection.await;
}
