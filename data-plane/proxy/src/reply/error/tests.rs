use http_body_util::BodyExt as _;
use tidegate_core::classify::TerminalKind;
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_core::routing::ExclusionReason;

use super::*;

async fn read(response: Response<ReplyBody>) -> (u16, HeaderMap, Value) {
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap();
    (parts.status.as_u16(), parts.headers, body)
}

fn rejection() -> Refusal {
    Refusal::Rejected(Box::new(Rejection {
        status: 503,
        code: "all_targets_cooling_down".to_owned(),
        error_type: "service_unavailable".to_owned(),
        message: "every target is cooling down (key sk-secret)".to_owned(),
        retry_after_secs: Some(60),
        pass_through: false,
        terminal_reason: "all_targets_cooling_down".to_owned(),
        pool_size: 2,
        attempted: 0,
        excluded: vec![Exclusion {
            provider: ProviderId::new("openai").unwrap(),
            connection: Some(ConnectionId::new("private").unwrap()),
            model: ModelId::new("a").unwrap(),
            reason: ExclusionReason::ModelLockout,
            until: None,
            cause: None,
            origin: None,
        }],
        lease: None,
    }))
}

#[tokio::test]
async fn a_terminal_state_is_named_without_its_prefix() {
    let mut refusal = rejection();
    if let Refusal::Rejected(rejection) = &mut refusal {
        for excluded in &mut rejection.excluded {
            excluded.reason = ExclusionReason::Terminal(TerminalKind::CreditsExhausted);
        }
    }
    let response = refuse(Format::Openai, &refusal, ErrorContext::default());
    let (_, _, body) = read(response).await;
    let reason = &body["diagnostics"]["excluded"][0]["reason"];
    assert_eq!(reason, "credits_exhausted");
}

#[tokio::test]
async fn a_rejection_explains_itself_in_the_openai_format() {
    let response = refuse(Format::Openai, &rejection(), ErrorContext::default());
    let (status, headers, body) = read(response).await;
    assert_eq!(status, 503);
    assert_eq!(headers["retry-after"], "60");
    assert_eq!(headers["x-omniroute-combo-pool-size"], "2");
    assert_eq!(
        headers["x-omniroute-combo-terminal-reason"],
        "all_targets_cooling_down"
    );
    assert_eq!(headers["x-omniroute-recovery-action"], "wait");
    assert_eq!(headers["x-omniroute-retry-after-seconds"], "60");
    assert_eq!(body["error"]["code"], "all_targets_cooling_down");
    assert_eq!(body["error"]["type"], "service_unavailable");
    assert_eq!(
        body["diagnostics"],
        json!({
            "poolSize": 2, "attempted": 0, "attemptOrder": [],
            "excluded": [{"provider": "openai", "model": "a", "reason": "model_lockout"}],
            "terminalReason": "all_targets_cooling_down",
        })
    );
    assert_eq!(body["recovery_hint"]["action"], "wait");
    assert_eq!(body["recovery_hint"]["retry_after_seconds"], 60);
    let text = body.to_string();
    assert!(
        !text.contains("sk-secret") && !text.contains("private"),
        "{text}"
    );
}

#[tokio::test]
async fn a_rejection_has_anthropics_shape_for_its_clients() {
    let response = refuse(Format::Anthropic, &rejection(), ErrorContext::default());
    let (_, _, body) = read(response).await;
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "overloaded_error");
    assert_eq!(body["error"]["code"], "all_targets_cooling_down");
}
