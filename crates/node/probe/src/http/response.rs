//! Reading an HTTP/1 answer from whatever pieces it arrives in. No IO.
//!
//! The cost of an answer is linear in its bytes, and what is kept of it is bounded: the head by [`MAX_HEAD_BYTES`],
//! the body by [`MAX_BODY_BYTES`]. Time is bounded by the caller.

use thiserror::Error;

use super::chunked::Chunked;
use crate::wording;

/// Bytes of all heads of an answer, interim ones included. Servers limit theirs to 8 to 64 KiB.
pub(crate) const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Header lines of one head.
const MAX_HEADERS: usize = 128;

/// Bytes of a body that are kept, and after which nothing more is expected of it.
pub(crate) const MAX_BODY_BYTES: usize = 10 * 1024;

/// The start of every HTTP/1 answer.
const MAGIC: &[u8] = b"HTTP/1.";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) location: Option<String>,
    framing: Framing,
}

/// How the end of a body is known.
#[derive(Debug, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Malformed {
    #[error("malformed HTTP response {0}")]
    NotHttp(String),
    #[error("malformed HTTP response head: {0}")]
    Head(httparse::Error),
    #[error("server response headers exceeded {MAX_HEAD_BYTES} bytes; aborted")]
    HeadTooLarge,
    #[error("bad Content-Length {0}")]
    Length(String),
    #[error("message cannot contain multiple Content-Length headers")]
    Lengths,
    #[error("unsupported transfer encoding: {0}")]
    TransferEncoding(String),
    #[error("invalid byte in chunked encoding")]
    Chunk,
}

/// Finds and reads the head at the start of a growing buffer.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    /// Bytes already searched for the empty line.
    searched: usize,
    /// Bytes of interim answers that were already dropped from the buffer.
    interim: usize,
}

impl HeadReader {
    /// The final head, once `buffer` has all of it; everything before the body is then gone from `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Head>, Malformed> {
        loop {
            let prefix = MAGIC.len().min(buffer.len());
            if buffer[..prefix] != MAGIC[..prefix] {
                return Err(Malformed::NotHttp(wording::quoted(first_line(buffer))));
            }
            let Some(end) = end_of_head(buffer, self.searched) else {
                self.searched = buffer.len().saturating_sub(2);
                let full = self.interim + buffer.len() >= MAX_HEAD_BYTES;
                return if full {
                    Err(Malformed::HeadTooLarge)
                } else {
                    Ok(None)
                };
            };
            let head = parse(&buffer[..end])?;
            buffer.drain(..end);
            self.searched = 0;
            self.interim += end;
            // 101 is final: what follows it is another protocol.
            if !matches!(head.status, 100 | 102..=199) {
                return Ok(Some(head));
            }
            if self.interim >= MAX_HEAD_BYTES {
                return Err(Malformed::HeadTooLarge);
            }
        }
    }
}

fn first_line(buffer: &[u8]) -> &[u8] {
    buffer
        .split(|&byte| byte == b'\r' || byte == b'\n')
        .next()
        .unwrap_or(buffer)
}

/// The index after the empty line, which may lack its carriage return.
fn end_of_head(buffer: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while let Some(found) = buffer[at..].iter().position(|&byte| byte == b'\n') {
        at += found + 1;
        match &buffer[at..] {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
    None
}

fn parse(bytes: &[u8]) -> Result<Head, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = httparse::ParserConfig::default()
        .allow_multiple_spaces_in_response_status_delimiters(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .parse_response(&mut response, bytes)
        .map_err(Malformed::Head)?;
    let (httparse::Status::Complete(_), Some(status)) = (parsed, response.code) else {
        return Err(Malformed::NotHttp(wording::quoted(first_line(bytes))));
    };
    let location = values(response.headers, "location")
        .next()
        .map(|value| String::from_utf8_lossy(value).into_owned())
        .filter(|location| !location.is_empty());
    Ok(Head {
        status,
        location,
        framing: framing(status, response.headers)?,
    })
}

fn values<'a>(headers: &'a [httparse::Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

fn framing(status: u16, headers: &[httparse::Header<'_>]) -> Result<Framing, Malformed> {
    if matches!(status, 100..=199 | 204 | 304) {
        return Ok(Framing::Length(0));
    }
    // A transfer encoding overrides a length.
    let mut encodings = values(headers, "transfer-encoding");
    if let Some(encoding) = encodings.next() {
        return match encodings.next() {
            None if encoding.trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
            _ => Err(Malformed::TransferEncoding(wording::quoted(encoding))),
        };
    }
    let mut lengths = values(headers, "content-length");
    let Some(first) = lengths.next() else {
        return Ok(Framing::UntilClose);
    };
    if lengths.any(|other| other.trim_ascii() != first.trim_ascii()) {
        return Err(Malformed::Lengths);
    }
    length(first)
        .map(Framing::Length)
        .ok_or_else(|| Malformed::Length(wording::quoted(first)))
}

fn length(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
    // `parse` alone would take a sign.
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

/// Collects a body. It is over when its framing says so, or when no more of it would be kept.
#[derive(Debug)]
pub(crate) struct Body {
    kept: Vec<u8>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Length(u64),
    Chunked(Chunked),
    UntilClose,
}

impl Body {
    pub(crate) fn new(head: &Head) -> Self {
        let rest = match head.framing {
            Framing::Length(length) => Rest::Length(length),
            Framing::Chunked => Rest::Chunked(Chunked::new()),
            Framing::UntilClose => Rest::UntilClose,
        };
        Self {
            kept: Vec::new(),
            rest,
        }
    }

    /// Takes the next bytes off the connection; true when no more are needed.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<bool, Malformed> {
        while !self.is_over() && !bytes.is_empty() {
            let data = match &mut self.rest {
                Rest::Length(left) => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    *left -= count as u64;
                    take(&mut bytes, count)
                }
                Rest::Chunked(chunked) => chunked.next_data(&mut bytes).map_err(|_| Malformed::Chunk)?,
                Rest::UntilClose => take(&mut bytes, usize::MAX),
            };
            let room = MAX_BODY_BYTES - self.kept.len();
            self.kept.extend_from_slice(&data[..data.len().min(room)]);
        }
        Ok(self.is_over())
    }

    /// Whether the server may close the connection now.
    pub(crate) fn may_end_here(&self) -> bool {
        self.is_over() || matches!(self.rest, Rest::UntilClose)
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.kept
    }

    fn is_over(&self) -> bool {
        let framed = match &self.rest {
            Rest::Length(left) => *left == 0,
            Rest::Chunked(chunked) => chunked.is_over(),
            Rest::UntilClose => false,
        };
        framed || self.kept.len() == MAX_BODY_BYTES
    }
}

/// Splits up to `count` bytes off the front.
pub(super) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (data, rest) = bytes.split_at(count.min(bytes.len()));
    *bytes = rest;
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an answer says: status, body, and whether it is over, or how it is malformed.
    type Said = Result<(u16, String, bool), Malformed>;

    /// Reads `answer` in pieces of `piece` bytes.
    fn read(answer: &[u8], piece: usize) -> Said {
        let (mut reader, mut buffer) = (HeadReader::default(), Vec::new());
        let mut pieces = answer.chunks(piece);
        let head = loop {
            let Some(next) = pieces.next() else {
                return Ok((0, String::new(), false));
            };
            buffer.extend_from_slice(next);
            if let Some(head) = reader.read(&mut buffer)? {
                break head;
            }
        };
        let mut body = Body::new(&head);
        let mut over = body.push(&buffer)?;
        for next in pieces {
            over = over || body.push(next)?;
        }
        Ok((
            head.status,
            String::from_utf8_lossy(&body.into_bytes()).into_owned(),
            over,
        ))
    }

    /// The pieces an answer arrives in never change what it says.
    fn check(answer: &str, expected: &Said) {
        for piece in 1..=answer.len().max(1) {
            assert_eq!(
                &read(answer.as_bytes(), piece),
                expected,
                "{answer:?} in pieces of {piece}"
            );
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "compared with what `read` returns")]
    fn says(status: u16, body: &str, over: bool) -> Said {
        Ok((status, body.to_owned(), over))
    }

    #[test]
    fn bodies_end_as_their_head_says() {
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            &says(200, "ok", true),
        );
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more",
            &says(200, "ok", true),
        );
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
            &says(200, "ok", false),
        );
        check("HTTP/1.0 200\n\nok", &says(200, "ok", false));
        check("HTTP/1.1 204 No\r\n\r\n", &says(204, "", true));
        check(
            "HTTP/1.1 304 No\r\nContent-Length: 9\r\n\r\n",
            &says(304, "", true),
        );
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            &says(200, "ok", true),
        );
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nContent-Length: 1\r\n\r\n2;x=y\r\nok\r\n0\r\nT: v\r\n\r\n",
            &says(200, "ok", true),
        );
    }

    #[test]
    fn interim_answers_are_passed_over() {
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n.",
            &says(200, ".", true),
        );
        check("HTTP/1.1 101 Switching Protocols\r\n\r\n", &says(101, "", true));
    }

    #[test]
    fn nonsense_is_malformed() {
        let wrong_length = Malformed::Length("\"+2\"".to_owned());
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
            &Err(wrong_length),
        );
        check(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
            &Err(Malformed::Lengths),
        );
        check(
            "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
            &Err(Malformed::Head(httparse::Error::HeaderName)),
        );
        check(
            "HTTP/1.1 2x0 OK\r\n\r\n",
            &Err(Malformed::Head(httparse::Error::Status)),
        );
        let encoding = Malformed::TransferEncoding("\"gzip, chunked\"".to_owned());
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            &Err(encoding),
        );
        for answer in ["<html>", "HTTP/2 200\r\n\r\n", "\r\n", "\0"] {
            let said = read(answer.as_bytes(), answer.len());
            assert!(matches!(said, Err(Malformed::NotHttp(_))), "{answer:?}: {said:?}");
        }
    }

    #[test]
    fn heads_are_bounded() {
        let cookie = format!("Set-Cookie: {}\r\n", "x".repeat(4000));
        let fits = format!(
            "HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n",
            cookie.repeat(15)
        );
        assert_eq!(read(fits.as_bytes(), 4096), says(200, "", true));
        let endless = format!("HTTP/1.1 200 OK\r\n{}", cookie.repeat(30));
        assert_eq!(read(endless.as_bytes(), 4096), Err(Malformed::HeadTooLarge));
        let interim = "HTTP/1.1 100 Continue\r\n\r\n".repeat(4000);
        assert_eq!(read(interim.as_bytes(), 4096), Err(Malformed::HeadTooLarge));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(
            read(many.as_bytes(), 4096),
            Err(Malformed::Head(httparse::Error::TooManyHeaders))
        );
    }

    #[test]
    fn bodies_are_bounded() {
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(3 * MAX_BODY_BYTES));
        assert_eq!(
            read(long.as_bytes(), 4096),
            says(200, &"x".repeat(MAX_BODY_BYTES), true)
        );
        let huge = "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nx";
        assert_eq!(read(huge.as_bytes(), 4096), says(200, "x", false));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_do_harm_and_pieces_do_not_matter(
            start in "(HTTP/1\\.[01] [0-9]{3} ?\r?\n|HTTP/1.1 200 OK\r\n(Transfer-Encoding: chunked|Content-Length: 9)\r\n)?",
            rest in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
            lines in "([0-9a-f]{1,2}\r\n|[a-z]: [a-z]\r\n|\r\n|[a-z]{0,9}){0,20}",
            piece in 1_usize..50,
        ) {
            for rest in [rest.as_slice(), lines.as_bytes()] {
                let answer = [start.as_bytes(), rest].concat();
                let whole = read(&answer, answer.len().max(1));
                let pieces = read(&answer, piece);
                // An error may quote less where less was there.
                if whole.is_ok() {
                    proptest::prop_assert_eq!(pieces, whole);
                } else {
                    proptest::prop_assert!(pieces.is_err());
                }
            }
        }
    }
}
