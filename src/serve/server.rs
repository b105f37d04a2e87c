//! Server: sockets, connections and their limits.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
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

/// Time after which a connection ends, and time that its last request has then. A browser opens a new one; a peer that
/// does not read its responses holds none for ever.
const LIFETIME: Lifetime = Lifetime { total: Duration::from_secs(60), last_request: Duration::from_secs(35) };

/// Maximum size of the headers of a request, in bytes.
const MAX_HEADERS: usize = 32 * 1024;

/// Interval at which tickets are checked.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time until the next attempt to accept connections after an error, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limits on the time of a connection.
#[derive(Clone, Copy, Debug)]
struct Lifetime {
    /// Time after which no further request is taken.
    total: Duration,
    /// Time after that until the connection is closed, whether its last request is answered or not.
    last_request: Duration,
}

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
    /// Host names that are valid in addition to `localhost` and IP addresses, in lower case.
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
        let names = settings.names.clone();
        let access = Access { token, names };
        started(&link(address, &access))?;
        let answerer = Answerer::default();
        let jobs = Arc::new(Jobs::new(Box::new(move |study, progress| answerer.answer(study, progress))));
        tokio::spawn(expire_tickets(Arc::clone(&jobs)));
        Ok(accept(listener, router(access, jobs)).await)
    })
}

/// Returns the address to open. A server on all addresses is opened by the loopback address.
fn link(address: SocketAddr, access: &Access) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
    };
    let query = access.token.as_ref().map_or_else(String::new, |token| format!("?{TOKEN}={}", token.value()));
    format!("http://{}{}{query}", SocketAddr::new(ip, address.port()), access.base())
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
                let connection = connection(stream, router.clone(), LIFETIME);
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
async fn connection(stream: TcpStream, router: Router, lifetime: Lifetime) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    if tokio::time::timeout(lifetime.total, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(lifetime.last_request, connection).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn connection_of_a_peer_that_sends_no_body_ends() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let kind = "Content-Type: application/x-www-form-urlencoded";
            write!(peer, "POST /answers HTTP/1.1\r\nHost: localhost\r\n{kind}\r\nContent-Length: 9\r\n\r\n").unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let answerer = Answerer::default();
            let jobs = Arc::new(Jobs::new(Box::new(move |study, progress| answerer.answer(study, progress))));
            let lifetime = Lifetime { total: Duration::from_millis(20), last_request: Duration::from_millis(20) };
            let ended = connection(stream, router(Access::default(), jobs), lifetime);
            assert!(tokio::time::timeout(HEADER_TIMEOUT, ended).await.is_ok());
        });
    }
}
