//! Decompression of traces in gzip (RFC 1952), which PyTorch's profiler writes for names that end in `.gz`.

use std::borrow::Cow;
use std::io::Read;

use fabricast_topologies::SourceLocation;
use fabricast_topologies::read::Limit;
use flate2::read::MultiGzDecoder;

use crate::job::JobError;

/// First two bytes of a gzip member.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Byte order mark of UTF-8, which JSON may not have.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Returns the bytes of a trace without a byte order mark, decompressed if they are in gzip. `limit` bounds the decompressed size.
///
/// # Errors
/// [`JobError`] with the offset in the decompressed text: damaged or truncated data, or more than `limit`.
pub(super) fn decompress<'a>(source: &str, bytes: &'a [u8], limit: Limit) -> Result<Cow<'a, [u8]>, JobError> {
    if !bytes.starts_with(&MAGIC) {
        return Ok(Cow::Borrowed(bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)));
    }
    let fail = |message: String| JobError::at(&SourceLocation::from_source(source), message);
    let mut text = Vec::new();
    let read = MultiGzDecoder::new(bytes).take(limit.bytes + 1).read_to_end(&mut text);
    if let Err(error) = read {
        return Err(fail(format!("gzip, damaged after {} decompressed bytes: {error}", text.len())));
    }
    if text.len() as u64 > limit.bytes {
        return Err(fail(format!("decompressed, it is {}", limit.exceeded())));
    }
    Ok(Cow::Owned(text))
}

/// Returns up to `count` bytes from the start of a trace, decompressed if they are in gzip. Damaged data end early.
pub(super) fn head(bytes: &[u8], count: usize) -> Cow<'_, [u8]> {
    if !bytes.starts_with(&MAGIC) {
        return Cow::Borrowed(bytes.get(..count).unwrap_or(bytes));
    }
    let mut text = Vec::new();
    // What precedes the damage identifies the format, and its reader reports the damage.
    let _ = MultiGzDecoder::new(bytes).take(count as u64).read_to_end(&mut text);
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use fabricast_topologies::read::Limit;
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn compressed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn gzip_is_decompressed_and_other_bytes_are_borrowed() {
        let text = b"{\"traceEvents\": []}".repeat(100);
        let limit = Limit { kind: "a test", bytes: text.len() as u64 };
        assert_eq!(&*decompress("t", &compressed(&text), limit).unwrap(), &text);
        assert!(matches!(decompress("t", b"plain", limit), Ok(Cow::Borrowed(b"plain"))));
        // Members may be concatenated.
        let two = [compressed(b"one "), compressed(b"two")].concat();
        assert_eq!(&*decompress("t", &two, limit).unwrap(), b"one two");
    }

    #[test]
    fn damaged_and_oversized_gzip_is_rejected() {
        let text = b"0123456789abcdef".repeat(4096);
        let full = compressed(&text);
        let limit = Limit { kind: "a test", bytes: 1 << 20 };
        for cut in 2..full.len() {
            let error = decompress("t.json.gz", &full[..cut], limit).unwrap_err().to_string();
            assert!(error.starts_with("t.json.gz: gzip, damaged after "), "{cut}: {error}");
        }
        let small = Limit { kind: "a test", bytes: text.len() as u64 - 1 };
        let error = decompress("t.json.gz", &full, small).unwrap_err().to_string();
        assert!(error.starts_with("t.json.gz: decompressed, it is larger than "), "{error}");
    }
}
