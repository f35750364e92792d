//! What an outcome means, beyond the numbered vectors (`failure-state.md` §3.3, §3.4, §3.9, §7.3).

use rstest::rstest;
use tidegate_core::admission::{AdmissionError, Execution, QueueName, check_depth};
use tidegate_core::classify::Consequence::{
    CoolConnection, CountRefusal, EndConnection, LockModel, Nothing, RecordError,
};
use tidegate_core::classify::CooldownLength::{Base, Flat, Hint, Ladder};
use tidegate_core::classify::{
    Classification, ClassifyContext, Consequence, LockLength, Reason, TerminalKind, classify,
};
use tidegate_core::ids::{ConnectionId, ModelId, ProviderId};
use tidegate_core::outcome::{
    LocalFault, MAX_BODY_BYTES, Outcome, StreamFault, TransportFault, UpstreamError,
};
use tidegate_core::settings::ProviderClass::{self, Apikey, Local, Oauth};
use tidegate_core::time::Timestamp;

use super::world::{World, answer, status, with_header};

fn judge(provider: &str, class: ProviderClass, outcome: &Outcome) -> Classification {
    let world = World::named(provider, class);
    let model = ModelId::new("m").unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(0));
    classify(outcome, &context)
}

#[rstest]
#[case::overloaded(
    Apikey,
    answer(503, "The model is overloaded"),
    CoolConnection(Ladder),
    Reason::ModelCapacity
)]
#[case::not_believed(
    Apikey,
    answer(429, "free tier exceeded"),
    CoolConnection(Ladder),
    Reason::RateLimitExceeded
)]
#[case::believed_oauth(
    Oauth,
    answer(429, "free tier exceeded"),
    CoolConnection(Ladder),
    Reason::QuotaExhausted
)]
#[case::believed_by_phrase(
    Apikey,
    answer(429, "quota exceeded"),
    CoolConnection(Ladder),
    Reason::QuotaExhausted
)]
#[case::credits_not_believed(
    Apikey,
    answer(429, "payment required"),
    CoolConnection(Ladder),
    Reason::RateLimitExceeded
)]
#[case::credits_of_oauth(
    Oauth,
    answer(429, "Your credit balance is too low"),
    EndConnection(TerminalKind::CreditsExhausted),
    Reason::QuotaExhausted
)]
#[case::no_credentials(
    Apikey,
    answer(500, "no credentials"),
    CoolConnection(Flat(120_000)),
    Reason::AuthError
)]
#[case::moved(
    Apikey,
    answer(410, "This endpoint has moved"),
    CoolConnection(Flat(86_400_000)),
    Reason::NotFound
)]
#[case::retired(Apikey, answer(404, "The model x has been deprecated"), LockModel(LockLength::Exact { ms: 86_400_000, authoritative: true }), Reason::NotFound)]
#[case::missing_file(Apikey, answer(404, "No such file: f-1"), Nothing, Reason::NotFound)]
#[case::not_found_on_this_machine(Local, status(404), LockModel(LockLength::Ladder { base_ms: 2_000 }), Reason::NotFound)]
#[case::plan_limit(
    Apikey,
    status(432),
    CoolConnection(Flat(3_600_000)),
    Reason::QuotaExhausted
)]
#[case::plan_limit_with_hint(
    Apikey,
    with_header(432, "retry-after", "60"),
    CoolConnection(Hint(60_000)),
    Reason::QuotaExhausted
)]
#[case::not_in_the_table(Apikey, status(529), CoolConnection(Base), Reason::Unknown)]
#[case::redirect(Apikey, status(302), CoolConnection(Base), Reason::Unknown)]
#[case::too_large(Apikey, status(413), Nothing, Reason::ClientFault)]
#[case::unprocessable(Apikey, status(422), Nothing, Reason::ClientFault)]
#[case::content_policy(
    Apikey,
    answer(400, r#"{"error":{"code":"content_policy_violation"}}"#),
    Nothing,
    Reason::ClientFault
)]
#[case::foreign_response(
    Apikey,
    answer(409, "previous_response_id does not belong to you"),
    Nothing,
    Reason::Unknown
)]
#[case::cloudflare(
    Apikey,
    answer(403, "error code: 1010"),
    RecordError,
    Reason::AuthError
)]
#[case::turnstile(
    Apikey,
    answer(403, "turnstile check"),
    EndConnection(TerminalKind::Banned),
    Reason::AuthError
)]
#[case::supervisor(
    Apikey,
    with_header(503, "x-omni-fallback-hint", "connection_cooldown"),
    CoolConnection(Ladder),
    Reason::ServerError
)]
#[case::escaped(
    Apikey,
    answer(400, r#"{"error":{"message":"\u8bf7\u6c42\u8fc7\u4e8e\u9891\u7e41"}}"#),
    CoolConnection(Ladder),
    Reason::RateLimitExceeded
)]
#[case::alternate(
    Apikey,
    answer(400, "messages must alternate"),
    RecordError,
    Reason::ModelCapacity
)]
#[case::bad_key_says_model(
    Apikey,
    answer(400, "Invalid API key: no access to model"),
    Nothing,
    Reason::ClientFault
)]
fn an_answer_means(
    #[case] class: ProviderClass,
    #[case] outcome: Outcome,
    #[case] consequence: Consequence,
    #[case] reason: Reason,
) {
    let classification = judge("acme", class, &outcome);
    assert_eq!(
        (classification.consequence, classification.reason),
        (consequence, reason)
    );
    assert!(!classification.success);
}

#[rstest]
#[case::overloaded_does_not_count(answer(503, "overloaded"), false)]
#[case::supervisor_does_not_count(
    with_header(503, "x-omni-fallback-hint", "connection_cooldown"),
    false
)]
#[case::empty_response_does_not_count(
    answer(502, r#"{"error":{"code":"upstream_empty_response"}}"#),
    false
)]
#[case::too_many_requests(status(429), false)]
#[case::not_implemented(status(501), false)]
#[case::cloudflare(status(520), false)]
#[case::timeout(status(408), true)]
#[case::bad_gateway(status(502), true)]
#[case::transport(Outcome::Transport(TransportFault::Reset), true)]
#[case::truncated(Outcome::Stream(StreamFault::Truncated), true)]
#[case::idle(Outcome::Stream(StreamFault::IdleTimeout), true)]
#[case::readiness(Outcome::Stream(StreamFault::ReadinessTimeout), false)]
#[case::deadline(Outcome::Stream(StreamFault::DeadlineExceeded), false)]
#[case::throughput(Outcome::Stream(StreamFault::ThroughputTooLow), false)]
#[case::ours(Outcome::Local(LocalFault::Internal), false)]
fn the_breaker_counts(#[case] outcome: Outcome, #[case] counts: bool) {
    assert_eq!(judge("acme", Apikey, &outcome).counts_for_breaker, counts);
}

#[test]
fn an_account_is_rotated_only_where_another_can_do_better() {
    let falls_back = |outcome: &Outcome| judge("acme", Apikey, outcome).account_fallback;
    assert!(falls_back(&status(503)) && falls_back(&status(401)) && falls_back(&status(429)));
    assert!(falls_back(&answer(400, "you have no access to this model")));
    assert!(
        !falls_back(&answer(400, "invalid model: x")),
        "not served at all"
    );
    assert!(!falls_back(&status(422)) && !falls_back(&Outcome::ClientAbort));
}

#[rstest]
#[case::by_number(r#"{"error":{"code":429,"message":"slow down"}}"#, 429)]
#[case::anthropic(r#"{"type":"error","error":{"type":"overloaded_error"}}"#, 529)]
#[case::openai(r#"{"error":{"type":"server_error"}}"#, 500)]
#[case::content(r#"{"error":{"code":"content_filter"}}"#, 400)]
#[case::type_before_content(r#"{"error":{"type":"server_error","code":"content_filter"}}"#, 500)]
#[case::responses(
    r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded"}}}"#,
    429
)]
#[case::no_error_number(r#"{"error":{"code":7}}"#, 502)]
#[case::not_json("oops", 502)]
fn an_error_inside_a_stream_has_a_status(#[case] body: &str, #[case] expected: u16) {
    let outcome = Outcome::Response(UpstreamError {
        status: 200,
        body: body.to_owned(),
        embedded: true,
        ..UpstreamError::default()
    });
    assert_eq!(judge("acme", Apikey, &outcome).status, expected);
}

#[test]
fn a_fault_of_our_own_touches_nothing_whatever_it_is() {
    for fault in [
        LocalFault::QueueFull,
        LocalFault::ExecutionExpired,
        LocalFault::PermitRefused,
        LocalFault::LeaseConflict,
        LocalFault::ControlPlaneUnreachable,
        LocalFault::Internal,
    ] {
        let classification = judge("acme", Apikey, &Outcome::Local(fault));
        assert_eq!(classification.consequence, Nothing);
        assert_eq!(classification.reason, Reason::Local);
    }
}

#[rstest]
#[case::full(check_depth(3, 3, &queue()))]
#[case::expired(Execution { dispatched_at: Timestamp(0), limit_ms: 1 }.check(&queue(), Timestamp(1)))]
fn vector_sessions_35_what_admission_refuses_is_told_and_touches_nothing(
    #[case] refused: Result<(), AdmissionError>,
) {
    let error = refused.unwrap_err();
    let classification = judge("acme", Apikey, &Outcome::Local(error.local_fault()));
    assert_eq!(classification.status, error.status());
    assert_eq!(classification.consequence, Nothing);
    assert!(!classification.counts_for_breaker);
}

#[test]
fn vector_sessions_36_the_same_words_of_an_upstream_are_the_upstreams() {
    let body = r#"{"error":{"code":"RATE_LIMIT_EXECUTION_TIMEOUT"}}"#;
    let classification = judge("acme", Apikey, &answer(504, body));
    assert!(classification.counts_for_breaker);
    assert_ne!(classification.reason, Reason::Local);
}

fn queue() -> QueueName {
    QueueName {
        provider: ProviderId::new("acme").unwrap(),
        connection: ConnectionId::new("c1").unwrap(),
    }
}

#[test]
fn only_oauth_accounts_of_the_refusing_provider_are_refused_as_such() {
    let refused = answer(403, "Request not allowed");
    assert_eq!(judge("claude", Oauth, &refused).consequence, CountRefusal);
    assert_ne!(judge("claude", Apikey, &refused).consequence, CountRefusal);
    assert_ne!(judge("acme", Oauth, &refused).consequence, CountRefusal);
}

#[test]
fn only_the_first_bytes_of_a_body_are_looked_at() {
    let mut body = "é".repeat(MAX_BODY_BYTES);
    body.push_str("account_deactivated");
    let classification = judge("acme", Apikey, &answer(500, &body));
    assert_eq!(classification.consequence, CoolConnection(Ladder));
}

#[test]
fn classification_survives_the_wire() {
    let before = judge("acme", Apikey, &with_header(429, "retry-after", "5"));
    let text = serde_json::to_string(&before).unwrap();
    assert_eq!(
        serde_json::from_str::<Classification>(&text).unwrap(),
        before
    );
}

/// Where quotas are per model, a refusal that does not end the account is one of the model (§3.8-16); of codex it
/// still cools the account.
#[rstest]
#[case::project_of_an_account(
    "antigravity",
    Oauth,
    "API has not been used in project 1 before",
    true
)]
#[case::credits_of_an_account("github", Oauth, "payment required", true)]
#[case::quota_of_an_account("gemini", Oauth, "quota has been exceeded", true)]
#[case::quota_of_a_key("agentrouter", Apikey, "quota has been exceeded", true)]
#[case::not_per_model("claude", Oauth, "API has not been used in project 1 before", false)]
#[case::codex("codex", Oauth, "API has not been used in project 1 before", false)]
fn a_refusal_where_quotas_are_per_model(
    #[case] provider: &str,
    #[case] class: ProviderClass,
    #[case] body: &str,
    #[case] locks: bool,
) {
    let mut world = World::named(provider, class);
    world.policy.per_model_quota = provider != "claude";
    let model = ModelId::new("m").unwrap();
    let context = ClassifyContext::of(&world.provider, &world.policy, &model, Timestamp(0));
    let consequence = classify(&answer(403, body), &context).consequence;
    if locks {
        assert!(matches!(consequence, LockModel(_)), "{consequence:?}");
    } else {
        assert!(matches!(consequence, CoolConnection(_)), "{consequence:?}");
    }
}
