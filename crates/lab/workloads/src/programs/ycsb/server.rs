//! A connection to a server: Redis' protocol, or memcached's text protocol.

use std::fmt;
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::address::Address;
use crate::memcached;
use crate::program::Failure;
use crate::resp::{Client, Reply, Stream};

/// An answer that takes longer is an error.
const PATIENCE: Duration = Duration::from_secs(60);
/// Redis' sorted set of all keys, for scans.
const INDEX: &[u8] = b"ycsb-index";

/// Connects and disconnects: whether somebody listens there.
///
/// # Errors
/// Nobody does.
pub fn reach(address: &Address) -> io::Result<()> {
    connect(address).map(drop)
}

fn connect(address: &Address) -> io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Box::new(stream)
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

/// A connection.
pub(super) enum Server {
    Redis(Client),
    Memcached(BufReader<Box<dyn Stream>>),
}

fn open(address: &Address) -> Result<Box<dyn Stream>, Failure> {
    let told = |error| Failure::Outside(format!("cannot connect to {address}: {error}"));
    connect(address).map_err(told)
}

fn unexpected<T>(what: &str, reply: impl fmt::Debug) -> Result<T, Failure> {
    Err(Failure::Outside(format!("unexpected reply to {what}: {reply:?}")))
}

/// An error in words, of a request that the server was to answer.
fn request_error(what: &str) -> impl Fn(io::Error) -> Failure + '_ {
    use io::ErrorKind::{
        BrokenPipe, ConnectionReset, InvalidData, TimedOut, UnexpectedEof, WouldBlock,
    };
    move |error| {
        Failure::Outside(match error.kind() {
            UnexpectedEof | ConnectionReset | BrokenPipe => {
                format!("the server closed the connection (at {what})")
            }
            WouldBlock | TimedOut => {
                format!("the server did not answer {what} within {} s", PATIENCE.as_secs())
            }
            InvalidData => format!("unexpected reply to {what}: {error}"),
            _ => format!("{what}: {error}"),
        })
    }
}

impl Server {
    pub(super) fn redis(address: &Address) -> Result<Self, Failure> {
        Ok(Self::Redis(Client::over(open(address)?)))
    }

    pub(super) fn memcached(address: &Address) -> Result<Self, Failure> {
        Ok(Self::Memcached(BufReader::new(open(address)?)))
    }

    pub(super) fn read(&mut self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        match self {
            Self::Redis(client) => {
                match client.command(&[b"GET", key.as_bytes()]).map_err(request_error("GET"))? {
                    Reply::Bulk(found) => Ok(found),
                    reply => unexpected("GET", reply),
                }
            }
            Self::Memcached(stream) => {
                let request = format!("get {key}\r\n");
                stream.get_mut().write_all(request.as_bytes()).map_err(request_error("get"))?;
                memcached::read_value(stream, key).map_err(request_error("get"))
            }
        }
    }

    /// Writes a value, and the key to the index if it is to be found by scans.
    pub(super) fn write(&mut self, key: &str, value: &[u8], index: bool) -> Result<(), Failure> {
        match self {
            Self::Redis(client) => {
                client.push(&[b"SET", key.as_bytes(), value]);
                if index {
                    client.push(&[b"ZADD", INDEX, b"0", key.as_bytes()]);
                }
                let mut refused = None;
                client
                    .flush(&mut |reply| {
                        if !matches!(&reply, Reply::Status(_) | Reply::Integer(_)) {
                            refused = Some(reply);
                        }
                    })
                    .map_err(request_error("SET"))?;
                refused.map_or(Ok(()), |reply| unexpected("SET", reply))
            }
            Self::Memcached(stream) => {
                let mut request = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
                request.extend_from_slice(value);
                request.extend_from_slice(b"\r\n");
                stream.get_mut().write_all(&request).map_err(request_error("set"))?;
                memcached::read_stored(stream).map_err(request_error("set"))
            }
        }
    }

    /// Begins an empty index.
    pub(super) fn forget_index(&mut self) -> Result<(), Failure> {
        match self {
            Self::Redis(client) => {
                client.command(&[b"DEL", INDEX]).map(drop).map_err(request_error("DEL"))
            }
            Self::Memcached(_) => Ok(()),
        }
    }

    /// CPU time of the server so far, in seconds, if it tells it.
    pub(super) fn cpu(&mut self) -> Option<f64> {
        let fields = match self {
            Self::Redis(client) => client.info("cpu").ok()?,
            Self::Memcached(stream) => {
                stream.get_mut().write_all(b"stats\r\n").ok()?;
                memcached::read_stats(stream).ok()?
            }
        };
        let own = ["used_cpu_user", "used_cpu_sys", "rusage_user", "rusage_system"];
        let own = fields.iter().filter(|(name, _)| own.contains(&name.as_str()));
        let own: Vec<f64> = own.filter_map(|(_, seconds)| seconds.parse().ok()).collect();
        (!own.is_empty()).then(|| own.iter().sum())
    }

    /// Keys from this one on, in order, with their values.
    pub(super) fn scan(&mut self, from: &str, count: u64) -> Result<Vec<Record>, Failure> {
        let Self::Redis(client) = self else {
            return Err(Failure::Outside("memcached cannot scan".into()));
        };
        let (from, count) = (format!("[{from}"), count.to_string());
        let range: [&[u8]; 7] =
            [b"ZRANGEBYLEX", INDEX, from.as_bytes(), b"+", b"LIMIT", b"0", count.as_bytes()];
        let keys =
            bulks("ZRANGEBYLEX", client.command(&range).map_err(request_error("ZRANGEBYLEX"))?)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut get: Vec<&[u8]> = vec![b"MGET"];
        get.extend(keys.iter().map(Vec::as_slice));
        let values = bulks("MGET", client.command(&get).map_err(request_error("MGET"))?)?;
        Ok(keys.into_iter().zip(values).collect())
    }
}

/// A key and its value.
pub(super) type Record = (Vec<u8>, Vec<u8>);

fn bulks(what: &str, reply: Reply) -> Result<Vec<Vec<u8>>, Failure> {
    let Reply::Array(Some(elements)) = reply else { return unexpected(what, reply) };
    let bytes = |element| match element {
        Reply::Bulk(Some(bytes)) => Ok(bytes),
        other => unexpected(what, other),
    };
    elements.into_iter().map(bytes).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;
    use crate::memcached::line;
    use crate::resp::read_reply;

    /// What a server keeps, and how many requests it answers before it closes its connections.
    struct FakeStore {
        records: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
        left: AtomicI64,
    }

    impl FakeStore {
        fn answers(&self) -> Option<()> {
            (self.left.fetch_sub(1, Ordering::Relaxed) > 0).then_some(())
        }
    }

    /// A server with the few commands that the client sends, over a Unix socket.
    pub(in super::super) struct Fake {
        directory: tempfile::TempDir,
    }

    impl Fake {
        pub(in super::super) fn redis() -> Self {
            Self::start(redis, i64::MAX)
        }

        pub(in super::super) fn memcached() -> Self {
            Self::start(memcached, i64::MAX)
        }

        /// Servers that are lost after so many answers.
        pub(in super::super) fn lost(after: i64) -> [Self; 2] {
            [Self::start(redis, after), Self::start(memcached, after)]
        }

        pub(in super::super) fn address(&self) -> Address {
            Address::Unix(self.directory.path().join("socket").display().to_string())
        }

        fn start(serve: fn(UnixStream, &FakeStore) -> Option<()>, answers: i64) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
            // The threads end with the test's process.
            thread::spawn(move || {
                let (records, left) = (Mutex::default(), AtomicI64::new(answers));
                let kept = Arc::new(FakeStore { records, left });
                for stream in listener.incoming().map_while(Result::ok) {
                    let kept = kept.clone();
                    thread::spawn(move || serve(stream, &kept));
                }
            });
            Self { directory }
        }
    }

    fn bulk(bytes: Option<&[u8]>) -> Vec<u8> {
        let Some(bytes) = bytes else { return b"$-1\r\n".to_vec() };
        [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
    }

    fn redis(stream: UnixStream, kept: &FakeStore) -> Option<()> {
        let mut requests = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            let Reply::Array(Some(parts)) = read_reply(&mut requests).ok()? else { return None };
            let parts: Vec<Vec<u8>> = parts
                .into_iter()
                .filter_map(|part| if let Reply::Bulk(bytes) = part { bytes } else { None })
                .collect();
            kept.answers()?;
            let mut records = kept.records.lock().ok()?;
            let array = |values: Vec<Vec<u8>>| {
                [format!("*{}\r\n", values.len()).into_bytes(), values.concat()].concat()
            };
            let answer = match parts[0].as_slice() {
                b"SET" => {
                    records.insert(parts[1].clone(), parts[2].clone());
                    b"+OK\r\n".to_vec()
                }
                b"INFO" => bulk(Some(b"# CPU\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.5\r\n")),
                b"GET" => bulk(records.get(&parts[1]).map(Vec::as_slice)),
                b"MGET" => {
                    let value = |key| bulk(records.get(key).map(Vec::as_slice));
                    array(parts[1..].iter().map(value).collect())
                }
                b"ZRANGEBYLEX" => {
                    let count = std::str::from_utf8(&parts[6]).ok()?.parse().ok()?;
                    let keys = records.range(parts[2][1..].to_vec()..).take(count);
                    array(keys.map(|(key, _)| bulk(Some(key))).collect())
                }
                _ => b":1\r\n".to_vec(),
            };
            stream.write_all(&answer).ok()?;
        }
    }

    fn memcached(stream: UnixStream, kept: &FakeStore) -> Option<()> {
        let mut requests = BufReader::new(stream.try_clone().ok()?);
        let mut stream = stream;
        loop {
            let request = line(&mut requests).ok()?;
            let fields: Vec<&str> = request.split(' ').collect();
            if fields[0] == "stats" {
                stream.write_all(b"STAT threads 4\r\nSTAT rusage_user 0.5\r\nEND\r\n").ok()?;
                continue;
            }
            kept.answers()?;
            let mut records = kept.records.lock().ok()?;
            let key = fields[1].as_bytes().to_vec();
            let answer = if fields[0] == "set" {
                let mut value = vec![0; fields[4].parse::<usize>().ok()? + 2];
                requests.read_exact(&mut value).ok()?;
                value.truncate(value.len() - 2);
                records.insert(key, value);
                b"STORED\r\n".to_vec()
            } else {
                let found = records.get(&key).map(|value| {
                    let head = format!("VALUE {} 0 {}\r\n", fields[1], value.len());
                    [head.as_bytes(), value, b"\r\n"].concat()
                });
                [found.unwrap_or_default(), b"END\r\n".to_vec()].concat()
            };
            stream.write_all(&answer).ok()?;
        }
    }

    #[test]
    fn addresses_are_read_and_others_refused() {
        assert_eq!("unix:/run/x".parse(), Ok(Address::Unix("/run/x".into())));
        assert_eq!("[::1]:6379".parse(), Ok(Address::Tcp("[::1]:6379".into())));
        for wrong in ["/run/x", "localhost", ":6379", "host:port", "host:70000"] {
            assert!(wrong.parse::<Address>().unwrap_err().contains("HOST:PORT"), "{wrong}");
        }
        let nobody = reach(&Address::Unix("/nonexistent".into()));
        assert!(nobody.is_err());
    }
}
