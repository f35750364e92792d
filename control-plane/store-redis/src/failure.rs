//! What an error of the client means for a call, and for the connection it came over.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_store::hot::HotStoreError;

/// Error replies of a server that is there but cannot take the call now.
const NOT_NOW: [&str; 4] = ["OOM", "MISCONF", "NOREPLICAS", "BUSY"];

/// What the caller is told.
pub(crate) fn told(error: &RedisError) -> HotStoreError {
    if error.is_timeout() {
        return HotStoreError::Timeout;
    }
    let away = match error.kind() {
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => false,
        ErrorKind::Server(kind) => !matches!(
            kind,
            ServerErrorKind::ResponseError
                | ServerErrorKind::ExecAbort
                | ServerErrorKind::CrossSlot
        ),
        ErrorKind::Extension => error.code().is_some_and(|code| NOT_NOW.contains(&code)),
        _ => true,
    };
    if away {
        HotStoreError::Unreachable(error.to_string())
    } else {
        HotStoreError::Protocol(error.to_string())
    }
}

/// Whether the connection is of no more use. A server that became a replica is one that must be looked up anew.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    if error.is_timeout() {
        return false;
    }
    error.is_io_error()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(kind: std::io::ErrorKind) -> RedisError {
        std::io::Error::from(kind).into()
    }

    fn server(kind: ServerErrorKind) -> RedisError {
        (ErrorKind::Server(kind), "said by the server").into()
    }

    #[test]
    fn a_missing_answer_is_a_time_out_and_does_not_end_the_connection_by_itself() {
        let error = io(std::io::ErrorKind::TimedOut);
        assert!(matches!(told(&error), HotStoreError::Timeout));
        assert!(!ends_connection(&error));
    }

    #[test]
    fn a_broken_connection_is_unreachable_and_ends() {
        for kind in [
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::ConnectionRefused,
            std::io::ErrorKind::UnexpectedEof,
        ] {
            let error = io(kind);
            assert!(
                matches!(told(&error), HotStoreError::Unreachable(_)),
                "{kind}"
            );
            assert!(ends_connection(&error), "{kind}");
        }
    }

    #[test]
    fn a_server_that_cannot_write_is_unreachable() {
        for kind in [
            ServerErrorKind::BusyLoading,
            ServerErrorKind::ClusterDown,
            ServerErrorKind::MasterDown,
            ServerErrorKind::ReadOnly,
            ServerErrorKind::NoPerm,
        ] {
            let error = server(kind);
            assert!(
                matches!(told(&error), HotStoreError::Unreachable(_)),
                "{kind:?}"
            );
            assert_eq!(ends_connection(&error), kind == ServerErrorKind::ReadOnly);
        }
        let full = redis::make_extension_error("OOM".to_owned(), Some("not allowed".to_owned()));
        assert!(matches!(told(&full), HotStoreError::Unreachable(_)));
    }

    #[test]
    fn what_is_not_understood_is_a_protocol_error() {
        let error = server(ServerErrorKind::ResponseError);
        assert!(matches!(told(&error), HotStoreError::Protocol(_)));
        let other = redis::make_extension_error("WRONGTYPE".to_owned(), None);
        assert!(matches!(told(&other), HotStoreError::Protocol(_)));
    }
}
