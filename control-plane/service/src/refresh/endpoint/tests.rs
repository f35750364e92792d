use http_body_util::BodyExt as _;
use rstest::rstest;

use super::*;

fn secret(text: &str) -> SecretString {
    SecretString::from(text)
}

fn client(authentication: ClientAuthentication) -> OauthClient {
    OauthClient {
        token_endpoint: "https://id.example/oauth/token".to_owned(),
        client_id: None,
        client_authentication: authentication,
        scope: Some("a b".to_owned()),
    }
}

async fn sent(
    client: &OauthClient,
    client_id: Option<&str>,
    client_secret: Option<&SecretString>,
) -> (Option<String>, String) {
    let refresh_token = secret("r/1+=");
    let grant = Grant {
        client,
        client_id,
        client_secret,
        refresh_token: &refresh_token,
    };
    let uri: Uri = client.token_endpoint.parse().unwrap();
    let (head, body) = request(&grant, &uri).unwrap().into_parts();
    assert_eq!(head.uri.path(), "/oauth/token");
    assert_eq!(head.headers["host"], "id.example");
    let authorization = head.headers.get(AUTHORIZATION);
    let body = body.collect().await.unwrap().to_bytes();
    (
        authorization.map(|value| value.to_str().unwrap().to_owned()),
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

const FORM: &str = "grant_type=refresh_token&refresh_token=r%2F1%2B%3D&scope=a+b";

#[tokio::test]
async fn a_client_shows_itself_as_configured() {
    let key = secret("s&ü");
    let basic = client(ClientAuthentication::ClientSecretBasic);
    let post = client(ClientAuthentication::ClientSecretPost);
    assert_eq!(sent(&basic, None, None).await, (None, FORM.to_owned()));
    assert_eq!(
        sent(&basic, Some("app"), None).await,
        (None, format!("{FORM}&client_id=app"))
    );
    // "a:b" and "s&ü", each form-encoded first: a%3Ab:s%26%C3%BC
    assert_eq!(
        sent(&basic, Some("a:b"), Some(&key)).await,
        (
            Some("Basic YSUzQWI6cyUyNiVDMyVCQw==".to_owned()),
            FORM.to_owned()
        )
    );
    assert_eq!(
        sent(&post, Some("app"), Some(&key)).await,
        (
            None,
            format!("{FORM}&client_id=app&client_secret=s%26%C3%BC")
        )
    );
}

#[rstest]
#[case::whole(
    r#"{"access_token":"a","token_type":"bearer","expires_in":3600,"refresh_token":"r"}"#,
    Some("r"),
    Some(3_600_000)
)]
#[case::least(r#"{"access_token":"a"}"#, None, None)]
#[case::text(
    r#"{"access_token":"a","token_type":"Bearer","expires_in":"60"}"#,
    None,
    Some(60_000)
)]
#[case::no_life(r#"{"access_token":"a","expires_in":-5}"#, None, None)]
#[case::nonsense_life(r#"{"access_token":"a","expires_in":"soon"}"#, None, None)]
#[case::absurd_life(r#"{"access_token":"a","expires_in":1e300}"#, None, None)]
#[case::empty_refresh_token(r#"{"access_token":"a","refresh_token":""}"#, None, None)]
fn good_answers(
    #[case] body: &str,
    #[case] refresh_token: Option<&str>,
    #[case] life_ms: Option<u64>,
) {
    let issued = read(StatusCode::OK, body.as_bytes()).unwrap();
    assert_eq!(issued.access_token.expose_secret(), "a");
    let token = issued
        .refresh_token
        .as_ref()
        .map(SecretString::expose_secret);
    assert_eq!((token, issued.life_ms), (refresh_token, life_ms));
}

#[rstest]
#[case::refused(
    400,
    r#"{"error":"invalid_grant","error_description":"r-secret was used"}"#,
    NotIssued::Refused("invalid_grant")
)]
#[case::client(
    401,
    r#"{"error":"invalid_client"}"#,
    NotIssued::Refused("invalid_client")
)]
#[case::foreign_code(400, r#"{"error":"r-secret"}"#, NotIssued::Status(400))]
#[case::server(503, "busy", NotIssued::Status(503))]
#[case::redirect(302, "", NotIssued::Status(302))]
#[case::no_json(200, "<html>", NotIssued::NotUnderstood)]
#[case::no_token(200, r#"{"token_type":"bearer"}"#, NotIssued::NotUnderstood)]
#[case::empty_token(200, r#"{"access_token":""}"#, NotIssued::NotUnderstood)]
#[case::token_with_line_break(200, r#"{"access_token":"a\nb"}"#, NotIssued::NotUnderstood)]
#[case::other_type(
    200,
    r#"{"access_token":"a","token_type":"mac"}"#,
    NotIssued::NotUnderstood
)]
fn bad_answers(#[case] status: u16, #[case] body: &str, #[case] expected: NotIssued) {
    let status = StatusCode::from_u16(status).unwrap();
    let error = read(status, body.as_bytes()).unwrap_err();
    assert_eq!(error, expected);
    assert!(!format!("{error} {error:?} {}", error.cause()).contains("r-secret"));
}

#[test]
fn nothing_shows_a_token_when_printed() {
    let body = br#"{"access_token":"at-secret","refresh_token":"rt-secret"}"#;
    let shown = format!("{:?}", read(StatusCode::OK, body).unwrap());
    assert!(!shown.contains("-secret"), "{shown}");
}
