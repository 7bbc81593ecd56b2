//! A pipelining client of the Redis protocol (RESP 2) over a Unix or TCP stream.
//!
//! ```text
//!  request    *3\r\n $3\r\nSET\r\n $4\r\nname\r\n $5\r\nvalue\r\n
//!  reply      +text  -error  :integer  $length bulk  *count array     (each ended by \r\n)
//! ```
//!
//! Requests gather in a buffer until [`Client::flush`]; replies are then read one by one.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+text`.
    Status(String),
    /// `-text`.
    Error(String),
    /// `:n`.
    Integer(i64),
    /// `$n` with its bytes; `None` is the null bulk.
    Bulk(Option<Vec<u8>>),
    /// `*n` with its elements; `None` is the null array.
    Array(Option<Vec<Reply>>),
}

/// A longer bulk or array than Redis itself allows is a broken stream, not a reply.
const LONGEST: i64 = 512 << 20;

/// An open connection of any kind. It has one type, so that its code is compiled here and not where it is used.
pub trait Stream: Read + Write + Send + fmt::Debug {}

impl<S: Read + Write + Send + fmt::Debug> Stream for S {}

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
    requests: Vec<u8>,
    pending: usize,
}

impl Client {
    /// Connects to the server's Unix socket. A reply that takes longer than `patience` is an
    /// error.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(socket: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(Self::over(Box::new(stream)))
    }

    /// Speaks over an open stream.
    pub fn over(stream: Box<dyn Stream>) -> Self {
        Self { stream: BufReader::with_capacity(1 << 16, stream), requests: Vec::new(), pending: 0 }
    }

    /// Adds a command to the pipeline.
    pub fn push(&mut self, command: &[&[u8]]) {
        self.requests.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for part in command {
            self.requests.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            self.requests.extend_from_slice(part);
            self.requests.extend_from_slice(b"\r\n");
        }
        self.pending += 1;
    }

    /// Sends what was pushed and hands each reply to `take`, in order.
    ///
    /// # Errors
    /// The server cannot be written to or read from, or a reply is malformed or takes too long.
    pub fn flush(&mut self, take: &mut dyn FnMut(Reply)) -> io::Result<()> {
        self.stream.get_mut().write_all(&self.requests)?;
        self.requests.clear();
        while self.pending > 0 {
            self.pending -= 1;
            take(read_reply(&mut self.stream)?);
        }
        Ok(())
    }

    /// Sends one command and returns its reply; an error reply is an [`io::Error`].
    ///
    /// # Errors
    /// As of [`Client::flush`]; it is answered with an error.
    pub fn command(&mut self, command: &[&[u8]]) -> io::Result<Reply> {
        self.push(command);
        let mut last = None;
        self.flush(&mut |reply| last = Some(reply))?;
        match last {
            Some(Reply::Error(text)) => Err(io::Error::other(format!(
                "the server refused {}: {text}",
                String::from_utf8_lossy(command[0])
            ))),
            Some(reply) => Ok(reply),
            None => Err(io::Error::other("no reply")),
        }
    }

    /// The fields of `INFO section`, as the server prints them.
    ///
    /// # Errors
    /// As of [`Client::command`].
    pub fn info(&mut self, section: &str) -> io::Result<Vec<(String, String)>> {
        match self.command(&[b"INFO", section.as_bytes()])? {
            Reply::Bulk(Some(bytes)) => Ok(String::from_utf8_lossy(&bytes)
                .lines()
                .filter_map(|line| line.split_once(':'))
                .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
                .collect()),
            other => Err(io::Error::other(format!("unexpected reply to INFO: {other:?}"))),
        }
    }
}

fn broken(what: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP reply: {what}"))
}

/// Reads one reply.
///
/// # Errors
/// The stream cannot be read, or it is no reply.
pub fn read_reply(stream: &mut impl BufRead) -> io::Result<Reply> {
    read_nested(stream, 8)
}

fn read_nested(stream: &mut impl BufRead, depth: u32) -> io::Result<Reply> {
    let mut line = Vec::new();
    stream.take(1 << 16).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection",
        ));
    }
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| broken("a line without its end"))?;
    let text = std::str::from_utf8(line).map_err(broken)?;
    let kind = text.chars().next().ok_or_else(|| broken("an empty line"))?;
    let rest = &text[kind.len_utf8()..];
    let number = || rest.parse::<i64>().map_err(|_| broken(format!("number {rest:?}")));
    match kind {
        '+' => Ok(Reply::Status(rest.to_owned())),
        '-' => Ok(Reply::Error(rest.to_owned())),
        ':' => number().map(Reply::Integer),
        '$' => match number()? {
            -1 => Ok(Reply::Bulk(None)),
            length @ 0..=LONGEST => {
                let mut bytes = Vec::new();
                stream.take(length as u64 + 2).read_to_end(&mut bytes)?;
                if bytes.len() != length as usize + 2 || !bytes.ends_with(b"\r\n") {
                    return Err(broken("a bulk shorter than it says"));
                }
                bytes.truncate(length as usize);
                Ok(Reply::Bulk(Some(bytes)))
            }
            length => Err(broken(format!("bulk of length {length}"))),
        },
        '*' if depth > 0 => match number()? {
            -1 => Ok(Reply::Array(None)),
            count @ 0..=LONGEST => (0..count)
                .map(|_| read_nested(stream, depth - 1))
                .collect::<io::Result<Vec<_>>>()
                .map(|elements| Reply::Array(Some(elements))),
            count => Err(broken(format!("array of {count}"))),
        },
        _ => Err(broken(format!("line {text:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn parse(bytes: &[u8]) -> io::Result<Reply> {
        read_reply(&mut &bytes[..])
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        assert_eq!(parse(b"+OK\r\n").unwrap(), Reply::Status("OK".into()));
        assert_eq!(parse(b"-ERR no\r\n").unwrap(), Reply::Error("ERR no".into()));
        assert_eq!(parse(b":-7\r\n").unwrap(), Reply::Integer(-7));
        assert_eq!(parse(b"$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(Some(b"a\r\nb".to_vec())));
        assert_eq!(parse(b"$-1\r\n").unwrap(), Reply::Bulk(None));
        let nested = Reply::Array(Some(vec![Reply::Integer(1), Reply::Array(Some(vec![]))]));
        assert_eq!(parse(b"*2\r\n:1\r\n*0\r\n").unwrap(), nested);
    }

    #[test]
    fn a_broken_stream_is_an_error() {
        for bytes in [
            &b""[..],
            b"+OK",
            b"?\r\n",
            b"\r\n",
            b"$5\r\nabc\r\n",
            b"$3\r\nabcde",
            b"$99999999999999\r\n",
            b":one\r\n",
            b"*2\r\n:1\r\n",
            b"\xff\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(parse(bytes).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    /// A stream that answers from a script and keeps what was sent.
    #[derive(Debug)]
    struct Script {
        answers: io::Cursor<Vec<u8>>,
        sent: Arc<Mutex<Vec<u8>>>,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.answers.read(buffer)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.sent.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_pipeline_is_sent_whole_and_answered_in_order() {
        let answers = io::Cursor::new(b"+OK\r\n:2\r\n".to_vec());
        let sent = Arc::default();
        let mut client = Client::over(Box::new(Script { answers, sent: Arc::clone(&sent) }));
        client.push(&[b"SET", b"k", b"v\r\n"]);
        client.push(&[b"DBSIZE"]);
        let mut replies = Vec::new();
        client.flush(&mut |reply| replies.push(reply)).unwrap();
        assert_eq!(replies, [Reply::Status("OK".into()), Reply::Integer(2)]);
        assert_eq!(
            *sent.lock().unwrap(),
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nv\r\n\r\n*1\r\n$6\r\nDBSIZE\r\n"
        );
    }
}
