//! Makes a message fit for a client: one line, bounded, without anything that looks like a secret or a path of
//! this machine (`sessions-and-streams.md` §5.2).

/// Longest message, in characters.
const MAX_CHARACTERS: usize = 4_096;
const REPLACEMENT: &str = "[redacted]";
/// Names whose value is never shown, as they appear before `=` or `:`.
const SECRET_NAMES: [&str; 8] = [
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "authorization",
    "credential",
    "bearer",
];

/// The message as clients may see it.
pub(crate) fn message(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut shown = String::with_capacity(line.len());
    let mut hide_next = false;
    for word in line.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let space = word.get(bare.len()..).unwrap_or_default();
        if bare.is_empty() {
            shown.push_str(space);
            continue;
        }
        let hidden = std::mem::replace(&mut hide_next, introduces_secret(bare));
        if hidden || is_secret(bare) {
            shown.push_str(REPLACEMENT);
        } else {
            shown.push_str(bare);
        }
        shown.push_str(space);
    }
    shown.chars().take(MAX_CHARACTERS).collect()
}

/// `Bearer`, or a name with nothing behind its sign: what follows is the value.
fn introduces_secret(word: &str) -> bool {
    let name = word.trim_matches(|character: char| !character.is_ascii_alphanumeric());
    if name.eq_ignore_ascii_case("bearer") {
        return true;
    }
    word.trim_end_matches(['"', '\''])
        .strip_suffix([':', '='])
        .is_some_and(names_secret)
}

fn is_secret(word: &str) -> bool {
    let bare = word.trim_matches(|character: char| {
        !character.is_ascii_alphanumeric() && !matches!(character, '/' | '-' | '_')
    });
    let keylike = ["sk-", "pk-", "rk-", "xoxb-", "ghp_", "AIza", "eyJ"];
    if keylike.iter().any(|prefix| bare.starts_with(prefix)) {
        return true;
    }
    if bare.starts_with("data:") && bare.contains(',') {
        return true;
    }
    let is_path = bare.starts_with('/') && bare.matches('/').count() >= 2;
    if is_path && !bare.starts_with("/v1/") && !bare.starts_with("/api/") {
        return true;
    }
    word.split_once(['=', ':']).is_some_and(|(name, value)| {
        !value.trim_matches(['"', '\'', ',']).is_empty() && names_secret(name)
    })
}

fn names_secret(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|character| character.to_ascii_lowercase())
        .collect();
    SECRET_NAMES.iter().any(|secret| plain.ends_with(secret))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("every target is cooling down", "every target is cooling down")]
    #[case("openai/gpt-4: rate limited", "openai/gpt-4: rate limited")]
    #[case("first\nsecond", "first")]
    #[case("got Bearer abcdef here", "got Bearer [redacted] here")]
    #[case("key sk-abc123 refused", "key [redacted] refused")]
    #[case("x-api-key: abc", "x-api-key: [redacted]")]
    #[case("api_key=abc, next", "[redacted] next")]
    #[case("\"token\":\"abc\"", "[redacted]")]
    #[case("at /srv/app/main.rs now", "at [redacted] now")]
    #[case("use /v1/models instead", "use /v1/models instead")]
    #[case("image data:image/png;base64,AAAA bad", "image [redacted] bad")]
    fn secrets_and_paths_are_not_shown(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(message(text), shown);
    }

    #[test]
    fn length_is_bounded() {
        assert_eq!(message(&"é".repeat(10_000)).chars().count(), MAX_CHARACTERS);
    }
}
