//! Upstreams that compress although we ask them not to.

use http_body_util::BodyExt as _;
use rstest::rstest;
use serde_json::json;
use tidegate_core::outcome::{Outcome, StreamFault, TransportFault};
use tidegate_fake_upstream::{Encoding, Mode, Selector};

use crate::bench::{Bench, LIMIT, chat};

const CHAT: &str = "/v1/chat/completions";

const ALL: [Encoding; 5] = [
    Encoding::Gzip,
    Encoding::Deflate,
    Encoding::RawDeflate,
    Encoding::Brotli,
    Encoding::Zstd,
];

#[tokio::test]
async fn clients_get_plain_answers() {
    let bench = Bench::start().await;
    for encoding in ALL {
        bench.one.set_default(Mode::Ok.encoded(encoding));
        let mut body = chat("one/m", true);
        body["stream_options"] = json!({"include_usage": true});
        for stream in [false, true] {
            body["stream"] = stream.into();
            let reply = bench.client.post(CHAT, &body).await;
            assert_eq!(reply.status, 200, "{encoding:?}");
            assert_eq!(reply.header("content-encoding"), None);
            assert!(reply.text().contains("ahoy"), "{encoding:?}: {reply:?}");
            assert_eq!(reply.text().ends_with("data: [DONE]\n\n"), stream);
        }
    }
    let all = 2 * ALL.len();
    bench
        .until("the ends", |bench| {
            bench.control.heard().usages.len() == all
        })
        .await;
    for usage in bench.control.heard().usages {
        assert_eq!(usage.tokens.output, Some(5), "it was read");
    }
    let last = bench.one.log().last(&Selector::any()).unwrap();
    assert_eq!(last.header("accept-encoding"), Some("identity"));
}

#[tokio::test]
async fn events_are_handed_on_as_they_come() {
    let bench = Bench::start().await;
    for encoding in ALL {
        let stalls = Mode::Stall { events: 3 };
        bench.one.set_default(stalls.encoded(encoding));
        let response = bench.client.open_post(CHAT, &chat("one/m", true)).await;
        let mut body = response.into_body();
        let mut text = String::new();
        while text.matches("data: ").count() < 3 {
            let frame = tokio::time::timeout(LIMIT, body.frame()).await;
            let frame = frame.unwrap_or_else(|_| panic!("{encoding:?}: {text}"));
            let data = frame.unwrap().unwrap().into_data().unwrap();
            text.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert!(text.ends_with("\n\n"));
    }
}

#[tokio::test]
async fn a_compressed_stream_that_is_cut_is_a_stream_that_is_cut() {
    for encoding in ALL {
        let bench = Bench::start().await;
        let cut = Mode::CutInEvent { events: 4 };
        bench.one.set_default(cut.encoded(encoding));
        let reply = bench.client.post(CHAT, &chat("duo", true)).await;
        let text = reply.text();
        assert!(text.contains("stream_terminated"), "{encoding:?}: {text}");
        assert!(!text.contains("[DONE]"));
        let broken = Outcome::Stream(StreamFault::Truncated);
        assert_eq!(bench.control.outcomes(), [Outcome::Success, broken]);

        let bench = Bench::start().await;
        let cut = Mode::CutInEvent { events: 0 };
        bench.one.set_default(cut.encoded(encoding));
        let reply = bench.client.post(CHAT, &chat("duo", false)).await;
        assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
        let early = Outcome::Stream(StreamFault::EarlyEof);
        assert_eq!(bench.control.outcomes(), [early, Outcome::Success]);
    }
}

#[tokio::test]
async fn compressed_errors_are_read_and_handed_on() {
    let bench = Bench::start().await;
    for encoding in ALL {
        let words = json!({"error": {"message": "temperature must be small"}}).to_string();
        let error = Mode::status_with_body(422, words.clone());
        bench.one.set_default(error.encoded(encoding));
        let reply = bench.client.post(CHAT, &chat("one/m", false)).await;
        assert_eq!((reply.status, reply.text()), (422, words.clone()));
        assert_eq!(reply.header("content-encoding"), None);
        let outcomes = bench.control.outcomes();
        let Some(Outcome::Response(error)) = outcomes.last() else {
            panic!("{outcomes:?}");
        };
        assert_eq!(error.body, words);
    }
    bench
        .one
        .set_default(Mode::sse_error_first().encoded(Encoding::Gzip));
    for stream in [false, true] {
        let reply = bench.client.post(CHAT, &chat("duo", stream)).await;
        assert_eq!(reply.header("x-omniroute-provider"), Some("two"));
    }
}

#[rstest]
#[case::stream(true)]
#[case::whole(false)]
#[tokio::test]
async fn an_encoding_that_is_not_known_is_handed_on_only_whole(#[case] stream: bool) {
    let bench = Bench::start().await;
    bench
        .one
        .set_default(Mode::with_header("content-encoding", "x-own"));
    let reply = bench.client.post(CHAT, &chat("duo", stream)).await;
    assert_eq!(reply.status, 200);
    let protocol = Outcome::Transport(TransportFault::Protocol);
    let (provider, encoding, outcomes) = if stream {
        ("two", None, vec![protocol, Outcome::Success])
    } else {
        ("one", Some("x-own"), vec![Outcome::Success])
    };
    assert_eq!(reply.header("x-omniroute-provider"), Some(provider));
    assert_eq!(reply.header("content-encoding"), encoding);
    assert_eq!(bench.control.outcomes(), outcomes);
}
