//! What names the session of a client: its key (`sessions-and-streams.md` §2.1, decision 43).
//!
//! A key is what the client said, made short and harmless. It says nothing about who the client is: whoever stores
//! something under a session puts the id of the client's API key before it.

use std::fmt;

use sha2::{Digest, Sha256};

/// The headers that name a session, first the one that counts. Lower case.
pub const SESSION_HEADERS: [&str; 3] =
    ["x-codex-session-id", "x-session-id", "x-omniroute-session"];
/// Longest id of a session, in characters, white space around it included. A longer one is none.
pub const MAX_SESSION_ID_CHARACTERS: usize = 4_096;
/// Longest id that stands in a key as it is, in bytes; of a longer one its hash does.
pub const MAX_LITERAL_BYTES: usize = 180;

/// Longest key of a session, in bytes.
pub const MAX_SESSION_KEY_BYTES: usize = MAX_LITERAL_BYTES + 32;

/// The key of a session: `<where it comes from>:<id>`, or `<where it comes from>:sha256:<hex>` for an id that is long
/// or holds anything but `A-Za-z0-9._:-`. At most
/// [`MAX_SESSION_KEY_BYTES`] long.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(String);

/// What a body says of its session. The order of members is that of precedence.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct BodySession<'a> {
    /// `metadata.session_id`, or where it is missing `metadata.sessionId`.
    pub metadata: Option<&'a str>,
    /// `conversation_id`.
    pub conversation_id: Option<&'a str>,
    /// `session_id`.
    pub session_id: Option<&'a str>,
    /// `prompt_cache_key`.
    pub prompt_cache_key: Option<&'a str>,
    /// The text of the first user turn.
    pub first_user_text: Option<&'a str>,
}

impl SessionKey {
    /// The key of a request. `header` gives the value of a header by its lower-case name. The first of
    /// [`SESSION_HEADERS`] that is there counts, whether it is usable or not; without a usable one the body does, if
    /// it is given. It is given only where the operator switched that on, since clients that begin alike would share a
    /// session.
    #[must_use]
    pub fn of_request<'a>(
        header: impl Fn(&'static str) -> Option<&'a [u8]>,
        body: Option<BodySession<'_>>,
    ) -> Option<Self> {
        Self::of_headers(header).or_else(|| body.and_then(Self::of_body))
    }

    /// The key that the headers alone give.
    #[must_use]
    pub fn of_headers<'a>(header: impl Fn(&'static str) -> Option<&'a [u8]>) -> Option<Self> {
        let value = SESSION_HEADERS.into_iter().find_map(header)?;
        Self::of_id("header", std::str::from_utf8(value).ok()?)
    }

    /// The key that a body gives: of its first usable member, else of the beginning of its first user text.
    #[must_use]
    pub fn of_body(body: BodySession<'_>) -> Option<Self> {
        let members = [
            ("metadata", body.metadata),
            ("conversation", body.conversation_id),
            ("session", body.session_id),
            ("prompt-cache", body.prompt_cache_key),
        ];
        members
            .into_iter()
            .find_map(|(source, id)| Self::of_id(source, id?))
            .or_else(|| Self::of_text(body.first_user_text?))
    }

    /// A key that another part of the fleet made.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (source, id) = text.split_once(':')?;
        let fits = text.len() <= MAX_SESSION_KEY_BYTES && !source.is_empty() && !id.is_empty();
        (fits && text.bytes().all(is_literal)).then(|| Self(text.to_owned()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of_id(source: &str, id: &str) -> Option<Self> {
        if id.chars().nth(MAX_SESSION_ID_CHARACTERS).is_some() {
            return None;
        }
        let id = id.trim();
        if id.is_empty() {
            return None;
        }
        let literal = id.len() <= MAX_LITERAL_BYTES && id.bytes().all(is_literal);
        Some(Self(if literal {
            format!("{source}:{id}")
        } else {
            hashed(source, id)
        }))
    }

    fn of_text(text: &str) -> Option<Self> {
        let text: String = text
            .trim()
            .chars()
            .take(MAX_SESSION_ID_CHARACTERS)
            .collect();
        (!text.is_empty()).then(|| Self(hashed("input", &text)))
    }
}

impl fmt::Debug for SessionKey {
    /// Without anything that a client wrote.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionKey(..)")
    }
}

impl fmt::Debug for BodySession<'_> {
    /// Without anything that a client wrote.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("BodySession(..)")
    }
}

fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'-')
}

fn hashed(source: &str, text: &str) -> String {
    format!("{source}:sha256:{}", hex::encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CODEX: &str = "x-codex-session-id";
    const SESSION: &str = "x-session-id";
    const OMNIROUTE: &str = "x-omniroute-session";

    fn of_headers(headers: &[(&str, &[u8])], body: Option<BodySession<'_>>) -> Option<String> {
        let header = |name: &'static str| {
            let found = headers.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value)
        };
        SessionKey::of_request(header, body).map(|key| key.as_str().to_owned())
    }

    fn of_header(value: &str) -> Option<String> {
        of_headers(&[(SESSION, value.as_bytes())], None)
    }

    #[rstest]
    #[case::as_it_is("abc", "header:abc")]
    #[case::trimmed(" abc\t", "header:abc")]
    #[case::a_space_inside(
        "a b",
        "header:sha256:c8687a08aa5d6ed2044328fa6a697ab8e96dc34291e8c2034ae8c38e6fcc6d65"
    )]
    #[case::of_180(&"x".repeat(180), &format!("header:{}", "x".repeat(180)))]
    #[case::of_181(
        &"x".repeat(181),
        "header:sha256:dc31ed5afb940294fdd687c69bbba2aecc51b6093425c0047f6fa6c687303924"
    )]
    #[case::every_literal_character("aZ9._:-", "header:aZ9._:-")]
    fn vector_sessions_27_an_id_is_literal_or_hashed(#[case] value: &str, #[case] key: &str) {
        assert_eq!(of_header(value).as_deref(), Some(key));
    }

    #[rstest]
    #[case::too_long(&"x".repeat(4_097), false)]
    #[case::too_long_untrimmed(&format!("x{}", " ".repeat(4_096)), false)]
    #[case::just_not_too_long(&"x".repeat(4_096), true)]
    #[case::empty("", false)]
    #[case::blank(" \t ", false)]
    fn vector_sessions_27_an_unusable_id_gives_no_key(#[case] value: &str, #[case] usable: bool) {
        assert_eq!(of_header(value).is_some(), usable);
    }

    #[rstest]
    #[case::all_three(&[(OMNIROUTE, "o"), (SESSION, "s"), (CODEX, "c")], Some("header:c"))]
    #[case::the_last_two(&[(OMNIROUTE, "o"), (SESSION, "s")], Some("header:s"))]
    #[case::the_last(&[(OMNIROUTE, "o")], Some("header:o"))]
    #[case::the_first_is_unusable(&[(SESSION, "s"), (CODEX, " ")], None)]
    #[case::none(&[], None)]
    fn vector_sessions_28_the_first_header_that_is_there_counts(
        #[case] headers: &[(&str, &str)],
        #[case] key: Option<&str>,
    ) {
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .collect();
        assert_eq!(of_headers(&headers, None).as_deref(), key);
    }

    #[test]
    fn bytes_that_are_no_text_are_no_id() {
        assert_eq!(of_headers(&[(SESSION, b"\xff")], None), None);
    }

    /// A body with every member.
    fn body() -> BodySession<'static> {
        BodySession {
            metadata: Some("m"),
            conversation_id: Some("c"),
            session_id: Some("s"),
            prompt_cache_key: Some("p"),
            first_user_text: Some("hello"),
        }
    }

    /// SHA-256 of `hello`.
    const HELLO: &str =
        "input:sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    #[rstest]
    #[case::metadata(body(), Some("metadata:m"))]
    #[case::conversation(BodySession { metadata: None, ..body() }, Some("conversation:c"))]
    #[case::a_blank_one_is_passed_over(
        BodySession { metadata: Some(" "), conversation_id: None, ..body() },
        Some("session:s")
    )]
    #[case::prompt_cache(
        BodySession { prompt_cache_key: Some("p"), ..BodySession::default() },
        Some("prompt-cache:p")
    )]
    #[case::first_text(
        BodySession { first_user_text: Some(" hello "), ..BodySession::default() },
        Some(HELLO)
    )]
    #[case::blank_text(BodySession { first_user_text: Some(" "), ..BodySession::default() }, None)]
    #[case::nothing(BodySession::default(), None)]
    fn a_body_gives_a_key_where_no_header_does(
        #[case] body: BodySession<'_>,
        #[case] key: Option<&str>,
    ) {
        assert_eq!(of_headers(&[], Some(body)).as_deref(), key);
        assert_eq!(of_headers(&[(SESSION, b" ")], Some(body)).as_deref(), key);
        let with_header = of_headers(&[(SESSION, b"h")], Some(body));
        assert_eq!(with_header.as_deref(), Some("header:h"));
    }

    #[test]
    fn texts_that_begin_alike_share_a_key() {
        let begin = "x".repeat(MAX_SESSION_ID_CHARACTERS);
        let key = |text: &str| {
            let body = BodySession {
                first_user_text: Some(text),
                ..BodySession::default()
            };
            SessionKey::of_body(body)
        };
        assert_eq!(key(&begin), key(&format!("{begin}y")));
        assert_ne!(key(&begin), key("x"));
    }

    #[rstest]
    #[case::of_a_header("header:abc", true)]
    #[case::hashed("input:sha256:00ff", true)]
    #[case::without_a_source(":abc", false)]
    #[case::without_an_id("header:", false)]
    #[case::no_key("abc", false)]
    #[case::other_characters("header:a b", false)]
    #[case::as_long_as_may_be(&format!("header:{}", "x".repeat(MAX_SESSION_KEY_BYTES - 7)), true)]
    #[case::too_long(&format!("header:{}", "x".repeat(MAX_SESSION_KEY_BYTES - 6)), false)]
    fn a_key_is_read_back(#[case] text: &str, #[case] valid: bool) {
        let key = SessionKey::parse(text);
        assert_eq!(key.as_ref().map(SessionKey::as_str), valid.then_some(text));
    }

    #[test]
    fn debug_output_tells_nothing() {
        let key = SessionKey::of_body(body()).unwrap();
        assert_eq!(
            format!("{key:?} {:?}", body()),
            "SessionKey(..) BodySession(..)"
        );
    }
}
