//! What a control plane listens on, and who may call there.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::Stream;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::ServerTlsConfig;
use tonic::transport::server::{Connected, TcpIncoming};

use crate::grpc::server::{Offered, routes, server, show_health};
use crate::listener::{self, Listening};
use crate::rest::{ApiTls, respond};
use crate::telemetry;

use super::{Background, ControlPlane};

/// Who may call. Without a token a service is open to everybody who reaches it.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Of data planes.
    pub data_plane: Option<SecretString>,
    /// Of operators: they may do everything that administration can. API keys with the scope `manage` may as well.
    pub admin: Option<SecretString>,
    /// Of those who may look at everything that administration shows, and change nothing. API keys with the scope
    /// `manage:read` may as well. With this one alone, administration is not open either.
    pub reader: Option<SecretString>,
}

/// Why a listener is not served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Anybody on the network could call.
    #[error(
        "{address} is not a loopback address, and {missing} is not set: plain access without a token is for loopback only"
    )]
    OpenToNetwork {
        /// The address.
        address: SocketAddr,
        /// What would have to be set.
        missing: &'static str,
    },
    /// One token stands for several kinds of callers.
    #[error(transparent)]
    SharedToken(#[from] SharedToken),
    /// The certificate or key is not usable.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[source] tonic::transport::Error),
    /// The listener has no address.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// One token stands for several kinds of callers, so that who has it for one may do what the other may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{one} and {other} are the same: whoever has it for one could do what it is for as the other"
)]
pub struct SharedToken {
    /// One.
    pub one: &'static str,
    /// The other.
    pub other: &'static str,
}

/// Why serving ended before it was told to.
#[derive(Debug, thiserror::Error)]
#[error("serving ended: {0}")]
pub struct ServeError(#[from] tonic::transport::Error);

impl ControlPlane {
    /// All gRPC services, guarded by the tokens, with health and reflection. For a server of one's own.
    #[must_use]
    pub fn routes(&self) -> Routes {
        self.routes_of(Offered::Everything)
    }

    fn routes_of(&self, offered: Offered) -> Routes {
        let (routes, reporter) = routes(&self.services, &self.access, offered);
        let readiness = self.readiness.clone();
        let health = show_health(reporter, offered, move || readiness.is_ready());
        let Background { tasks, stop } = &self.background;
        tasks.spawn(stop.clone().run_until_cancelled_owned(health));
        routes
    }

    /// Serves gRPC over any stream of connections, until [`ControlPlane::shutdown`].
    ///
    /// # Errors
    /// [`ServeError`] when the stream of connections cannot be served.
    pub fn serve<I, IO, E>(
        &self,
        incoming: I,
    ) -> impl Future<Output = Result<(), ServeError>> + use<I, IO, E>
    where
        I: Stream<Item = Result<IO, E>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
    {
        let router = server().add_routes(self.routes());
        let drain = self.readiness.drain.clone();
        async move {
            Ok(router
                .serve_with_incoming_shutdown(incoming, drain.cancelled_owned())
                .await?)
        }
    }

    /// Serves gRPC on a TCP listener, until [`ControlPlane::shutdown`].
    ///
    /// Data planes get the credentials of all connections here. On loopback no token is needed, so that without one
    /// every local user can get them; that is logged.
    ///
    /// # Errors
    /// [`ListenError`] when access would be open to the network, or TLS cannot be set up.
    pub fn serve_tcp(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        let address = listener.local_addr()?;
        self.tokens.allow(address)?;
        if self.tokens.data_plane.is_none() {
            tracing::warn!(
                %address,
                "the token of data planes is not set: every local user can read the credentials of all connections here"
            );
        }
        self.serve_listener(listener, tls, Offered::Everything)
    }

    /// Serves operators only on a TCP listener, until [`ControlPlane::shutdown`]: administration, health and
    /// reflection. For a process that has its data plane inside it, so that no credential leaves it.
    ///
    /// # Errors
    /// [`ListenError`] when access would be open to the network, or TLS cannot be set up.
    pub fn serve_admin_tcp(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        self.tokens.allow_operators(listener.local_addr()?)?;
        self.serve_listener(listener, tls, Offered::Administration)
    }

    fn serve_listener(
        &self,
        listener: TcpListener,
        tls: Option<ServerTlsConfig>,
        offered: Offered,
    ) -> Result<impl Future<Output = Result<(), ServeError>> + use<>, ListenError> {
        let mut server = server();
        if let Some(tls) = tls {
            server = server.tls_config(tls).map_err(ListenError::Tls)?;
        }
        let router = server.add_routes(self.routes_of(offered));
        let drain = self.readiness.drain.clone();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Ok(async move {
            Ok(router
                .serve_with_incoming_shutdown(incoming, drain.cancelled_owned())
                .await?)
        })
    }

    /// Serves the contract's management endpoints over HTTP until [`ControlPlane::shutdown`] (`sessions-and-streams.md` §5.4).
    /// Nobody gets more there than one word who does not show who they are, wherever it listens.
    pub fn serve_api(
        &self,
        listener: TcpListener,
        tls: Option<ApiTls>,
    ) -> impl Future<Output = ()> + use<> {
        let listening = Listening {
            name: "api",
            tls: tls.map(|tls| tls.0),
            tasks: self.serving.clone(),
            stop: self.readiness.drain.clone(),
        };
        let rest = self.services.rest.clone();
        listener::serve(listener, listening, move |request| {
            respond(rest.clone(), request)
        })
    }

    /// Serves `/livez`, `/readyz` and `/metrics` until [`ControlPlane::shutdown`] is done.
    pub fn serve_telemetry(&self, listener: TcpListener) -> impl Future<Output = ()> + use<> {
        let readiness = self.readiness.clone();
        let is_ready = Arc::new(move || readiness.is_ready());
        telemetry::http::serve(
            listener,
            Arc::clone(&self.services.metrics),
            is_ready,
            self.background.tasks.clone(),
            self.background.stop.clone(),
        )
    }
}

impl Tokens {
    /// Each kind of callers has a token of its own.
    ///
    /// # Errors
    /// [`SharedToken`]: two that are the same.
    pub fn check(&self) -> Result<(), SharedToken> {
        let pairs = [
            (
                "the token of data planes",
                &self.data_plane,
                "the token of operators",
                &self.admin,
            ),
            (
                "the token of data planes",
                &self.data_plane,
                "the token of readers",
                &self.reader,
            ),
            (
                "the token of operators",
                &self.admin,
                "the token of readers",
                &self.reader,
            ),
        ];
        for (one, a, other, b) in pairs {
            if let (Some(a), Some(b)) = (a, b)
                && a.expose_secret() == b.expose_secret()
            {
                return Err(SharedToken { one, other });
            }
        }
        Ok(())
    }

    /// Whether a listener for operators only may be served with these.
    fn allow_operators(&self, address: SocketAddr) -> Result<(), ListenError> {
        self.check()?;
        if self.admin.is_some() || address.ip().is_loopback() {
            return Ok(());
        }
        let missing = "the token of operators";
        Err(ListenError::OpenToNetwork { address, missing })
    }

    /// Whether a listener may be served with these.
    fn allow(&self, address: SocketAddr) -> Result<(), ListenError> {
        self.check()?;
        let missing = match (&self.data_plane, &self.admin) {
            (Some(_), Some(_)) => return Ok(()),
            (None, _) => "the token of data planes",
            (Some(_), None) => "the token of operators",
        };
        if address.ip().is_loopback() {
            return Ok(());
        }
        Err(ListenError::OpenToNetwork { address, missing })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::each_its_own(["p", "a", "r"], None)]
    #[case::data_planes_and_operators(["x", "x", "r"], Some(("data planes", "operators")))]
    #[case::data_planes_and_readers(["x", "a", "x"], Some(("data planes", "readers")))]
    #[case::operators_and_readers(["p", "x", "x"], Some(("operators", "readers")))]
    fn each_kind_of_callers_has_a_token_of_its_own(
        #[case] tokens: [&str; 3],
        #[case] shared: Option<(&str, &str)>,
    ) {
        let [data_plane, admin, reader] = tokens;
        let tokens = Tokens {
            data_plane: Some(data_plane.into()),
            admin: Some(admin.into()),
            reader: Some(reader.into()),
        };
        let loopback = SocketAddr::from(([127, 0, 0, 1], 1));
        match (tokens.check(), shared) {
            (Ok(()), None) => assert!(tokens.allow(loopback).is_ok()),
            (Err(error), Some((one, other))) => {
                assert!(error.one.ends_with(one) && error.other.ends_with(other));
                assert!(tokens.allow(loopback).is_err());
                assert!(tokens.allow_operators(loopback).is_err());
            }
            unexpected => panic!("{unexpected:?}"),
        }
        assert_eq!(Tokens::default().check(), Ok(()));
    }
}
