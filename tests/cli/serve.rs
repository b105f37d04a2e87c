//! `serve` as a process: it prints its address, answers over a socket, and ends by signals.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::run::{command, refused};

/// Running server, which is killed when it is dropped.
pub struct Server {
    child: Child,
    /// Address that it printed, without the closing slash and the token.
    pub address: String,
    /// Query with the token; empty without a token.
    query: String,
}

impl Server {
    /// Starts a server on any free port.
    pub fn start(arguments: &str) -> Self {
        let mut child = command(Path::new(env!("CARGO_TARGET_TMPDIR")), &format!("serve --port 0 {arguments}"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, query) = line.trim_end().rsplit_once('/').unwrap_or_else(|| panic!("{line}"));
        Self { child, address: address.to_owned(), query: query.to_owned() }
    }

    /// Returns the address that it printed.
    pub fn link(&self) -> String {
        format!("{}/{}", self.address, self.query)
    }

    /// Sends a request and returns the response.
    fn ask(&self, request: &str) -> String {
        let host = self.address.strip_prefix("http://").unwrap().split('/').next().unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let (line, rest) = request.split_once("\r\n").unwrap();
        write!(stream, "{line}\r\nHost: {host}\r\nConnection: close\r\n{rest}").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Ends the server by a signal; returns its exit code and its messages.
    fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let status = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
        let code = self.child.wait().unwrap().code();
        let mut messages = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
        (code, messages)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn server_answers_and_ends_by_a_signal() {
    for (signal, code, message) in [("TERM", 143, "terminated\n"), ("INT", 130, "interrupted\n")] {
        let server = Server::start("");
        assert!(server.address.starts_with("http://127.0.0.1:"), "{}", server.address);
        let page = server.ask("GET / HTTP/1.1\r\n\r\n");
        assert!(
            page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("content-security-policy: default-src 'none'")
        );
        let form = "machine_b=none&machine_c=none&nodes_a=1&model=llama-3-8b&global_batch=32";
        let answer = server.ask(&format!(
            "POST /answers HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            form.len()
        ));
        let is_answer = answer.starts_with("HTTP/1.1 200") && answer.contains("\"state\":\"done\"");
        assert!(is_answer || answer.starts_with("HTTP/1.1 202"), "{answer}");
        assert_eq!(server.end(signal), (Some(code), message.to_owned()));
    }
}

#[test]
fn token_is_required_where_other_machines_can_connect() {
    let server = Server::start("--address 0.0.0.0");
    let token = server.query.strip_prefix("?token=").unwrap_or_else(|| panic!("{}", server.query));
    assert!(token.len() == 32 && server.address.starts_with("http://127.0.0.1:"));
    let base = server.address.rsplit('/').next().unwrap();
    assert_eq!(base.len(), 32, "{}", server.address);
    for path in ["/".to_owned(), format!("/{base}/")] {
        assert!(server.ask(&format!("GET {path} HTTP/1.1\r\n\r\n")).starts_with("HTTP/1.1 401"));
    }
    assert!(server.ask(&format!("GET /{base}/?token={token} HTTP/1.1\r\n\r\n")).starts_with("HTTP/1.1 303"));
    let header = format!("GET /{base}/ HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n");
    assert!(server.ask(&header).starts_with("HTTP/1.1 200"));
    assert!(Server::start("--token").query.starts_with("?token="));
}

#[test]
fn file_with_the_token_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("address");
    let child = command(folder.path(), "serve --port 0 --token -o address").stderr(Stdio::piped()).spawn().unwrap();
    let server = Server { child, address: String::new(), query: String::new() };
    while !path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::read_to_string(&path).unwrap().contains("?token="));
    assert_eq!(server.end("TERM").0, Some(143));
}

#[test]
fn address_in_use_is_reported() {
    let server = Server::start("");
    let port = server.address.rsplit(':').next().unwrap();
    refused(Path::new("."), &format!("serve --port {port}"), "name another port by --port");
    refused(Path::new("."), "serve --address 192.0.2.1 --port 0", "cannot listen on 192.0.2.1:0");
    refused(Path::new("."), "serve --address localhost", "invalid value");
    for name in ["http://node17", "node17:80", "", "a..b"] {
        refused(Path::new("."), &format!("serve --port 0 --host={name}"), "expected a host name");
    }
}
