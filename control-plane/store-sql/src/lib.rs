//! Postgres and SQLite adapters of the durable store.
//!
//! **Stance:** as the port says (`tidegate_store::durable`): a write that is not certainly committed is an
//! error, and every call ends within its limit ([`SqlLimits`]). **Staleness:** none, every read asks the
//! database. **Repair:** a connection on which anything went wrong is closed, not used again; the next call
//! opens another.
//!
//! | module | what |
//! |---|---|
//! | [`postgres`], [`sqlite`] | the adapters, one file per trait |
//! | `call` | one call: connection, limit, and what is known when it fails |
//! | `sqlstate` | the one table from the databases' codes to what they mean for a caller |
//! | `number` | how unsigned numbers fit into signed columns |
//! | `schema` | migrations |

mod call;
mod limits;
mod number;
pub mod postgres;
mod rows;
mod schema;
pub mod sqlite;
mod sqlstate;

pub use limits::SqlLimits;
pub use postgres::PgDurableStore;
pub use schema::newest_schema;
pub use sqlite::SqliteDurableStore;
