use proptest::prelude::*;
use rstest::rstest;

use super::*;

#[rstest]
#[case::plain("every target is cooling down", "every target is cooling down")]
#[case::model("openai/gpt-4: rate limited", "openai/gpt-4: rate limited")]
#[case::first_line("first\nsecond", "first")]
#[case::first_line_of_windows("first\r\nsecond", "first")]
#[case::bearer("got Bearer abcdef here", "got Bearer [redacted] here")]
#[case::bearer_small("got bearer  abc.def-ghi=, then", "got bearer  [redacted], then")]
#[case::header(
    "Authorization: Bearer abc def",
    "Authorization: Bearer [redacted] def"
)]
#[case::header_in_json(
    r#"{"Authorization":"Bearer abc","x":1}"#,
    r#"{"Authorization":"Bearer [redacted]","x":1}"#
)]
#[case::basic(
    "authorization=Basic dXNlcjpwYXNz ok",
    "authorization=Basic [redacted] ok"
)]
#[case::key("key sk-abc123 refused", "key [redacted] refused")]
#[case::key_in_brackets("(sk-proj-abc_123)", "([redacted])")]
#[case::owner("lease vlo_AAAA is stale", "lease [redacted] is stale")]
#[case::pair("x-api-key: abc", "x-api-key: [redacted]")]
#[case::pair_in_query("GET /x?api_key=abc&b=1", "GET /x?api_key=[redacted]&b=1")]
#[case::pair_of_json("\"token\":\"abc\"", "\"token\":\"[redacted]\"")]
#[case::pair_of_escaped_json(r#"{\"api_key\": \"abc\"}"#, r#"{\"api_key\": \"[redacted]\"}"#)]
#[case::pair_with_colon("password=a:b=c, next", "password=[redacted], next")]
#[case::pair_with_spaces("client_secret = abc def", "client_secret = [redacted] def")]
#[case::cookie("Cookie: session=abc; a=b", "Cookie: [redacted]; a=b")]
#[case::no_pair("the token is missing", "the token is missing")]
#[case::count("max_tokens=5", "max_tokens=5")]
#[case::path("at /srv/app/main.rs now", "at [redacted] now")]
#[case::path_with_line("at /srv/app/main.rs:10:5", "at [redacted]:10:5")]
#[case::path_in_brackets("in (/home/me/x.py)", "in ([redacted])")]
#[case::path_of_a_user("in ~/code/x/y.py", "in [redacted]")]
#[case::path_of_windows(r"in C:\src\app\main.rs now", "in C:[redacted] now")]
#[case::path_as_url("in file:///srv/app/main.rs", "in file:[redacted]")]
#[case::path_behind_a_sign("file=/srv/app/x.rs", "file=[redacted]")]
#[case::our_path("use /v1/models/x instead", "use /v1/models/x instead")]
#[case::web(
    "see https://example.com/docs/errors/x",
    "see https://example.com/docs/errors/x"
)]
#[case::data_url("image data:image/png;base64,AAAA/+= bad", "image [redacted] bad")]
#[case::data_url_in_json(r#"{"url":"data:image/png;base64,AAAA"}"#, r#"{"url":"[redacted]"}"#)]
#[case::data_url_in_brackets("url(DATA:text/plain,secret)", "url([redacted])")]
#[case::data_is_a_word("data: none, so far", "data: none, so far")]
fn secrets_and_paths_are_not_shown(#[case] text: &str, #[case] shown: &str) {
    assert_eq!(message(text), shown);
}

#[test]
fn length_is_bounded() {
    assert_eq!(message(&"é".repeat(10_000)).chars().count(), MAX_CHARACTERS);
    let long = "a ".repeat(1_000_000);
    assert_eq!(message(&long).chars().count(), MAX_CHARACTERS);
}

proptest! {
    #[test]
    fn any_text_gives_one_bounded_line(text in any::<String>()) {
        let shown = message(&text);
        prop_assert!(shown.chars().count() <= MAX_CHARACTERS);
        prop_assert!(!shown.contains('\n'));
    }

    #[test]
    fn a_key_is_hidden_wherever_it_stands(
        before in "[ \"'(=:,a-z]{0,12}",
        after in "[ \"'),;]{0,3}",
    ) {
        // A word that a key is glued to is another word.
        let glued = before.ends_with(|character: char| character.is_ascii_alphabetic());
        let text = format!("{before}{}sk-verysecret{after}", if glued { " " } else { "" });
        prop_assert!(!message(&text).contains("verysecret"), "{}", message(&text));
    }

    #[test]
    fn what_follows_a_name_is_hidden(
        name in "(api[-_]?key|access_token|password|client-secret|Authorization)",
        quote in "\"?",
        sign in " ?[:=] ?",
        value in "[A-Za-z0-9+/_.:=-]{6,20}",
    ) {
        let text = format!("{quote}{name}{quote}{sign}{quote}{value}{quote} rest");
        let shown = message(&text);
        prop_assert!(!shown.contains(&value), "{shown}");
    }
}
