use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use http::HeaderValue;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const TEXT: &[u8] = "data: {\"choices\":[{\"delta\":{\"content\":\"h\u{e9}\"}}]}\n\n".as_bytes();

/// Compresses pieces; each but the end is followed by a flush.
fn compress(encoding: &str, pieces: &[&[u8]]) -> Vec<u8> {
    fn all(mut writer: impl io::Write, pieces: &[&[u8]]) {
        for piece in pieces {
            writer.write_all(piece).unwrap();
            writer.flush().unwrap();
        }
    }
    let mut out = Vec::new();
    match encoding {
        "gzip" => all(GzEncoder::new(&mut out, Compression::fast()), pieces),
        "deflate" => all(ZlibEncoder::new(&mut out, Compression::fast()), pieces),
        "raw" => all(DeflateEncoder::new(&mut out, Compression::fast()), pieces),
        "br" => all(brotli::CompressorWriter::new(&mut out, 4096, 3, 20), pieces),
        "zstd" => {
            let encoder = zstd::stream::write::Encoder::new(&mut out, 1).unwrap();
            all(encoder.auto_finish(), pieces);
        }
        other => unreachable!("{other}"),
    }
    out
}

fn decoder(encoding: &str) -> Decoder {
    let mut headers = HeaderMap::new();
    let name = if encoding == "raw" {
        "deflate"
    } else {
        encoding
    };
    headers.insert(CONTENT_ENCODING, HeaderValue::from_str(name).unwrap());
    Encoding::of(&headers).decoder().unwrap()
}

/// All that comes out, and how it ended.
fn decode(encoding: &str, chunks: &[&[u8]]) -> (Vec<u8>, Result<(), DecodeFault>) {
    let mut decoder = decoder(encoding);
    let mut out = Vec::new();
    for chunk in chunks {
        decoder.give(Bytes::copy_from_slice(chunk));
        loop {
            match decoder.next() {
                Ok(Some(bytes)) => {
                    assert!(!bytes.is_empty() && bytes.len() <= MOST_AT_ONCE);
                    out.extend_from_slice(&bytes);
                }
                Ok(None) => break,
                Err(fault) => return (out, Err(fault)),
            }
        }
    }
    let finished = decoder.finish();
    (out, finished)
}

const ALL: [&str; 5] = ["gzip", "deflate", "raw", "br", "zstd"];

#[test]
fn what_was_flushed_comes_out_at_once() {
    for encoding in ALL {
        let first = compress(encoding, &[TEXT, TEXT]);
        let mut decoder = decoder(encoding);
        let mut out = Vec::new();
        let mut seen_at = Vec::new();
        for (place, byte) in first.iter().enumerate() {
            decoder.give(Bytes::copy_from_slice(&[*byte]));
            while let Some(bytes) = decoder.next().unwrap() {
                out.extend_from_slice(&bytes);
            }
            if out.len() == TEXT.len() && seen_at.is_empty() {
                seen_at.push(place);
            }
        }
        assert_eq!(out, TEXT.repeat(2), "{encoding}");
        let at = seen_at.first().copied().unwrap_or(first.len());
        assert!(at + 2 < first.len(), "{encoding}: {at} of {}", first.len());
        decoder.finish().unwrap();
    }
}

#[test]
fn a_body_that_is_cut_or_broken_is_no_whole_body() {
    let long: Vec<u8> = (0_u32..9_000).flat_map(u32::to_le_bytes).collect();
    for encoding in ALL {
        let whole = compress(encoding, &[&long]);
        for cut in [1, whole.len() / 2, whole.len() - 1] {
            let (out, ended) = decode(encoding, &[&whole[..cut]]);
            assert!(ended.is_err(), "{encoding} cut at {cut}");
            assert!(long.starts_with(&out), "{encoding}");
        }
        let mut broken = whole.clone();
        broken.truncate(40);
        broken.extend_from_slice(&[0xff; 400]);
        assert!(decode(encoding, &[&broken]).1.is_err(), "{encoding}");
        assert!(decode(encoding, &[&[0xff; 64]]).1.is_err(), "{encoding}");
        assert!(decode(encoding, &[]).1.is_ok(), "{encoding}: no body");
    }
}

#[rstest]
#[case("gzip", true)]
#[case("zstd", true)]
#[case("deflate", false)]
#[case("br", false)]
fn another_body_may_follow_where_the_format_says_so(#[case] encoding: &str, #[case] may: bool) {
    let mut two = compress(encoding, &[b"one "]);
    two.extend(compress(encoding, &[b"two"]));
    let (out, ended) = decode(encoding, &[&two]);
    assert_eq!(ended.is_ok(), may);
    assert_eq!(out, if may { &b"one two"[..] } else { b"one " });
}

#[test]
fn a_bomb_comes_out_in_small_pieces() {
    let zeros = vec![0; 4 * 1024 * 1024];
    for encoding in ALL {
        let bomb = compress(encoding, &[&zeros]);
        assert!(bomb.len() < 32 * 1024, "{encoding}: {}", bomb.len());
        let (out, ended) = decode(encoding, &[&bomb]);
        ended.unwrap();
        assert_eq!(out.len(), zeros.len(), "{encoding}");
    }
}

#[test]
fn a_window_beyond_what_is_allowed_is_refused() {
    // A frame whose head asks for a window of 1 GiB (RFC 8878 §3.1.1.1.2), and one block of raw bytes.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0, 0x09, 0x00, 0x00, b'a'];
    let (out, ended) = decode("zstd", &[&frame]);
    assert!(out.is_empty() && matches!(ended, Err(DecodeFault::Broken(_))));
}

#[rstest]
#[case(&[], Encoding::Identity)]
#[case(&["identity"], Encoding::Identity)]
#[case(&[""], Encoding::Identity)]
#[case(&["GZip"], Encoding::Gzip)]
#[case(&["x-gzip"], Encoding::Gzip)]
#[case(&["identity, br"], Encoding::Brotli)]
#[case(&["deflate"], Encoding::Deflate)]
#[case(&["zstd"], Encoding::Zstd)]
#[case(&["gzip, br"], Encoding::Unknown)]
#[case(&["gzip", "gzip"], Encoding::Unknown)]
#[case(&["compress"], Encoding::Unknown)]
#[case(&["\u{e9}"], Encoding::Unknown)]
fn heads_name_encodings(#[case] values: &[&str], #[case] encoding: Encoding) {
    let mut headers = HeaderMap::new();
    for value in values {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        headers.append(CONTENT_ENCODING, value);
    }
    assert_eq!(Encoding::of(&headers), encoding);
}

proptest! {
    #[test]
    fn any_split_gives_the_same_bytes(
        text in prop::collection::vec(any::<u8>(), 0..60_000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        which in 0..ALL.len(),
    ) {
        let encoding = ALL[which];
        let bytes = compress(encoding, &[&text]);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (out, ended) = decode(encoding, &chunks);
        prop_assert!(ended.is_ok(), "{encoding}: {ended:?}");
        prop_assert_eq!(out, text);
    }

    #[test]
    fn nonsense_never_panics_and_ends(
        bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        which in 0..ALL.len(),
    ) {
        let (out, _ended) = decode(ALL[which], &[&bytes]);
        // 1032 is deflate's best; brotli and zstd may repeat without end, yet not from so few random bytes.
        prop_assert!(out.len() < 64 * 1024 * 1024);
    }
}
