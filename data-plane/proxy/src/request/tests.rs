use bytes::Bytes;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Map, Value, json};

use super::{BodyFault, Changes, MAX_DEPTH, MaxOutput, RequestBody};

fn parse(text: &str) -> Result<RequestBody, BodyFault> {
    RequestBody::parse(Bytes::copy_from_slice(text.as_bytes()), true)
}

impl RequestBody {
    fn as_model(&self, model: &str) -> Vec<Bytes> {
        self.with(model, Changes::default())
    }
}

fn joined(pieces: &[Bytes]) -> String {
    String::from_utf8(pieces.concat()).unwrap()
}

#[rstest]
#[case::alone(r#"{"model":"a"}"#, r#"{"model":"new/m"}"#)]
#[case::white_space_stays(
    "\t{ \"x\" : 1 ,\r\n \"model\" :  \"a\"  , \"y\":[ ] }\n",
    "\t{ \"x\" : 1 ,\r\n \"model\" :  \"new/m\"  , \"y\":[ ] }\n"
)]
#[case::inner_models_stay(
    r#"{"tools":[{"model":"a"}],"model":"a","o":{"model":"a"}}"#,
    r#"{"tools":[{"model":"a"}],"model":"new/m","o":{"model":"a"}}"#
)]
#[case::text_that_looks_like_a_member(
    r#"{"s":"\"model\":\"a\"","model":"a"}"#,
    r#"{"s":"\"model\":\"a\"","model":"new/m"}"#
)]
#[case::escaped_name(r#"{"mod\u0065l":"a"}"#, r#"{"mod\u0065l":"new/m"}"#)]
#[case::escaped_value(r#"{"model":"\u0061\\\""}"#, r#"{"model":"new/m"}"#)]
#[case::numbers_are_not_rewritten(
    r#"{"a":1.0e+2,"b":12345678901234567890.10,"model":"a"}"#,
    r#"{"a":1.0e+2,"b":12345678901234567890.10,"model":"new/m"}"#
)]
#[case::other_duplicates_stay(r#"{"a":1,"a":2,"model":"x"}"#, r#"{"a":1,"a":2,"model":"new/m"}"#)]
#[case::brackets_in_text(r#"{"a":"}]{[","model":"x"}"#, r#"{"a":"}]{[","model":"new/m"}"#)]
fn only_the_models_value_changes(#[case] sent: &str, #[case] expected: &str) {
    assert_eq!(joined(&parse(sent).unwrap().as_model("new/m")), expected);
}

#[test]
fn a_name_that_needs_escapes_is_escaped() {
    let body = parse(r#"{"model":"a"}"#).unwrap();
    assert_eq!(joined(&body.as_model("q\"\\")), r#"{"model":"q\"\\"}"#);
}

#[test]
fn the_same_model_leaves_the_body_as_it_came() {
    let body = parse(r#"{"model":"\u0061"}"#).unwrap();
    assert_eq!(joined(&body.as_model("a")), r#"{"model":"\u0061"}"#);
}

#[test]
fn a_long_body_is_sent_in_pieces() {
    let sent = json!({"model": "a", "input": "x".repeat(100_000)}).to_string();
    let pieces = parse(&sent).unwrap().as_model("b");
    assert!(pieces.len() > 1);
    assert_eq!(
        joined(&pieces),
        sent.replace(r#""model":"a""#, r#""model":"b""#)
    );
}

#[rstest]
#[case::first(r#"{"background":true,"model":"a"}"#, r#"{"model":"b"}"#)]
#[case::last(r#"{"model":"a" , "background":true }"#, r#"{"model":"b"  }"#)]
#[case::middle(r#"{"model":"a","background" : true,"x":1}"#, r#"{"model":"b","x":1}"#)]
fn background_is_cut_out(#[case] sent: &str, #[case] expected: &str) {
    let body = parse(sent).unwrap();
    assert_eq!(body.background, Some(true));
    assert_eq!(joined(&body.as_model("b")), expected);
}

#[test]
fn background_stays_where_it_means_nothing() {
    let sent = r#"{"model":"a","background":"blue"}"#;
    let body = RequestBody::parse(Bytes::from_static(sent.as_bytes()), false).unwrap();
    assert_eq!(joined(&body.as_model("a")), sent);
}

#[rstest]
#[case::empty("", "invalid_json")]
#[case::cut(r#"{"model":"a""#, "invalid_json")]
#[case::two_values(r#"{"model":"a"}{}"#, "invalid_json")]
#[case::trailing_comma(r#"{"model":"a",}"#, "invalid_json")]
#[case::control_character("{\"model\":\"a\u{1}\"}", "invalid_json")]
#[case::array("[]", "body_not_an_object")]
#[case::text(r#""model""#, "body_not_an_object")]
#[case::null("null", "body_not_an_object")]
#[case::no_model("{}", "missing_model")]
#[case::inner_model_only(r#"{"a":{"model":"x"}}"#, "missing_model")]
#[case::number_as_model(r#"{"model":4}"#, "invalid_model")]
#[case::null_as_model(r#"{"model":null}"#, "invalid_model")]
#[case::empty_model(r#"{"model":""}"#, "invalid_model")]
#[case::lone_surrogate(r#"{"model":"\ud800"}"#, "invalid_model")]
#[case::two_models(r#"{"model":"a","model":"b"}"#, "duplicate_member")]
#[case::two_models_one_escaped(r#"{"model":"a","\u006dodel":"b"}"#, "duplicate_member")]
#[case::two_streams(r#"{"model":"a","stream":true,"stream":false}"#, "duplicate_member")]
#[case::text_as_stream(r#"{"model":"a","stream":"yes"}"#, "invalid_stream")]
#[case::number_as_background(r#"{"model":"a","background":1}"#, "invalid_background")]
fn what_is_wrong_gets_a_code(#[case] text: &str, #[case] code: &str) {
    assert_eq!(parse(text).unwrap_err().code(), code);
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let bytes = Bytes::from_static(b"{\"model\":\"a\xff\"}");
    assert_eq!(
        RequestBody::parse(bytes, true).unwrap_err(),
        BodyFault::InvalidUtf8
    );
}

#[test]
fn too_long_a_model_is_refused() {
    let text = json!({"model": "x".repeat(super::MAX_MODEL_BYTES + 1)}).to_string();
    assert_eq!(parse(&text).unwrap_err(), BodyFault::InvalidModel);
}

#[rstest]
#[case::at_the_limit(MAX_DEPTH - 1, None)]
#[case::beyond_it(MAX_DEPTH, Some(BodyFault::TooDeep))]
#[case::far_beyond_it(1_000_000, Some(BodyFault::TooDeep))]
fn depth_is_limited(#[case] arrays: usize, #[case] fault: Option<BodyFault>) {
    let text = format!(
        r#"{{"model":"a","x":{}{}}}"#,
        "[".repeat(arrays),
        "]".repeat(arrays)
    );
    assert_eq!(parse(&text).err(), fault);
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn of_any_object_only_the_model_changes(
        members in prop::collection::vec((any::<String>(), json_value()), 0..8),
        old in "[a-z/\"\\\\\u{e9}]{1,20}",
        new in any::<String>(),
        pretty in any::<bool>(),
        background in prop::option::of(any::<bool>()),
    ) {
        let mut object: Map<String, Value> = members
            .into_iter()
            .filter(|(name, _)| !matches!(name.as_str(), "stream" | "background"))
            .collect();
        object.insert("model".to_owned(), old.clone().into());
        let mut expected = object.clone();
        expected.insert("model".to_owned(), new.clone().into());
        if let Some(background) = background {
            object.insert("background".to_owned(), background.into());
        }
        let object = Value::Object(object);
        let sent = if pretty {
            serde_json::to_string_pretty(&object).unwrap()
        } else {
            object.to_string()
        };
        let body = parse(&sent).unwrap();
        prop_assert_eq!(&body.model, &old);
        prop_assert_eq!(body.background, background);
        let rewritten = joined(&body.as_model(&new));
        let read: Value = serde_json::from_str(&rewritten).unwrap();
        prop_assert_eq!(read, Value::Object(expected));
        if background.is_none() {
            let at = &body.model_span;
            prop_assert_eq!(rewritten.get(..at.start), sent.get(..at.start));
            prop_assert!(rewritten.ends_with(sent.get(at.end..).unwrap()));
        }
    }

    #[test]
    fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _outcome = RequestBody::parse(Bytes::from(bytes), true);
    }

    #[test]
    fn no_near_json_makes_it_panic(text in "[{}\\[\\]\",:\\\\a mtrue1model]{0,60}") {
        let _outcome = parse(&text);
    }
}

#[rstest]
#[case::none("{}", 0, false)]
#[case::two(r#"{"tools": [{"a": [1, 2]}, {}]}"#, 2, false)]
#[case::no_list(r#"{"tools": {"a": 1}}"#, 0, false)]
#[case::null(r#"{"tools": null, "tool_choice": null}"#, 0, false)]
#[case::forbidden(r#"{"tools": [{}], "tool_choice": "none"}"#, 1, true)]
#[case::forbidden_object(r#"{"tool_choice": {"type": "none"}, "tools": [{}]}"#, 1, true)]
#[case::wanted(r#"{"tools": [{}], "tool_choice": "auto"}"#, 1, false)]
#[case::wanted_object(
    r#"{"tools": [{}], "tool_choice": {"type": "tool", "name": "none"}}"#,
    1,
    false
)]
#[case::odd(r#"{"tools": [{}], "tool_choice": 7}"#, 1, false)]
fn tools_are_counted(#[case] members: &str, #[case] tools: u32, #[case] forbidden: bool) {
    let text = members
        .replacen('{', r#"{"model": "m", "#, 1)
        .replace(", }", "}");
    let body = RequestBody::parse(Bytes::from(text), false).unwrap();
    assert_eq!(
        (body.facts.tools, body.facts.tools_forbidden),
        (tools, forbidden)
    );
}

#[rstest]
#[case::cut(
    r#"{"tools":[1,{"a":[2]},"x"],"model":"m"}"#,
    2,
    r#"{"tools":[1,{"a":[2]}],"model":"m"}"#
)]
#[case::white_space(
    r#"{"tools": [ 1 , 2 ] ,"model":"m"}"#,
    1,
    r#"{"tools": [ 1] ,"model":"m"}"#
)]
#[case::enough(r#"{"tools":[1,2],"model":"m"}"#, 2, r#"{"tools":[1,2],"model":"m"}"#)]
#[case::none_left(r#"{"tools":[1,2],"model":"m"}"#, 0, r#"{"tools":[],"model":"m"}"#)]
#[case::empty(r#"{"tools":[ ],"model":"m"}"#, 1, r#"{"tools":[ ],"model":"m"}"#)]
#[case::no_list(
    r#"{"tools":{"a":1},"model":"m"}"#,
    0,
    r#"{"tools":{"a":1},"model":"m"}"#
)]
#[case::brackets_in_text(
    r#"{"tools":["],[",2,3],"model":"m"}"#,
    1,
    r#"{"tools":["],["],"model":"m"}"#
)]
#[case::behind_what_was_cut_out(
    r#"{"background":true,"tools":[1,2],"model":"m"}"#,
    1,
    r#"{"tools":[1],"model":"m"}"#
)]
#[case::no_tools(r#"{"model":"m"}"#, 1, r#"{"model":"m"}"#)]
fn tools_are_cut(#[case] sent: &str, #[case] most: u32, #[case] expected: &str) {
    let changes = Changes {
        max_tools: Some(most),
        max_output: None,
    };
    assert_eq!(joined(&parse(sent).unwrap().with("m", changes)), expected);
}

#[rstest]
#[case::larger(
    r#"{"model":"m","max_tokens":9000}"#,
    r#"{"model":"m","max_tokens":4096}"#
)]
#[case::smaller(r#"{"model":"m","max_tokens":10}"#, r#"{"model":"m","max_tokens":10}"#)]
#[case::null(
    r#"{"model":"m","max_tokens":null}"#,
    r#"{"model":"m","max_tokens":4096}"#
)]
#[case::other_name(
    r#"{"max_completion_tokens":9000,"model":"m"}"#,
    r#"{"max_completion_tokens":4096,"model":"m"}"#
)]
#[case::both(
    r#"{"max_completion_tokens":9000,"model":"m","max_tokens":1e9}"#,
    r#"{"max_completion_tokens":4096,"model":"m","max_tokens":4096}"#
)]
#[case::none(r#" {"model":"m"}"#, r#" {"max_tokens":4096,"model":"m"}"#)]
fn an_answer_is_kept_short(#[case] sent: &str, #[case] expected: &str) {
    let changes = Changes {
        max_tools: None,
        max_output: Some(MaxOutput {
            tokens: 4_096,
            member: "max_tokens",
        }),
    };
    assert_eq!(joined(&parse(sent).unwrap().with("m", changes)), expected);
}

#[test]
fn several_changes_are_made_at_once() {
    let sent = r#"{"tools":[1,2],"model":"a","max_tokens":9000}"#;
    let changes = Changes {
        max_tools: Some(1),
        max_output: Some(MaxOutput {
            tokens: 5,
            member: "max_tokens",
        }),
    };
    assert_eq!(
        joined(&parse(sent).unwrap().with("long/name", changes)),
        r#"{"tools":[1],"model":"long/name","max_tokens":5}"#
    );
}

#[rstest]
#[case::after_others(
    r#"{"messages": [{"role":"user","content":"a"} ] ,"model":"m","stream":true}"#,
    r#"{"messages": [{"role":"user","content":"a"} ,{"role":"assistant","content":"b\"\n"}] ,"model":"m","stream":true}"#
)]
#[case::alone(
    r#"{"model":"m","messages":[ ]}"#,
    r#"{"model":"m","messages":[ {"role":"assistant","content":"b\"\n"}]}"#
)]
#[case::behind_what_is_removed(
    r#"{"background":true,"messages":[1],"model":"m"}"#,
    r#"{"messages":[1,{"role":"assistant","content":"b\"\n"}],"model":"m"}"#
)]
fn what_was_said_is_the_last_message(#[case] text: &str, #[case] expected: &str) {
    let body = parse(text).unwrap();
    let continued = body.continued("b\"\n").unwrap();
    assert_eq!(continued.bytes(), expected.as_bytes());
    assert_eq!(
        (&continued.model, continued.stream),
        (&body.model, body.stream)
    );
    let again = continued.as_model("m");
    assert_eq!(joined(&again), expected);
    let same = body.continued("").unwrap();
    assert_eq!(same.bytes(), body.bytes(), "nothing was said");
}

#[rstest]
#[case::none(r#"{"model":"m"}"#)]
#[case::not_a_list(r#"{"model":"m","messages":"a"}"#)]
#[case::elsewhere(r#"{"model":"m","o":{"messages":[]}}"#)]
fn what_holds_no_messages_is_not_continued(#[case] text: &str) {
    assert!(parse(text).unwrap().continued("a").is_none());
}
