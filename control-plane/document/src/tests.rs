use super::*;

struct Fixed;

impl Secrets for Fixed {
    fn variable(&self, name: &str) -> Option<String> {
        (name == "KEY").then(|| " sk-secret \n".to_owned())
    }

    fn file(&self, path: &Path) -> Result<String, String> {
        if path == Path::new("/etc/tidegate/key.txt") {
            Ok("from-file".to_owned())
        } else {
            Err("no such file".to_owned())
        }
    }
}

const FILE: &str = "
providers:
  - id: openai
    protocol: openai
    baseUrl: https://example.test/v1
connections:
  - id: main
    provider: openai
    credential: {env: KEY}
  - id: second
    provider: openai
    credential: {file: key.txt}
combos:
  - name: smart
    steps:
      - openai/gpt-4o
      - {model: openai/gpt-4o-mini, connection: second}
keys:
  - id: team
    secret: {env: KEY}
settings:
  modelLockout: {enabled: true}
";

fn loaded(text: &str) -> Result<Loaded, String> {
    let document = parse(text).map_err(|error| error.to_string())?;
    resolve(document, Path::new("/etc/tidegate"), &Fixed)
        .map_err(|violations| DocumentError::Secrets(violations).to_string())
}

#[test]
fn secrets_are_resolved_and_of_keys_only_the_hash_goes_on() {
    let loaded = loaded(FILE).unwrap();
    let secrets: Vec<_> = loaded
        .credentials
        .iter()
        .map(|(connection, secret)| (connection.as_str(), secret.expose_secret()))
        .collect();
    assert_eq!(secrets, [("main", "sk-secret"), ("second", "from-file")]);
    let key = &loaded.document.keys[0];
    assert_eq!(key.secret, None);
    assert_eq!(
        key.sha256.as_deref(),
        Some("746b4ad1ca9129e1caf080bf9406d43531b8bbf97f42cc1597ee4f3d4663938e")
    );
    assert!(
        loaded
            .document
            .settings
            .strict()
            .unwrap()
            .model_lockout
            .enabled
    );
}

#[test]
fn what_is_wrong_is_named_with_its_place_and_without_secrets() {
    for (text, expected) in [
        ("providerz: []", "providerz"),
        ("providers: 3", "line 1"),
        ("settings: {modelLockout: {enabeld: true}}", "enabeld"),
        (
            "settings: {modelLockout: {enabled: 1}}",
            "settings.modelLockout.enabled: must be true or false, is 1",
        ),
        (
            "settings: {modelLockout: {enabled: true, enabled: false}}",
            "duplicate",
        ),
        ("settings: {}\nsettings: {}", "duplicate"),
        (
            "connections: [{id: a, provider: p, credential: {env: NONE}}]",
            "NONE is not set",
        ),
        (
            "connections: [{id: a, provider: p, credential: {file: x}}]",
            "the file x: no such file",
        ),
        (
            "connections: [{id: a, provider: p, credential: {vault: x}}]",
            "expected {env: NAME}",
        ),
        (
            "connections: [{id: 'a b', provider: p}]",
            "a name must not contain ' '",
        ),
        (
            "keys: [{id: k, secret: {env: KEY}, sha256: ab}]",
            "not both",
        ),
        ("combos: [{name: c, strategy: magic, steps: []}]", "magic"),
        (
            "connections: [{id: a, provider: p, credential: sk-secret}]",
            "not the secret itself",
        ),
        // YAML reads it as true.
        (
            "combos: [{name: c, steps: [{combo: y}]}]",
            "combo must be a text; write it in quotes",
        ),
        (
            "combos: [{name: c, steps: [{model: 12}]}]",
            "model must be a text; write it in quotes",
        ),
        ("\u{1}", "unexpected character"),
    ] {
        let error = loaded(text).unwrap_err();
        assert!(
            error.to_lowercase().contains(&expected.to_lowercase()),
            "{text}: {error}"
        );
        assert!(!error.contains("sk-secret"), "{error}");
    }
}

#[test]
fn an_empty_file_is_an_empty_document() {
    assert_eq!(parse(" \n").unwrap(), Document::default());
}

#[test]
fn a_bomb_of_aliases_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let alias = format!("*a{}", level - 1);
        let list = [alias.as_str(); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
    }
    assert!(matches!(parse(&text), Err(DocumentError::Syntax(_))));
}

#[test]
fn a_missing_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(&folder.path().join("none.yaml"), &Machine).unwrap_err();
    assert!(error.to_string().contains("none.yaml"));
}
