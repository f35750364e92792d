//! Compressed bodies.

use std::io::{self, Write as _};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};

use crate::answer::Answer;
use crate::mode::Encoding;
use crate::paced_body::Step;

/// How much of a bomb one step is, decoded, in bytes.
const BOMB_STEP: usize = 1024 * 1024;

/// How often something is repeated that would otherwise be repeated for ever.
const MOST_REPEATS: u32 = 1_000;

/// The answer with its body compressed. Each step is flushed; an end that HTTP asks for ends the compression too.
pub(crate) fn encode(mut answer: Answer, encoding: Encoding) -> Answer {
    // Writing to memory does not fail.
    answer.steps = steps(answer.steps, encoding).unwrap_or_default();
    let name = match encoding {
        Encoding::Gzip => "gzip",
        Encoding::Deflate | Encoding::RawDeflate => "deflate",
        Encoding::Brotli => "br",
        Encoding::Zstd => "zstd",
    };
    let headers = &mut answer.headers;
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
    headers.remove(CONTENT_LENGTH);
    answer
}

/// A gzip body that begins with `opening` and goes on with at least `bytes` of the same; it does not end properly.
pub(crate) fn gzip_flood(answer: &mut Answer, opening: &[u8], bytes: u64) {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let mut step = |bytes: &[u8]| {
        encoder.write_all(bytes)?;
        encoder.flush()?;
        Ok::<_, io::Error>(Bytes::from(std::mem::take(encoder.get_mut())))
    };
    let filling = vec![b'x'; BOMB_STEP];
    // After the second round each further one may look the same: what it refers back to is the same.
    let parts = [opening, &filling, &filling].map(|part| step(part).unwrap_or_default());
    let [opening, first, again] = parts;
    let rounds = bytes.div_ceil(u64::try_from(BOMB_STEP).unwrap_or(u64::MAX));
    answer.steps = vec![
        Step::Send(opening),
        Step::Send(first),
        Step::Flood {
            bytes: again,
            times: rounds.saturating_sub(1),
        },
    ];
    let headers = &mut answer.headers;
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.remove(CONTENT_LENGTH);
}

fn steps(steps: Vec<Step>, encoding: Encoding) -> io::Result<Vec<Step>> {
    let mut encoder = Encoder::new(encoding)?;
    let mut whole = true;
    let mut encoded = Vec::new();
    for step in steps {
        let last = match step {
            Step::Send(bytes) => Step::Send(encoder.step(&bytes)?),
            Step::Flood { bytes, times } => {
                for _ in 0..times {
                    encoded.push(Step::Send(encoder.step(&bytes)?));
                }
                continue;
            }
            // What is compressed a second time is not the same bytes.
            Step::Repeat { bytes, every } => {
                whole = false;
                for _ in 0..MOST_REPEATS {
                    encoded.push(Step::Send(encoder.step(&bytes)?));
                    encoded.push(Step::Wait(every));
                }
                Step::Silence
            }
            Step::BreakOff | Step::Reset | Step::Silence => {
                whole = false;
                step
            }
            Step::Wait(_) | Step::Await(_) => step,
        };
        encoded.push(last);
    }
    if whole {
        encoded.push(Step::Send(encoder.end()?));
    }
    Ok(encoded)
}

/// One compression of any kind.
enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    RawDeflate(DeflateEncoder<Vec<u8>>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Encoder {
    fn new(encoding: Encoding) -> io::Result<Self> {
        let level = Compression::default();
        Ok(match encoding {
            Encoding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), level)),
            Encoding::Deflate => Self::Deflate(ZlibEncoder::new(Vec::new(), level)),
            Encoding::RawDeflate => Self::RawDeflate(DeflateEncoder::new(Vec::new(), level)),
            Encoding::Brotli => {
                let writer = brotli::CompressorWriter::new(Vec::new(), 4096, 4, 22);
                Self::Brotli(Box::new(writer))
            }
            Encoding::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 3)?),
        })
    }

    /// Takes these bytes in and gives all that a reader needs to have them.
    fn step(&mut self, bytes: &[u8]) -> io::Result<Bytes> {
        let out = match self {
            Self::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                encoder.get_mut()
            }
            Self::Deflate(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                encoder.get_mut()
            }
            Self::RawDeflate(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                encoder.get_mut()
            }
            Self::Brotli(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                encoder.get_mut()
            }
            Self::Zstd(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                encoder.get_mut()
            }
        };
        Ok(std::mem::take(out).into())
    }

    /// What ends the compressed data.
    fn end(self) -> io::Result<Bytes> {
        let rest = match self {
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Deflate(encoder) => encoder.finish()?,
            Self::RawDeflate(encoder) => encoder.finish()?,
            Self::Brotli(encoder) => encoder.into_inner(),
            Self::Zstd(encoder) => encoder.finish()?,
        };
        Ok(rest.into())
    }
}
