//! Replies of memcached's text protocol (`doc/protocol.txt` of its source).
//!
//! ```text
//!  get       VALUE key flags length\r\n value \r\n END\r\n, or END alone      (each line ended by \r\n)
//!  set       STORED, or another word
//!  stats     STAT name value, as often as there are figures; END
//! ```
//!
//! A reply that is something else is an error of the kind `InvalidData` with the line that was read, one that ends
//! early of the kind `UnexpectedEof`. None is read without a bound.

use std::io::{self, BufRead, ErrorKind, Read as _};

/// A longer value is none: memcached's items have 1 MiB at most, unless it is told otherwise.
const LONGEST: usize = 1 << 20;
/// More figures than this are none. It has some hundred.
const MOST_FIGURES: usize = 1 << 12;

fn unexpected<T>(line: &str) -> io::Result<T> {
    Err(io::Error::new(ErrorKind::InvalidData, format!("{line:?}")))
}

/// A line without its end.
pub(crate) fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    stream.take(1 << 16).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
    }
}

/// The reply to `get key`: the value, if there is one.
///
/// # Errors
/// The stream cannot be read, or it is no such reply.
pub fn read_value(stream: &mut impl BufRead, key: &str) -> io::Result<Option<Vec<u8>>> {
    let head = line(stream)?;
    let Some(rest) = head.strip_prefix("VALUE ") else {
        return if head == "END" { Ok(None) } else { unexpected(&head) };
    };
    let mut fields = rest.split(' ');
    let own = fields.next() == Some(key);
    let length = fields.nth(1).and_then(|length| length.parse::<usize>().ok());
    let Some(length) = length.filter(|&length| own && length <= LONGEST) else {
        return unexpected(&head);
    };
    let mut value = vec![0; length + 2];
    stream.read_exact(&mut value)?;
    if !value.ends_with(b"\r\n") {
        return unexpected(&head);
    }
    value.truncate(length);
    match line(stream)?.as_str() {
        "END" => Ok(Some(value)),
        line => unexpected(line),
    }
}

/// The reply to `set`: an error unless the value was stored.
///
/// # Errors
/// As of [`read_value`]; it was not stored.
pub fn read_stored(stream: &mut impl BufRead) -> io::Result<()> {
    match line(stream)?.as_str() {
        "STORED" => Ok(()),
        line => unexpected(line),
    }
}

/// The reply to `stats`: names and values, in the server's order.
///
/// # Errors
/// As of [`read_value`]; it has no end.
pub fn read_stats(stream: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut figures = Vec::new();
    loop {
        let line = line(stream)?;
        if line == "END" {
            return Ok(figures);
        }
        let Some(figure) = line.strip_prefix("STAT ").filter(|_| figures.len() < MOST_FIGURES)
        else {
            return unexpected(&line);
        };
        let figure = figure.split_once(' ');
        figures.extend(figure.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(mut bytes: &[u8]) -> Result<Option<Vec<u8>>, ErrorKind> {
        read_value(&mut bytes, "key").map_err(|error| error.kind())
    }

    #[test]
    fn each_reply_is_read() {
        assert_eq!(value(b"VALUE key 0 4\r\na\r\nb\r\nEND\r\n"), Ok(Some(b"a\r\nb".to_vec())));
        assert_eq!(value(b"VALUE key 0 0\r\n\r\nEND\r\n"), Ok(Some(Vec::new())));
        assert_eq!(value(b"END\r\n"), Ok(None));
        read_stored(&mut &b"STORED\r\n"[..]).unwrap();
        let stats = read_stats(&mut &b"STAT threads 4\r\nSTAT version 1.6 x\r\nEND\r\n"[..]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(stats.unwrap(), [pair("threads", "4"), pair("version", "1.6 x")]);
    }

    #[test]
    fn a_reply_to_something_else_or_one_that_ends_early_is_an_error() {
        let other = Err(ErrorKind::InvalidData);
        for bytes in [
            &b"ERROR\r\n"[..],
            b"VALUE other 0 1\r\na\r\nEND\r\n",
            b"VALUE key 0 1048577\r\n",
            b"VALUE key 0 -1\r\n",
            b"VALUE key 0\r\n",
            // Longer than it says.
            b"VALUE key 0 1\r\nabc\r\nEND\r\n",
            b"VALUE key 0 1\r\na\r\nVALUE key 0 1\r\na\r\nEND\r\n",
        ] {
            assert_eq!(value(bytes), other, "{:?}", String::from_utf8_lossy(bytes));
        }
        for bytes in [&b""[..], b"END", b"END\n", b"VALUE key 0 9\r\na\r\nEND\r\n"] {
            assert_eq!(value(bytes), Err(ErrorKind::UnexpectedEof));
        }
        let stored = read_stored(&mut &b"NOT_STORED\r\n"[..]).unwrap_err();
        assert_eq!(
            (stored.kind(), stored.to_string().as_str()),
            (ErrorKind::InvalidData, "\"NOT_STORED\"")
        );
        assert!(read_stats(&mut &b"STAT a 1\r\nOK\r\n"[..]).is_err());
    }

    #[test]
    fn figures_have_an_end() {
        let endless = b"STAT a 1\r\n".repeat(MOST_FIGURES + 1);
        assert_eq!(read_stats(&mut &endless[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
