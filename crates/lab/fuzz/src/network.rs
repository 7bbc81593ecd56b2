//! What comes over a connection: requests for metrics, and replies of a server in the protocols of Redis and memcached.

use pagemill_report::exporter::Request;
use pagemill_workloads::{memcached, resp};

/// The head of a request to the exporter.
pub fn request(bytes: &[u8]) {
    let whole = Request::parse(bytes);
    // What is read later changes nothing.
    let longer = Request::parse(&[bytes, b"\r\n\r\nGET / HTTP/1.1\r\n"].concat());
    assert!(whole.is_none() || whole == longer);
}

/// Replies, one after another.
pub fn resp(mut bytes: &[u8]) {
    while let Ok(reply) = resp::read_reply(&mut bytes) {
        drop(reply);
    }
}

/// Replies to `get`, to `set` and to `stats`, each as many as there are.
pub fn memcached(bytes: &[u8]) {
    let mut values = bytes;
    while let Ok(found) = memcached::read_value(&mut values, "key") {
        // A value is what was read, and not more.
        assert!(found.is_none_or(|value| value.len() < bytes.len()));
    }
    let mut stored = bytes;
    while memcached::read_stored(&mut stored).is_ok() {}
    let mut stats = bytes;
    while let Ok(figures) = memcached::read_stats(&mut stats) {
        drop(figures);
    }
}

pub fn request_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "GET /metrics HTTP/1.1\r\nHost: localhost:9099\r\nAccept: */*\r\n\r\n",
        "HEAD /metrics?name=x HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub fn resp_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "+OK\r\n:7\r\n-ERR no\r\n$3\r\na\r\n\r\n$-1\r\n",
        "*2\r\n:1\r\n*3\r\n$4\r\nname\r\n*-1\r\n+x\r\n*0\r\n",
        "$24\r\nused_memory:123\r\nmaxmem:1\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

pub fn memcached_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "VALUE key 0 4\r\na\r\nb\r\nEND\r\nEND\r\nVALUE key 7 0\r\n\r\nEND\r\n",
        "STORED\r\nSTORED\r\nSERVER_ERROR out of memory storing object\r\n",
        "STAT threads 4\r\nSTAT rusage_user 0.500000\r\nSTAT version 1.6.18\r\nEND\r\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}
