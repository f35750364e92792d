use secrecy::{ExposeSecret as _, SecretString};
use tidegate_core::ids::{ComboName, ConnectionId};
use tidegate_core::routing::relay::{HandoffName, SessionDigest};
use tidegate_core::time::Timestamp;

use super::{KeyError, MAX_SECRET_BYTES, SealError, Sealer, SealingKey, TokenKind};
use crate::durable::SealedCredential;

const KEY_HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

fn sealer_of(key: &str) -> Sealer {
    Sealer::new(&SealingKey::parse(&SecretString::from(key)).unwrap()).unwrap()
}

fn sealer() -> Sealer {
    sealer_of(KEY_HEX)
}

fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name).unwrap()
}

fn seal(secret: &str) -> SealedCredential {
    sealer()
        .seal(&connection("openai-1"), 3, &SecretString::from(secret))
        .unwrap()
}

fn opened(credential: &SealedCredential) -> Result<String, SealError> {
    sealer()
        .open(credential)
        .map(|secret| secret.expose_secret().to_owned())
}

#[test]
fn secrets_come_back_as_they_were() {
    let longest = "x".repeat(MAX_SECRET_BYTES);
    for secret in ["k", "sk-abc123", "schlüssel 🔑", longest.as_str()] {
        assert_eq!(opened(&seal(secret)).as_deref(), Ok(secret));
    }
}

#[test]
fn empty_and_overlong_secrets_are_not_sealed() {
    for secret in [String::new(), "x".repeat(MAX_SECRET_BYTES + 1)] {
        let outcome = sealer().seal(&connection("c"), 1, &SecretString::from(secret));
        assert_eq!(outcome.map(drop), Err(SealError::Length));
    }
}

#[test]
fn the_same_secret_is_sealed_differently_each_time_with_one_fingerprint() {
    let (one, two) = (seal("sk-abc"), seal("sk-abc"));
    assert_ne!(one.sealed, two.sealed);
    assert_eq!(one.fingerprint, two.fingerprint);
}

#[test]
fn a_sealed_credential_holds_no_part_of_the_secret() {
    let secret = "sk-0123456789abcdef";
    let credential = seal(secret);
    for bytes in [&credential.sealed, &credential.fingerprint] {
        assert!(
            !bytes
                .windows(4)
                .any(|part| secret.as_bytes().windows(4).any(|s| s == part))
        );
    }
    assert!(!format!("{credential:?} {:?}", sealer()).contains("0123"));
}

#[test]
fn every_changed_byte_is_noticed_and_named() {
    let credential = seal("sk-abc");
    for index in 0..credential.sealed.len() {
        let mut changed = credential.clone();
        if let Some(byte) = changed.sealed.get_mut(index) {
            *byte ^= 1;
        }
        let expected = match index {
            0 => SealError::Form,
            1..=8 => SealError::WrongKey,
            _ => SealError::Changed,
        };
        assert_eq!(opened(&changed), Err(expected), "byte {index}");
    }
}

#[test]
fn every_shortened_text_is_noticed() {
    let credential = seal("sk-abc");
    for length in 0..credential.sealed.len() {
        let mut cut = credential.clone();
        cut.sealed.truncate(length);
        let error = opened(&cut).unwrap_err();
        assert!(
            matches!(error, SealError::Form | SealError::Changed),
            "{length} bytes: {error}"
        );
    }
}

#[test]
fn a_text_that_grew_is_noticed() {
    let mut credential = seal("sk-abc");
    credential.sealed.push(0);
    assert_eq!(opened(&credential), Err(SealError::Changed));
}

#[test]
fn a_row_moved_to_another_connection_or_version_does_not_open() {
    let credential = seal("sk-abc");
    let moved = SealedCredential {
        connection: connection("openai-2"),
        ..credential.clone()
    };
    assert_eq!(opened(&moved), Err(SealError::Changed));
    let replayed = SealedCredential {
        version: 4,
        ..credential
    };
    assert_eq!(opened(&replayed), Err(SealError::Changed));
}

#[test]
fn another_key_is_told_from_a_changed_text() {
    let other = sealer_of(&KEY_HEX.replace("1f", "2f"));
    let credential = seal("sk-abc");
    assert_eq!(other.open(&credential).map(drop), Err(SealError::WrongKey));
    let secret = SecretString::from("sk-abc");
    assert_ne!(
        other.fingerprint(&credential.connection, &secret),
        credential.fingerprint
    );
}

#[test]
fn fingerprints_differ_between_secrets_and_between_connections() {
    let print = |name: &str, secret: &str| {
        sealer().fingerprint(&connection(name), &SecretString::from(secret))
    };
    assert_eq!(print("a", "bc"), print("a", "bc"));
    assert_ne!(print("a", "bc"), print("a", "bd"));
    assert_ne!(print("a", "bc"), print("b", "bc"));
    assert_ne!(print("a", "bc"), print("ab", "c"));
}

#[test]
fn what_an_earlier_build_sealed_still_opens() {
    let credential = SealedCredential {
        connection: connection("openai-1"),
        version: 3,
        sealed: hex::decode(concat!(
            "0126a25b8f9a2f6a7e6465666768696a6b6c6d6e6fe",
            "fb4c26a8051bc67491ae072e45d2f28b948f9c7a6ce"
        ))
        .unwrap(),
        fingerprint: hex::decode(
            "7280268a68b975eb57e28da8467200235ab9f943bf6963353ebf4c3cbaa259c5",
        )
        .unwrap(),
        applied_version: 3,
    };
    assert_eq!(opened(&credential).as_deref(), Ok("sk-abc"));
    assert_eq!(seal("sk-abc").fingerprint, credential.fingerprint);
}

#[test]
fn keys_are_read_in_every_usual_form() {
    let forms = [
        KEY_HEX.to_owned(),
        KEY_HEX.to_uppercase(),
        format!("  {KEY_HEX}\n"),
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=".to_owned(),
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8".to_owned(),
    ];
    let credential = seal("sk-abc");
    for form in forms {
        assert!(sealer_of(&form).open(&credential).is_ok(), "{form:?}");
    }
    let standard = sealer_of(&format!("{}+/8=", "+/+/".repeat(10)));
    let url_safe = sealer_of(&format!("{}-_8", "-_-_".repeat(10)));
    let secret = SecretString::from("k");
    let credential = standard.seal(&connection("c"), 1, &secret).unwrap();
    assert!(url_safe.open(&credential).is_ok());
}

#[test]
fn what_is_no_key_is_refused_without_being_repeated() {
    let table = [
        ("", KeyError::Length { found: 0 }),
        ("hunter2", KeyError::Length { found: 7 }),
        (&KEY_HEX.replace("1f", "1g"), KeyError::Characters),
        (&"!".repeat(44), KeyError::Characters),
        (&"A".repeat(44), KeyError::Characters),
        (&"é".repeat(22), KeyError::Characters),
        (&"é".repeat(32), KeyError::Characters),
        (&"0".repeat(64), KeyError::Placeholder),
        (&"A".repeat(43), KeyError::Placeholder),
    ];
    for (text, expected) in table {
        let error = SealingKey::parse(&SecretString::from(text)).unwrap_err();
        assert_eq!(error, expected, "{text:?}");
        assert!(text.is_empty() || !error.to_string().contains(text));
    }
}

#[test]
fn a_key_shows_nothing_of_itself() {
    let key = SealingKey::parse(&SecretString::from(KEY_HEX)).unwrap();
    assert_eq!(format!("{key:?}"), "SealingKey(..)");
}

#[test]
fn a_token_opens_only_as_what_it_was_sealed_as() {
    let secret = SecretString::from("rt-abc");
    let owner = connection("openai-1");
    let sealed = sealer()
        .seal_token(TokenKind::RefreshToken, &owner, 3, &secret)
        .unwrap();
    let open = |kind, owner: &ConnectionId| {
        let opened = sealer().open_token(kind, owner, &sealed);
        opened.map(|secret| secret.expose_secret().to_owned())
    };
    assert_eq!(
        open(TokenKind::RefreshToken, &owner).as_deref(),
        Ok("rt-abc")
    );
    let other = connection("openai-2");
    assert_eq!(
        open(TokenKind::RefreshToken, &other),
        Err(SealError::Changed)
    );
    assert_eq!(
        open(TokenKind::ClientSecret, &owner),
        Err(SealError::Changed)
    );
    let as_credential = SealedCredential {
        connection: owner.clone(),
        version: 3,
        sealed: sealed.sealed.clone(),
        fingerprint: Vec::new(),
        applied_version: 3,
    };
    assert_eq!(opened(&as_credential), Err(SealError::Changed));
    let fingerprints = [
        sealed.fingerprint.clone(),
        sealer().fingerprint_of_token(TokenKind::ClientSecret, &owner, &secret),
        sealer().fingerprint(&owner, &secret),
    ];
    assert!(fingerprints[0] != fingerprints[1] && fingerprints[1] != fingerprints[2]);
    assert!(!format!("{sealed:?}").contains("sealed:"));
}

#[test]
fn a_note_opens_only_where_it_was_put() {
    let name = HandoffName {
        session: SessionDigest([7; 32]),
        combo: ComboName::new("talk").unwrap(),
    };
    let note = SecretString::from("what was said");
    let end = Timestamp(1_800_000_000_000);
    let sealed = sealer()
        .seal_handoff(name, connection("c"), end, &note)
        .unwrap();
    let opened = sealer().open_handoff(&sealed).unwrap();
    assert_eq!(opened.expose_secret(), "what was said");
    assert!(!sealed.sealed.windows(8).any(|bytes| bytes == b"what was"));
    let mut elsewhere = [(); 4].map(|()| sealed.clone());
    elsewhere[0].name.session = SessionDigest([8; 32]);
    elsewhere[1].name.combo = ComboName::new("walk").unwrap();
    elsewhere[2].connection = connection("d");
    elsewhere[3].expires_at = end.plus_ms(1);
    for moved in elsewhere {
        let outcome = sealer().open_handoff(&moved).map(drop);
        assert_eq!(outcome, Err(SealError::Changed));
    }
    let other = sealer_of(&KEY_HEX.replace("1f", "2f"))
        .open_handoff(&sealed)
        .map(drop);
    assert_eq!(other, Err(SealError::WrongKey));
}
