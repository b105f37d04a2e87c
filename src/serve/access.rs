//! Access checks before any request is answered: method, host, origin, and token.
//!
//! A page of another site can make a browser send requests to this server, and by DNS rebinding it can make the browser
//! take the server for its own. The checks follow the fetch standard and RFC 9110: browsers state the site of the page
//! in `Origin` and `Sec-Fetch-Site`, and the name that they resolved in `Host`.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, Method, StatusCode, Uri, header};

use super::random::{self, RandomError};

/// Maximum length of path and query, in bytes.
const MAX_ADDRESS_LENGTH: usize = 8192;

/// Name of the token in the query of the first link.
pub const TOKEN: &str = "token";

/// Name of the cookie with the token.
const COOKIE: &str = "fabricast_token";

/// Secret that every request must state.
#[derive(Clone)]
pub struct Token {
    value: String,
    /// Random path of all addresses of the server, which begins and ends with a slash.
    base: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// Draws a token.
    ///
    /// # Errors
    /// [`RandomError`].
    pub fn draw() -> Result<Self, RandomError> {
        Ok(Self { value: random::hexadecimal()?, base: format!("/{}/", random::hexadecimal()?) })
    }

    /// Returns the token as in the query of the first link.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the header that makes a browser state the token from now on, until it is closed. `Lax` permits links
    /// from other sites to the page, but no requests of their scripts. Browsers send cookies to all ports of a host
    /// (RFC 6265, section 8.5); the path keeps this one from other servers.
    pub fn set_cookie(&self) -> String {
        format!("{COOKIE}={}; HttpOnly; SameSite=Lax; Path={}", self.value, self.base)
    }

    /// Returns true if a text is the token. The time does not depend on how many characters agree.
    pub fn is_equal(&self, text: &str) -> bool {
        let difference = self.value.bytes().zip(text.bytes()).fold(0, |difference, (a, b)| difference | (a ^ b));
        text.len() == self.value.len() && std::hint::black_box(difference) == 0
    }

    /// Returns true if a cookie or `Authorization: Bearer` states the token.
    fn is_stated(&self, headers: &HeaderMap) -> bool {
        let texts = |name| headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        let bearer = |text: &str| {
            let parts = text.split_once(' ');
            parts.is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && self.is_equal(token.trim()))
        };
        let cookie = |text: &str| {
            let values = text.split(';').filter_map(|pair| pair.trim().split_once('='));
            values.into_iter().any(|(name, value)| name == COOKIE && self.is_equal(value))
        };
        texts(header::AUTHORIZATION).any(bearer) || texts(header::COOKIE).any(cookie)
    }
}

/// Request that is refused before it reaches the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Method other than GET, HEAD and POST.
    #[error("method: expected GET or POST")]
    Method,
    /// Path and query are too long.
    #[error("address: longer than {MAX_ADDRESS_LENGTH} bytes")]
    LongAddress,
    /// Name in `Host` by which this server is not known.
    #[error("host: expected localhost, an IP address, or a name that `fabricast serve --host NAME` permits")]
    Host,
    /// Request of a page of another site.
    #[error("origin: only the server's own page may send requests")]
    Origin,
    /// Missing or wrong token.
    #[error("token: open the address that `fabricast serve` printed, with its token")]
    Token,
}

impl Refusal {
    /// Returns the status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::LongAddress => StatusCode::URI_TOO_LONG,
            Self::Host | Self::Origin => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Rules of access of a server.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Token, if one is required.
    pub token: Option<Token>,
    /// Host names that are valid in addition to `localhost` and IP addresses, in lower case.
    pub names: Vec<String>,
}

impl Access {
    /// Returns the path of the page, under which all other addresses are: random if a token is required.
    pub fn base(&self) -> &str {
        self.token.as_ref().map_or("/", |token| &token.base)
    }

    /// Checks the method, host and origin of a request.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check_origin(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if ![Method::GET, Method::HEAD, Method::POST].contains(method) {
            return Err(Refusal::Method);
        }
        if uri.path_and_query().is_some_and(|address| address.as_str().len() > MAX_ADDRESS_LENGTH) {
            return Err(Refusal::LongAddress);
        }
        let host = single(headers, header::HOST).filter(|host| self.is_own_name(host)).ok_or(Refusal::Host)?;
        if headers.contains_key(header::ORIGIN) {
            let origin = single(headers, header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
            if !origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host)) {
                return Err(Refusal::Origin);
            }
        }
        // Links from other sites may open the page, but no download, whose answer would be computed.
        let opens_page = *method == Method::GET && uri.path() == self.base();
        let navigates = header_text(headers, "sec-fetch-mode") == Some("navigate");
        let is_document = header_text(headers, "sec-fetch-dest").is_none_or(|destination| destination == "document");
        if is_foreign(headers) && !(opens_page && navigates && is_document) {
            return Err(Refusal::Origin);
        }
        Ok(())
    }

    /// Checks that a request states the token, if one is required.
    ///
    /// # Errors
    /// [`Refusal::Token`].
    pub fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match &self.token {
            Some(token) if !token.is_stated(headers) => Err(Refusal::Token),
            _ => Ok(()),
        }
    }

    /// Returns true if `Host` names this server: an IP address cannot be rebound, so that any is valid. The port is
    /// not compared, because a tunnel may have another one.
    fn is_own_name(&self, host: &str) -> bool {
        if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            return address.parse::<Ipv6Addr>().is_ok() && is_port_or_empty(port);
        }
        let (name, port) = host.find(':').map_or((host, ""), |colon| host.split_at(colon));
        let name = name.to_ascii_lowercase();
        is_port_or_empty(port)
            && (name == "localhost" || name.parse::<Ipv4Addr>().is_ok() || self.names.contains(&name))
    }
}

/// Returns true if a browser states that the request comes from a page of another site.
pub fn is_foreign(headers: &HeaderMap) -> bool {
    header_text(headers, "sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site))
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns a header that occurs once.
fn single(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

fn is_port_or_empty(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
        let headers = headers.iter().map(|(name, value)| {
            (header::HeaderName::from_static(name), header::HeaderValue::from_str(value).unwrap())
        });
        let access = Access { token: None, names: vec!["node17".to_owned()] };
        access.check_origin(&Method::POST, &Uri::from_static("/answers"), &headers.collect())
    }

    #[test]
    fn only_names_that_cannot_be_rebound_are_hosts() {
        for host in
            ["localhost", "localhost:8380", "LOCALHOST:1", "127.0.0.1:80", "10.0.0.7", "[::1]:8380", "node17:80"]
        {
            assert_eq!(check(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "localhost:80:80",
            "localhost:",
            "[::1",
            "[example.org]",
            "[::1].example.org",
            "node17.example.org",
            "localhost:99999",
            "127.1",
        ] {
            assert_eq!(check(&[("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(check(&[]), Err(Refusal::Host));
        assert_eq!(check(&[("host", "localhost"), ("host", "localhost")]), Err(Refusal::Host));
    }

    #[test]
    fn requests_of_other_sites_are_refused() {
        let host = ("host", "localhost:8380");
        assert_eq!(check(&[host, ("origin", "http://localhost:8380")]), Ok(()));
        for origin in ["http://localhost:8381", "https://localhost:8380", "http://example.org", "null", ""] {
            assert_eq!(check(&[host, ("origin", origin)]), Err(Refusal::Origin), "{origin}");
        }
        for (site, expected) in [
            ("same-origin", Ok(())),
            ("none", Ok(())),
            ("cross-site", Err(Refusal::Origin)),
            ("same-site", Err(Refusal::Origin)),
        ] {
            assert_eq!(check(&[host, ("sec-fetch-site", site)]), expected, "{site}");
        }
    }

    #[test]
    fn links_of_other_sites_may_open_the_page_but_not_embed_it() {
        let check_path = |method: Method, path: &'static str, mode: &'static str, destination: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("host", "localhost"),
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", destination),
            ] {
                headers.insert(name, header::HeaderValue::from_static(value));
            }
            Access::default().check_origin(&method, &Uri::from_static(path), &headers)
        };
        let check = |method, mode, destination| check_path(method, "/", mode, destination);
        assert_eq!(check(Method::GET, "navigate", "document"), Ok(()));
        assert_eq!(check(Method::GET, "navigate", "iframe"), Err(Refusal::Origin));
        assert_eq!(check(Method::GET, "no-cors", "image"), Err(Refusal::Origin));
        assert_eq!(check(Method::POST, "navigate", "document"), Err(Refusal::Origin));
        assert_eq!(check_path(Method::GET, "/?years=3", "navigate", "document"), Ok(()));
        for path in ["/results.json", "/report.html?years=3", "/study.toml", "/answers/0"] {
            assert_eq!(check_path(Method::GET, path, "navigate", "document"), Err(Refusal::Origin), "{path}");
        }
    }

    #[test]
    fn token_must_be_complete() {
        let token = Token::draw().unwrap();
        let value = token.value().to_owned();
        assert!(token.is_equal(&value) && value.len() == 32);
        let changed = format!("{}{}", &value[..31], if value.ends_with('0') { '1' } else { '0' });
        for wrong in ["", &value[..31], &format!("{value}0"), &changed] {
            assert!(!token.is_equal(wrong), "{wrong}");
        }
        assert_ne!(Token::draw().unwrap().value(), value);
        assert!(!format!("{token:?}").contains(&value));
    }
}
