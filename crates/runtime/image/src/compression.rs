//! Finds out how a stream is compressed and undoes it.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

/// Bytes read from a file or socket at once.
const BUFFER_BYTES: usize = 128 << 10;
/// Memory a zstd stream may ask for, as a power of two: 128 MiB, what the command `zstd` allows too.
const MAX_ZSTD_WINDOW_LOG: u32 = 27;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// The plain content of a stream that may be compressed with gzip or zstd.
pub(crate) fn decompress<'a>(mut reader: impl Read + Send + 'a) -> io::Result<Box<dyn Read + Send + 'a>> {
    // A pipe may give less than was asked for.
    let mut start = Vec::with_capacity(ZSTD.len());
    (&mut reader).take(ZSTD.len() as u64).read_to_end(&mut start)?;
    let (is_gzip, is_zstd) = (start.starts_with(GZIP), start == ZSTD);
    let reader = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(start).chain(reader));
    if is_gzip {
        Ok(Box::new(MultiGzDecoder::new(reader)))
    } else if is_zstd {
        let mut decoder = ZstdDecoder::with_buffer(reader)?;
        decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
        Ok(Box::new(decoder))
    } else {
        Ok(Box::new(reader))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn plain(compressed: &[u8]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        decompress(compressed)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_format_gives_the_same() {
        let bytes = b"some content".repeat(1000);
        let zstd = zstd::encode_all(bytes.as_slice(), 1).unwrap();
        assert_eq!(plain(&bytes).unwrap(), bytes);
        assert_eq!(plain(&gzip(&bytes)).unwrap(), bytes);
        assert_eq!(plain(&zstd).unwrap(), bytes);
        assert_eq!(plain(b"").unwrap(), b"");
    }

    #[test]
    fn a_gzip_stream_of_several_members_is_read_to_its_end() {
        let twice = [gzip(b"one"), gzip(b"two")].concat();
        assert_eq!(plain(&twice).unwrap(), b"onetwo");
    }

    #[test]
    fn cut_streams_are_errors() {
        let bytes = b"some content".repeat(1000);
        let (gzip, zstd) = (gzip(&bytes), zstd::encode_all(bytes.as_slice(), 1).unwrap());
        assert!(plain(&gzip[..gzip.len() - 9]).is_err());
        assert!(plain(&zstd[..zstd.len() - 9]).is_err());
    }
}
