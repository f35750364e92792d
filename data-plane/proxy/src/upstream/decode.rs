//! Undoes the compression of an upstream's body, a bounded piece at a time.
//!
//! We ask for none, but what stands between us and a provider may compress all the same, and bodies must be read here:
//! events of a stream, usage, errors. What a reader takes is therefore always plain, and all limits of readers count
//! plain bytes, so a small body that unfolds into a large one is stopped like a large one. In memory are one piece of
//! output and the window of the format: 32 KiB for gzip and deflate, at most 16 MiB for brotli, 8 MiB for zstd.

use std::io;

use bytes::{Buf as _, Bytes};
use compression_codecs::core::util::{PartialBuffer, WriteBuffer};
use compression_codecs::zstd::params::DParameter;
use compression_codecs::{
    BrotliDecoder, DecodeV2, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// Most that is decoded at once, in bytes.
const MOST_AT_ONCE: usize = 16 * 1024;
/// Largest window of zstd, as a power of two: what RFC 8878 §3.1.1.1.2 asks decoders to support, and no more.
const ZSTD_WINDOW_LOG: u32 = 23;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Identity,
    Gzip,
    Deflate,
    Brotli,
    Zstd,
    /// Something else, or several in turn.
    Unknown,
}

/// Why a body could not be decoded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeFault {
    #[error("the compressed body is broken: {0}")]
    Broken(#[from] io::Error),
    #[error("the compressed body has no end")]
    Truncated,
    #[error("something follows the end of the compressed body")]
    Trailing,
}

/// A body that is being decoded.
pub(super) struct Decoder {
    encoding: Encoding,
    /// Made with the first byte, which tells the two forms of deflate apart.
    codec: Option<Box<dyn DecodeV2 + Send>>,
    input: Bytes,
    output: Box<[u8]>,
    /// The output was full: there may be more of it without further input.
    more: bool,
    /// The compressed data has come to its end.
    ended: bool,
    /// It broke after the last output.
    broken: Option<io::Error>,
}

impl Encoding {
    /// What a head says.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::Identity;
        for value in headers.get_all(CONTENT_ENCODING) {
            let Ok(value) = value.to_str() else {
                return Self::Unknown;
            };
            for name in value.split(',').map(str::trim) {
                let encoding = match name.to_ascii_lowercase().as_str() {
                    "" | "identity" => continue,
                    "gzip" | "x-gzip" => Self::Gzip,
                    "deflate" => Self::Deflate,
                    "br" => Self::Brotli,
                    "zstd" => Self::Zstd,
                    _ => Self::Unknown,
                };
                if found != Self::Identity {
                    return Self::Unknown;
                }
                found = encoding;
            }
        }
        found
    }

    /// What undoes it; `None` where there is nothing to undo, or it is not known how.
    pub(super) fn decoder(self) -> Option<Decoder> {
        (!matches!(self, Self::Identity | Self::Unknown)).then(|| Decoder {
            encoding: self,
            codec: None,
            input: Bytes::new(),
            output: vec![0; MOST_AT_ONCE].into_boxed_slice(),
            more: false,
            ended: false,
            broken: None,
        })
    }

    fn codec(self, first: u8) -> Option<Box<dyn DecodeV2 + Send>> {
        // The method in the first byte of a zlib frame (RFC 1950 §2.2). Some servers leave the frame out.
        let has_zlib_frame = first & 0x8f == 0x08;
        Some(match self {
            Self::Gzip => Box::new(GzipDecoder::new()),
            Self::Deflate if has_zlib_frame => Box::new(ZlibDecoder::new()),
            Self::Deflate => Box::new(DeflateDecoder::new()),
            Self::Brotli => Box::new(BrotliDecoder::new()),
            Self::Zstd => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG);
                Box::new(ZstdDecoder::new_with_params(&[window]))
            }
            Self::Identity | Self::Unknown => return None,
        })
    }

    /// Whether another compressed body may follow the end of one (RFC 1952 §2.2, RFC 8878 §3.1).
    fn may_follow(self) -> bool {
        matches!(self, Self::Gzip | Self::Zstd)
    }
}

impl Decoder {
    /// Takes compressed bytes. All that came before must have been taken out.
    pub(super) fn give(&mut self, input: Bytes) {
        self.input = input;
    }

    /// The next decoded bytes, at most [`MOST_AT_ONCE`]; `None` when more input is needed.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, DecodeFault> {
        loop {
            if let Some(error) = self.broken.take() {
                return Err(error.into());
            }
            let exhausted = self.input.is_empty();
            if exhausted && !self.more {
                return Ok(None);
            }
            let Some(codec) = self.codec.as_mut() else {
                let first = self.input.first();
                self.codec = first.and_then(|first| self.encoding.codec(*first));
                if self.codec.is_none() {
                    return Ok(None);
                }
                continue;
            };
            if self.ended {
                if !self.encoding.may_follow() {
                    return Err(DecodeFault::Trailing);
                }
                codec.reinit()?;
                self.ended = false;
            }
            let mut input = PartialBuffer::new(self.input.as_ref());
            let mut output = WriteBuffer::new_initialized(&mut self.output);
            let decoded = codec.decode(&mut input, &mut output);
            let (read, written) = (input.written_len(), output.written_len());
            self.more = output.has_no_spare_space();
            self.input.advance(read);
            match decoded {
                Ok(ended) => {
                    self.ended = ended;
                    // What the end left in the output is all there is.
                    self.more &= !ended;
                }
                // Some formats say so when they are asked for more output and have none.
                Err(_) if exhausted && written == 0 => return Ok(None),
                Err(error) => self.broken = Some(error),
            }
            if written > 0 {
                let written = self.output.get(..written).unwrap_or_default();
                return Ok(Some(Bytes::copy_from_slice(written)));
            }
            if read == 0 && !self.ended && self.broken.is_none() && !self.input.is_empty() {
                return Err(DecodeFault::Truncated);
            }
        }
    }

    /// The upstream's body is over, and all of it has been taken out.
    ///
    /// # Errors
    /// [`DecodeFault::Truncated`] when the compressed data goes on.
    pub(super) fn finish(&self) -> Result<(), DecodeFault> {
        // A body without a byte is no compressed body, but a good one where there is to be none.
        if self.ended || self.codec.is_none() {
            Ok(())
        } else {
            Err(DecodeFault::Truncated)
        }
    }
}

#[cfg(test)]
mod tests;
