//! Blocks of headers: names and values with their lengths, compressed with zlib and a dictionary both sides know.
//!
//! A connection has one stream of compression in each direction, so a block can only be read after all before it.

use std::fmt;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use crate::protocol::{ProtocolError, StreamHeaders};

/// Bytes of a block when it is decompressed.
const MAX_BLOCK: usize = 64 * 1024;
/// Headers of a block.
const MAX_HEADERS: u32 = 256;
/// Bytes decompressed at a time.
const CHUNK: usize = 4 * 1024;

/// The words of the dictionary of SPDY/3, each of which is preceded by its length there.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
    content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|\
    if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
    proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
    user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|\
    keep-alive|origin";
/// What follows the words.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 \
    Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept \
    Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,\
    sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut dictionary = Vec::new();
    for word in WORDS.split('|') {
        put_text(&mut dictionary, word);
    }
    dictionary.extend_from_slice(TAIL.as_bytes());
    dictionary
}

fn put_text(output: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    output.extend(length.to_be_bytes());
    output.extend_from_slice(text.as_bytes());
}

/// Reads the blocks of the peer.
pub(super) struct Inflater {
    zlib: Decompress,
}

impl fmt::Debug for Inflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inflater")
    }
}

impl Default for Inflater {
    fn default() -> Self {
        Self {
            zlib: Decompress::new(true),
        }
    }
}

impl Inflater {
    pub(super) fn headers(&mut self, block: &[u8]) -> Result<StreamHeaders, ProtocolError> {
        let block = self.inflate(block)?;
        parse(&block).ok_or(ProtocolError::Headers)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, ProtocolError> {
        let mut inflated = Vec::new();
        let mut chunk = [0; CHUNK];
        loop {
            let (read, written) = (self.zlib.total_in(), self.zlib.total_out());
            let result = self.zlib.decompress(block, &mut chunk, FlushDecompress::Sync);
            let advance = |from: u64, to: u64| usize::try_from(to - from).unwrap_or(usize::MAX);
            let read = advance(read, self.zlib.total_in());
            let written = advance(written, self.zlib.total_out());
            block = &block[read..];
            match result {
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.zlib
                        .set_dictionary(&dictionary())
                        .map_err(|_| ProtocolError::Headers)?;
                    continue;
                }
                Err(_) => return Err(ProtocolError::Headers),
            }
            inflated.extend_from_slice(&chunk[..written]);
            if inflated.len() > MAX_BLOCK {
                return Err(ProtocolError::Headers);
            }
            if read == 0 && written == 0 {
                return Ok(inflated);
            }
        }
    }
}

/// A number of headers, each a name and a value with their lengths before them.
fn parse(mut block: &[u8]) -> Option<StreamHeaders> {
    fn number(block: &mut &[u8]) -> Option<u32> {
        let (number, rest) = block.split_first_chunk()?;
        *block = rest;
        Some(u32::from_be_bytes(*number))
    }
    fn text(block: &mut &[u8]) -> Option<String> {
        let length = usize::try_from(number(block)?).ok()?;
        let (text, rest) = block.split_at_checked(length)?;
        *block = rest;
        String::from_utf8(text.to_vec()).ok()
    }
    let count = number(&mut block)?;
    if count > MAX_HEADERS {
        return None;
    }
    (0..count)
        .map(|_| {
            let name = text(&mut block)?.to_ascii_lowercase();
            let values = text(&mut block)?;
            // Several values are separated by zeros; no header here has more than one.
            let first = values.split('\0').next().unwrap_or_default();
            Some((name, first.to_owned()))
        })
        .collect()
}

/// Writes blocks.
pub(super) struct Deflater {
    zlib: Compress,
}

impl fmt::Debug for Deflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Deflater")
    }
}

impl Default for Deflater {
    fn default() -> Self {
        let mut zlib = Compress::new(Compression::default(), true);
        zlib.set_dictionary(&dictionary())
            .expect("a new stream takes a dictionary");
        Self { zlib }
    }
}

impl Deflater {
    pub(super) fn headers(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let count = u32::try_from(headers.len()).unwrap_or(u32::MAX);
        let mut block = count.to_be_bytes().to_vec();
        for (name, value) in headers {
            put_text(&mut block, name);
            put_text(&mut block, value);
        }
        let mut deflated = Vec::with_capacity(block.len() + 64);
        let start = self.zlib.total_in();
        loop {
            let done = usize::try_from(self.zlib.total_in() - start).unwrap_or(usize::MAX);
            self.zlib
                .compress_vec(&block[done..], &mut deflated, FlushCompress::Sync)
                .expect("compression into memory does not fail");
            // With room left over, everything is flushed.
            if deflated.len() < deflated.capacity() {
                return deflated;
            }
            deflated.reserve(CHUNK);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_dictionary_is_that_of_the_protocol() {
        let dictionary = dictionary();
        assert_eq!(dictionary.len(), 1423);
        // Adler-32, by which zlib names a dictionary.
        let (a, b) = dictionary.iter().fold((1_u32, 0_u32), |(a, b), byte| {
            let a = (a + u32::from(*byte)) % 65_521;
            (a, (b + a) % 65_521)
        });
        assert_eq!(b << 16 | a, 0xE3C6_A7C2);
    }

    #[test]
    fn blocks_build_on_each_other() {
        let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
        for value in ["one", "two", &"long ".repeat(3_000), "one"] {
            let block = deflater.headers(&[("streamtype", value), ("Port", "80\x0081")]);
            let expected = [
                ("streamtype".to_owned(), value.to_owned()),
                ("port".into(), "80".into()),
            ];
            assert_eq!(inflater.headers(&block).unwrap(), expected);
        }
    }

    #[test]
    fn a_small_block_that_becomes_large_is_refused() {
        let block = Deflater::default().headers(&[("a", &"x".repeat(10 * MAX_BLOCK))]);
        assert!(block.len() < MAX_BLOCK / 10);
        assert!(matches!(
            Inflater::default().headers(&block),
            Err(ProtocolError::Headers)
        ));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"\xff\xff\xff\xff"), None);
        assert_eq!(parse(b"\0\0\0\x01\xff\xff\xff\xffabc"), None);
        assert_eq!(parse(b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01b"), None);
        assert_eq!(parse(b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\0"), None);
        assert_eq!(parse(b"\0\0\0\0"), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn any_block_is_survived(block in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Inflater::default().headers(&block);
            let _ = parse(&block);
            // With a good beginning.
            let mut begun = Deflater::default().headers(&[("a", "b")]);
            begun.truncate(begun.len() / 2);
            begun.extend(block);
            let _ = Inflater::default().headers(&begun);
        }
    }
}
