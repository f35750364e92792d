//! What the databases' error codes mean for a caller. The one place that knows them; nothing compares texts.
//!
//! Postgres: appendix A of its manual. SQLite: primary result codes, the low byte of the extended ones.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

/// What an error says about the statement that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection is gone or cannot be trusted; what was sent last may have happened.
    Lost,
    /// Nothing happened and the database cannot serve now.
    Unavailable,
    /// Nothing happened: the database cut the statement off at its limit.
    Late,
    /// Nothing happened: another writer was in the way.
    Contended,
    /// A table, column or database is not there.
    Schema,
    /// The database says that its files are damaged, or holds what does not decode.
    Corrupt,
    /// Nothing happened: anything else.
    Refused,
}

/// The verdict on an error of the driver.
pub(crate) fn verdict(error: &sqlx::Error) -> Verdict {
    match error {
        sqlx::Error::Database(error) => of_database(error.as_ref()),
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => Verdict::Lost,
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Verdict::Unavailable,
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. } => Verdict::Corrupt,
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::TypeNotFound { .. } => Verdict::Schema,
        // Settings and arguments the driver does not take. The enum is open: what it may grow is unknown to us.
        _ => Verdict::Refused,
    }
}

fn of_database(error: &dyn DatabaseError) -> Verdict {
    let code = error.code();
    let code = code.as_deref().unwrap_or_default();
    if error.try_downcast_ref::<PgDatabaseError>().is_some() {
        of_postgres(code)
    } else {
        of_sqlite(code)
    }
}

fn of_postgres(code: &str) -> Verdict {
    match code {
        // The session ended under us: shutdown, crash, terminated by an operator, idle too long.
        "57P01" | "57P02" | "57P04" | "57P05" | "25P03" | "25P04" => Verdict::Lost,
        // Starting up or in recovery; a standby; no connection left.
        "57P03" | "25006" | "53300" => Verdict::Unavailable,
        // Statement time-out or cancelled by an operator.
        "57014" => Verdict::Late,
        // Serialization failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => Verdict::Contended,
        // A statement whose completion is unknown.
        "40003" => Verdict::Lost,
        // No such database, schema, table, column, function.
        "3D000" | "3F000" | "42P01" | "42703" | "42883" => Verdict::Schema,
        code => match code.get(..2) {
            Some("08") => Verdict::Lost,
            Some("XX") if code != "XX000" => Verdict::Corrupt,
            _ => Verdict::Refused,
        },
    }
}

fn of_sqlite(code: &str) -> Verdict {
    const PRIMARY: i32 = 0xff;
    match code.parse::<i32>().map(|code| code & PRIMARY) {
        // BUSY, LOCKED: another connection writes, and did so for longer than we wait.
        Ok(5 | 6) => Verdict::Contended,
        // IOERR: the disk failed; a commit may be half way.
        Ok(10) => Verdict::Lost,
        // CORRUPT, NOTADB.
        Ok(11 | 26) => Verdict::Corrupt,
        // CANTOPEN.
        Ok(14) => Verdict::Unavailable,
        // SCHEMA: it changed under a statement.
        Ok(17) => Verdict::Schema,
        _ => Verdict::Refused,
    }
}

/// Another writer was first, or in the way: the same work, begun anew, may go well.
pub(crate) fn is_lost_race(error: &sqlx::Error) -> bool {
    let unique = |error: &sqlx::Error| {
        error
            .as_database_error()
            .is_some_and(DatabaseError::is_unique_violation)
    };
    verdict(error) == Verdict::Contended || unique(error)
}

/// What the error says, without statement, values or address.
pub(crate) fn text(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => match error.code() {
            Some(code) => format!("{} ({code})", error.message()),
            None => error.message().to_owned(),
        },
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict, of_postgres, of_sqlite};

    #[test]
    fn postgres_codes_mean_what_a_caller_can_do_about_them() {
        let table = [
            ("08006", Verdict::Lost),
            ("57P01", Verdict::Lost),
            ("57P05", Verdict::Lost),
            ("40003", Verdict::Lost),
            ("57P03", Verdict::Unavailable),
            ("53300", Verdict::Unavailable),
            ("25006", Verdict::Unavailable),
            ("57014", Verdict::Late),
            ("40001", Verdict::Contended),
            ("40P01", Verdict::Contended),
            ("55P03", Verdict::Contended),
            ("42P01", Verdict::Schema),
            ("3D000", Verdict::Schema),
            ("XX001", Verdict::Corrupt),
            ("XX000", Verdict::Refused),
            ("23505", Verdict::Refused),
            ("53100", Verdict::Refused),
            ("28P01", Verdict::Refused),
            ("", Verdict::Refused),
            ("é", Verdict::Refused),
        ];
        for (code, expected) in table {
            assert_eq!(of_postgres(code), expected, "{code}");
        }
    }

    #[test]
    fn sqlite_codes_are_read_without_their_extension() {
        let table = [
            ("5", Verdict::Contended),
            ("517", Verdict::Contended),
            ("6", Verdict::Contended),
            ("1290", Verdict::Lost),
            ("11", Verdict::Corrupt),
            ("26", Verdict::Corrupt),
            ("14", Verdict::Unavailable),
            ("17", Verdict::Schema),
            ("13", Verdict::Refused),
            ("2067", Verdict::Refused),
            ("x", Verdict::Refused),
        ];
        for (code, expected) in table {
            assert_eq!(of_sqlite(code), expected, "{code}");
        }
    }
}
