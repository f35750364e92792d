//! Makes a message fit for a client: one line, bounded, without anything that looks like a secret or a path of
//! this machine (`sessions-and-streams.md` §5.2).
//!
//! A line is read as words and what stands between them. Hidden are words that look like a key or a path, whole
//! `data:` URLs, and what follows `Bearer` or, behind `:` or `=`, the name of a secret. Rather too much than too little:
//! what is left has to be of use to a person, not to a machine.

/// Longest message, in characters.
const MAX_CHARACTERS: usize = 4_096;
/// Longest line that is looked at, in bytes: words may shrink, so more than is shown.
const MAX_LINE_BYTES: usize = 64 * 1024;
const REPLACEMENT: &str = "[redacted]";
/// Ends of names whose value is never shown.
const SECRET_NAMES: [&str; 8] = [
    "key",
    "token",
    "secret",
    "password",
    "authorization",
    "credential",
    "bearer",
    "cookie",
];
/// What stands before a credential in a header.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];
/// How keys begin that say by themselves that they are keys.
const KEY_BEGINNINGS: [&str; 16] = [
    "sk-",
    "pk-",
    "rk-",
    "sk_",
    "gsk_",
    "xai-",
    "hf_",
    "xoxb-",
    "xoxp-",
    "ghp_",
    "github_pat_",
    "glpat-",
    "AIza",
    "AKIA",
    "eyJ",
    "vlo_",
];
/// Paths of ours that clients ask for.
const OUR_PATHS: [&str; 2] = ["/v1/", "/api/"];

/// The message as clients may see it.
pub(crate) fn message(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(MAX_LINE_BYTES);
    let mut reader = Reader {
        rest: line.get(..end).unwrap_or_default(),
        shown: String::with_capacity(line.len().min(MAX_CHARACTERS)),
        before: Before::Nothing,
    };
    while !reader.rest.is_empty() {
        reader.step();
    }
    if let Some((end, _)) = reader.shown.char_indices().nth(MAX_CHARACTERS) {
        reader.shown.truncate(end);
    }
    reader.shown
}

/// What stands before the next word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Nothing that matters.
    Nothing,
    /// The name of a secret.
    Name,
    /// The same, and a sign that its value follows; or a scheme.
    Announced,
    /// `http:` or `https:`.
    Web,
}

struct Reader<'a> {
    rest: &'a str,
    shown: String,
    before: Before,
}

impl<'a> Reader<'a> {
    fn step(&mut self) {
        if let Some(length) = data_url(self.rest) {
            self.hide(length);
        } else if self.before == Before::Announced && self.rest.starts_with(is_of_value) {
            self.value();
        } else if self.rest.starts_with(is_of_word) {
            self.word();
        } else {
            self.sign();
        }
    }

    fn take(&mut self, length: usize) -> &'a str {
        // Lengths come from searches in this very text.
        let (taken, rest) = self
            .rest
            .split_at_checked(length)
            .unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    fn hide(&mut self, length: usize) {
        self.take(length);
        self.shown.push_str(REPLACEMENT);
        self.before = Before::Nothing;
    }

    /// What a name or a scheme has announced.
    fn value(&mut self) {
        let length = length_of(self.rest, is_of_value);
        let value = self.rest.get(..length).unwrap_or_default();
        if SCHEMES
            .iter()
            .any(|scheme| value.eq_ignore_ascii_case(scheme))
        {
            let scheme = self.take(length);
            self.shown.push_str(scheme);
        } else {
            self.hide(length);
        }
    }

    fn word(&mut self) {
        let length = length_of(self.rest, is_of_word);
        let word = self.rest.get(..length).unwrap_or_default();
        // JSON inside JSON has backslashes before its quotes.
        let word = word.trim_end_matches('\\');
        let length = word.len();
        if word.is_empty() {
            return self.sign();
        }
        let is_address = self.before == Before::Web && word.starts_with("//");
        if looks_like_key(word) || (is_path(word) && !is_address) {
            return self.hide(length);
        }
        self.before = if word.eq_ignore_ascii_case("bearer") {
            Before::Announced
        } else if names_secret(word) {
            Before::Name
        } else if ["http", "https"]
            .iter()
            .any(|web| word.eq_ignore_ascii_case(web))
        {
            Before::Web
        } else {
            Before::Nothing
        };
        let word = self.take(length);
        self.shown.push_str(word);
    }

    fn sign(&mut self) {
        let sign = self.rest.chars().next().unwrap_or_default();
        let taken = self.take(sign.len_utf8());
        self.shown.push_str(taken);
        self.before = match (self.before, sign) {
            (Before::Name, ':' | '=') => Before::Announced,
            (Before::Web, ':') => Before::Web,
            // Between a name and its value, and around either.
            (
                before @ (Before::Name | Before::Announced),
                '"' | '\'' | '\\' | ' ' | '\t' | ':' | '=' | '>',
            ) => before,
            _ => Before::Nothing,
        };
    }
}

fn length_of(text: &str, is_inside: fn(char) -> bool) -> usize {
    text.find(|character| !is_inside(character))
        .unwrap_or(text.len())
}

fn is_of_word(character: char) -> bool {
    character.is_alphanumeric()
        || matches!(
            character,
            '_' | '-' | '.' | '/' | '\\' | '~' | '+' | '@' | '%'
        )
}

/// Values go on to where texts, lists and objects end.
fn is_of_value(character: char) -> bool {
    !character.is_whitespace()
        && !matches!(character, '"' | '\'' | '\\' | ',' | ';' | '&' | '<' | '>')
        && !matches!(character, '(' | ')' | '[' | ']' | '{' | '}')
}

fn looks_like_key(word: &str) -> bool {
    KEY_BEGINNINGS
        .iter()
        .any(|beginning| word.len() > beginning.len() && word.starts_with(beginning))
}

/// An absolute path of more than one step, of Unix or Windows (whose letter stands before the colon), or of a user.
fn is_path(word: &str) -> bool {
    let separator = match word.trim_start_matches('~').chars().next() {
        Some('/') => '/',
        Some('\\') => '\\',
        _ => return false,
    };
    let steps = word.matches(separator).count();
    steps >= 2 && !OUR_PATHS.iter().any(|ours| word.starts_with(ours))
}

/// The length of the `data:` URL that the text begins with.
fn data_url(text: &str) -> Option<usize> {
    let (scheme, rest) = text.split_at_checked(5)?;
    if !scheme.eq_ignore_ascii_case("data:") {
        return None;
    }
    let kind = rest.find(',')?;
    let is_kind = |character: char| !character.is_whitespace() && !matches!(character, '"' | '{');
    if !rest.get(..kind)?.chars().all(is_kind) {
        return None;
    }
    let content = rest.get(kind..)?;
    let ends = |character: char| {
        character.is_whitespace() || matches!(character, '"' | '\'' | ')' | '>' | '}')
    };
    let length = content.find(ends).unwrap_or(content.len());
    Some(scheme.len().saturating_add(kind).saturating_add(length))
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
mod tests;
