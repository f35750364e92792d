//! How a good answer looks.

use std::time::Duration;

/// Size and pace of good answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The answer's text begins with this; tests can tell upstreams apart by it.
    pub opening: String,
    /// Pieces of text: content events of a stream. At least one is sent.
    pub chunks: usize,
    /// Length of the text in each piece, in bytes; the first may be longer because of `opening`.
    pub chunk_bytes: usize,
    /// Time before each event of a stream.
    pub gap: Duration,
}

impl Default for Reply {
    fn default() -> Self {
        Self {
            opening: "ahoy ".to_owned(),
            chunks: 5,
            chunk_bytes: 5,
            gap: Duration::ZERO,
        }
    }
}

/// Repeated to fill pieces; ASCII, so that any length can be cut.
const FILLING: &str = "tide ";

impl Reply {
    /// The pieces of text, none of them empty.
    pub(crate) fn pieces(&self) -> Vec<String> {
        let length = self.chunk_bytes.max(1);
        let filling: String = FILLING.chars().cycle().take(length).collect();
        let mut pieces = vec![filling; self.chunks.max(1)];
        if let Some(first) = pieces.first_mut()
            && !self.opening.is_empty()
        {
            let rest = length.saturating_sub(self.opening.len());
            *first = self
                .opening
                .chars()
                .chain(FILLING.chars().cycle().take(rest))
                .collect();
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_asked_number_and_size() {
        let reply = Reply {
            chunks: 3,
            chunk_bytes: 12,
            ..Reply::default()
        };
        assert_eq!(
            reply.pieces(),
            ["ahoy tide ti", "tide tide ti", "tide tide ti"]
        );
        let least = Reply {
            opening: String::new(),
            chunks: 0,
            chunk_bytes: 0,
            ..reply
        };
        assert_eq!(least.pieces(), ["t"]);
    }
}
