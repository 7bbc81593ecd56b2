//! One page over HTTP/1.1, for a scraper on the same machine: `GET /metrics`.
//!
//! One connection at a time, each for a second at most and with a request of a few KiB: nobody holds it up for long,
//! and nothing that comes from the network is kept.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pagemill_kernel::poll;
use pagemill_kernel::process::signal::{ENDS, Signals};

use super::Exporter;

/// How long a scraper may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of a request at most.
const REQUEST: usize = 8 << 10;
/// How often the kernel's buffers are emptied.
const FETCH: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(60);

/// Listens at `address` and answers until a signal asks to end. `listening` is told the address.
///
/// # Errors
/// The address is not of this machine alone, for pages name processes; or it cannot be listened at.
pub fn serve(
    exporter: &mut Exporter,
    address: SocketAddr,
    signals: &Signals,
    listening: impl FnOnce(SocketAddr),
) -> Result<()> {
    ensure!(
        address.ip().is_loopback(),
        "{address} can be reached from other machines, and metrics name processes: listen on 127.0.0.1 or [::1] \
         (and let a proxy with authentication pass it on)"
    );
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    listener.set_nonblocking(true).context("cannot listen")?;
    listening(listener.local_addr().context("cannot listen")?);
    let signalled = signals.descriptor()?;
    loop {
        let timeout = if exporter.is_timed() { FETCH } else { IDLE };
        poll::sleep(&[listener.as_fd(), signalled.as_fd()], timeout)?;
        exporter.fetch();
        while let Some(received) = signals.wait(Duration::ZERO)? {
            if ENDS.contains(&received.signal) {
                return Ok(());
            }
        }
        match listener.accept() {
            // A scraper that goes away is no failure of ours.
            Ok((stream, _)) => drop(answer(stream, exporter)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // It had gone by then, or there are no descriptors: the next one may do.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The page of metrics.
    Metrics,
    /// A word on where they are.
    Index,
    /// What is not there.
    Missing,
    /// By a method that is not answered.
    Refused,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// For what.
    pub resource: Resource,
    /// Whether the head of the answer is enough.
    pub head_only: bool,
}

impl Request {
    /// That of these bytes, when all of its head is there (RFC 9112, section 2.1).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.windows(4).any(|four| four == b"\r\n\r\n").then_some(())?;
        let first = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let first = String::from_utf8_lossy(first);
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let path = path.split('?').next().unwrap_or("");
        let resource = match (method, path) {
            ("GET" | "HEAD", "/metrics") => Resource::Metrics,
            ("GET" | "HEAD", "/") => Resource::Index,
            ("GET" | "HEAD", _) => Resource::Missing,
            _ => Resource::Refused,
        };
        Some(Self { resource, head_only: method == "HEAD" })
    }
}

/// Reads a request and answers it.
fn answer(mut stream: TcpStream, exporter: &mut Exporter) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let Some(request) = request(&mut stream)? else { return Ok(()) };
    let text = "text/plain; charset=utf-8";
    let (status, kind, body) = match request.resource {
        Resource::Metrics => {
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", exporter.page())
        }
        Resource::Index => ("200 OK", text, "pagemill: metrics are at /metrics\n".to_owned()),
        Resource::Missing => ("404 Not Found", text, "metrics are at /metrics\n".to_owned()),
        Resource::Refused => ("405 Method Not Allowed", text, "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !request.head_only {
        stream.write_all(body.as_bytes())?;
    }
    stream.flush()
}

/// A request, when all of its head is there; `None` of one that is too long, too slow or cut off.
fn request(stream: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let end = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > REQUEST {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Ok(None),
            read => head.extend_from_slice(&buffer[..read]),
        }
        if let Some(request) = Request::parse(&head) {
            return Ok(Some(request));
        }
    }
}
