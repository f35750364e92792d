//! The channel to the control plane: what is said on the command line or in the environment, else by the context.
//!
//! A context's token is only ever shown to the context's own address. A context that is named goes before a token that
//! happens to be in the environment, which goes before that of the current context.

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use tidegate_plane_client::endpoint::{
    self, Address, ChannelSettings, PlaneChannel, TlsSettings, parse_address,
};
use tidegate_proto::admin::v1::admin_service_client::AdminServiceClient;

use crate::cli::{ConnectionArguments, TlsArguments};
use crate::contexts::{Context, Contexts};
use crate::failure::Failure;

/// The token's variable, used when no file is named.
const TOKEN_VARIABLE: &str = "TIDEGATE_ADMIN_TOKEN";
/// Where a control plane is when nobody says so.
const DEFAULT_CONTROL_PLANE: &str = "http://127.0.0.1:7400";
/// Largest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// A client of the administration API with a time limit for each call.
#[derive(Debug)]
pub(crate) struct Client {
    admin: AdminServiceClient<PlaneChannel>,
    timeout: std::time::Duration,
    address: http::Uri,
    shows_certificate: bool,
}

impl Client {
    /// What is called.
    pub(crate) fn address(&self) -> &http::Uri {
        &self.address
    }

    /// It shows a certificate where it calls.
    pub(crate) fn shows_certificate(&self) -> bool {
        self.shows_certificate
    }

    /// A request with the time limit, and the service to send it with.
    pub(crate) fn call<T>(
        &mut self,
        message: T,
    ) -> (&mut AdminServiceClient<PlaneChannel>, tonic::Request<T>) {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.timeout);
        (&mut self.admin, request)
    }

    /// The service, for a call that goes on until somebody ends it, and how long its beginning may take.
    pub(crate) fn endless(
        &mut self,
    ) -> (&mut AdminServiceClient<PlaneChannel>, std::time::Duration) {
        (&mut self.admin, self.timeout)
    }
}

/// Prepares a client; the connection is made by the first call.
pub(crate) fn connect(arguments: ConnectionArguments) -> Result<Client, Failure> {
    let ConnectionArguments {
        context,
        control_plane,
        token_file,
        tls,
        timeout,
    } = arguments;
    tls.check()?;
    let contexts = Contexts::read(Contexts::path().as_deref())?;
    let is_named = context.is_some();
    let context = contexts.chosen(context.as_deref())?;
    let own = own_address(context)?;
    let control_plane = control_plane.unwrap_or_else(|| own.clone());
    let given = std::env::var(TOKEN_VARIABLE).ok();
    let given = given.filter(|token| !token.trim().is_empty());
    let is_own = control_plane == own;
    let token = match token_from(token_file, given, context, is_named, is_own) {
        TokenFrom::File(path) => Some(read(&path)?),
        TokenFrom::Variable(token) => Some(token),
        TokenFrom::Withheld(name) => {
            eprintln!(
                "note: the token of context {name} is for {own}, and is not shown to {control_plane}; use --token-file"
            );
            None
        }
        TokenFrom::Nowhere => None,
    };
    let token = token
        .map(|token| token.trim().to_owned())
        .filter(|token| !token.is_empty())
        .map(SecretString::from);
    let tls = match control_plane.scheme_str() {
        Some("https") => Some(tls_settings(tls.or_of(context)?)?),
        _ => None,
    };
    let settings = ChannelSettings {
        connect_timeout: timeout,
        ..ChannelSettings::default()
    };
    let address = Address::Tcp(control_plane.clone());
    let channel = endpoint::channel(&address, &settings, tls.as_ref(), token.as_ref())
        .map_err(|error| Failure::Input(error.to_string()))?;
    Ok(Client {
        admin: AdminServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
        timeout,
        address: control_plane,
        shows_certificate: tls.is_some_and(|tls| tls.identity.is_some()),
    })
}

impl TlsArguments {
    /// A certificate is of no use without its key, nor a key without its certificate.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match (&self.cert_file, &self.key_file) {
            (Some(_), None) => Err(Failure::Usage("--cert-file needs --key-file".to_owned())),
            (None, Some(_)) => Err(Failure::Usage("--key-file needs --cert-file".to_owned())),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }

    /// What was said, and of what was not the context's. Certificate and key go together.
    fn or_of(self, context: Option<&Context>) -> Result<Self, Failure> {
        let Some(context) = context else {
            return Ok(self);
        };
        let (cert_file, key_file) = match (self.cert_file, self.key_file) {
            (None, None) => (context.cert_file.clone(), context.key_file.clone()),
            said => said,
        };
        if cert_file.is_some() != key_file.is_some() {
            let name = &context.name;
            let message = format!("context {name} must have both certFile and keyFile, or neither");
            return Err(Failure::Input(message));
        }
        Ok(Self {
            ca_file: self.ca_file.or_else(|| context.ca_file.clone()),
            cert_file,
            key_file,
            tls_domain: self.tls_domain.or_else(|| context.tls_domain.clone()),
        })
    }
}

fn tls_settings(tls: TlsArguments) -> Result<TlsSettings, Failure> {
    let TlsArguments {
        ca_file,
        cert_file,
        key_file,
        tls_domain,
    } = tls;
    let ca_certificate = ca_file.map(|path| read(&path)).transpose()?;
    let identity = match (cert_file, key_file) {
        (Some(certificate), Some(key)) => Some((
            read(&certificate)?.into_bytes(),
            SecretString::from(read(&key)?),
        )),
        _ => None,
    };
    Ok(TlsSettings {
        ca_certificate: ca_certificate.map(String::into_bytes),
        identity,
        domain: tls_domain,
    })
}

/// Where the token comes from.
#[derive(Debug, PartialEq, Eq)]
enum TokenFrom {
    File(PathBuf),
    /// The variable, which holds this.
    Variable(String),
    /// There is one of this context, for another address.
    Withheld(String),
    Nowhere,
}

/// `is_named`: the context is not just the current one. `is_own`: it is the context's address that is called.
fn token_from(
    file: Option<PathBuf>,
    variable: Option<String>,
    context: Option<&Context>,
    is_named: bool,
    is_own: bool,
) -> TokenFrom {
    let of_context = context.and_then(|it| Some((&it.name, it.token_file.clone()?)));
    match (file, variable, of_context) {
        (Some(file), _, _) => TokenFrom::File(file),
        (None, _, Some((_, file))) if is_named && is_own => TokenFrom::File(file),
        (None, Some(token), _) => TokenFrom::Variable(token),
        (None, None, Some((_, file))) if is_own => TokenFrom::File(file),
        (None, None, Some((name, _))) => TokenFrom::Withheld(name.clone()),
        (None, None, None) => TokenFrom::Nowhere,
    }
}

/// The address of a context, or where a control plane is when nobody says so.
fn own_address(context: Option<&Context>) -> Result<http::Uri, Failure> {
    let address = context.and_then(|it| it.control_plane.as_deref());
    let address = address.unwrap_or(DEFAULT_CONTROL_PLANE);
    parse_address(address).map_err(|error| match context {
        Some(context) => Failure::Input(format!(
            "context {}: controlPlane {error}, is {address}",
            context.name
        )),
        None => Failure::Input(format!("{address} {error}")),
    })
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn file(path: &str) -> TokenFrom {
        TokenFrom::File(path.into())
    }

    #[rstest]
    // What is said, the variable, whether the context is named, and whether its own address is called.
    #[case::a_file_that_is_said_goes_first(Some("said"), Some("v"), true, true, file("said"))]
    #[case::then_a_context_that_is_named(None, Some("v"), true, true, file("kept"))]
    #[case::then_the_variable(None, Some("v"), false, true, TokenFrom::Variable("v".to_owned()))]
    #[case::then_the_current_context(None, None, false, true, file("kept"))]
    #[case::not_to_another_address(None, None, false, false, TokenFrom::Withheld("c".to_owned()))]
    #[case::nor_if_it_is_named(None, None, true, false, TokenFrom::Withheld("c".to_owned()))]
    #[case::there_the_variable_is(None, Some("v"), true, false, TokenFrom::Variable("v".to_owned()))]
    #[case::or_what_is_said(Some("said"), None, true, false, file("said"))]
    fn a_token_of_a_context_is_only_for_its_address(
        #[case] said: Option<&str>,
        #[case] variable: Option<&str>,
        #[case] is_named: bool,
        #[case] is_own: bool,
        #[case] expected: TokenFrom,
    ) {
        let context = Context {
            name: "c".to_owned(),
            control_plane: Some("http://a:1".to_owned()),
            token_file: Some("kept".into()),
            ..Context::default()
        };
        let variable = variable.map(str::to_owned);
        let from = |context: Option<&Context>| {
            let (said, variable) = (said.map(PathBuf::from), variable.clone());
            token_from(said, variable, context, is_named, is_own)
        };
        assert_eq!(from(Some(&context)), expected);
        let without = Context {
            token_file: None,
            ..context
        };
        assert_eq!(from(Some(&without)), from(None));
    }

    fn tls(files: [Option<&str>; 4]) -> TlsArguments {
        let [ca_file, cert_file, key_file, tls_domain] = files;
        TlsArguments {
            ca_file: ca_file.map(PathBuf::from),
            cert_file: cert_file.map(PathBuf::from),
            key_file: key_file.map(PathBuf::from),
            tls_domain: tls_domain.map(str::to_owned),
        }
    }

    #[rstest]
    #[case::nothing_said([None; 4], [Some("ca"), Some("c"), Some("k"), Some("d")])]
    #[case::members_one_by_one([Some("CA"), None, None, Some("D")], [Some("CA"), Some("c"), Some("k"), Some("D")])]
    #[case::a_certificate_with_its_key([None, Some("C"), Some("K"), None], [Some("ca"), Some("C"), Some("K"), Some("d")])]
    fn what_is_said_goes_before_the_context(
        #[case] said: [Option<&str>; 4],
        #[case] expected: [Option<&str>; 4],
    ) {
        let context = Context {
            name: "c".to_owned(),
            ca_file: Some("ca".into()),
            cert_file: Some("c".into()),
            key_file: Some("k".into()),
            tls_domain: Some("d".to_owned()),
            ..Context::default()
        };
        assert_eq!(tls(said).or_of(Some(&context)).unwrap(), tls(expected));
        assert_eq!(tls(said).or_of(None).unwrap(), tls(said));
    }

    #[test]
    fn half_an_identity_is_refused() {
        for said in [[None, Some("c"), None, None], [None, None, Some("k"), None]] {
            assert_eq!(tls(said).check().unwrap_err().exit_code(), 64);
        }
        let half = Context {
            cert_file: Some("c".into()),
            ..Context::default()
        };
        let refused = tls([None; 4]).or_of(Some(&half)).unwrap_err();
        assert_eq!(refused.exit_code(), 65);
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
        let context = |address: Option<&str>| Context {
            name: "c".to_owned(),
            control_plane: address.map(str::to_owned),
            ..Context::default()
        };
        let own = |address| own_address(Some(&context(address))).unwrap();
        let said = |address: &str| address.parse::<http::Uri>().unwrap();
        assert_eq!(own(Some("http://A:1")), said("http://a:1/"));
        assert_eq!(own(None), said(DEFAULT_CONTROL_PLANE));
        assert_ne!(own(Some("http://a:1")), said("https://a:1"));
        assert!(own_address(Some(&context(Some("not an address")))).is_err());
    }
}
