//! Events in SQLite: the texts of the statements.

use sqlx::{Sqlite, SqliteConnection};

use super::SqliteDurableStore;
use crate::rows::events::{EventPages, event_store};

/// A page of events. Each branch reads no more than the page along its index, of which there is one for each way to choose
/// transitions; a branch that is not asked for is not begun.
macro_rules! page_of {
    ($chosen:literal) => {
        concat!(
            "SELECT source, seq, at, body, author, action, summary, document_version FROM (
                 SELECT * FROM (SELECT 0 AS source, seq, at, body AS body, '' AS author, '' AS action,
                         '' AS summary, NULL AS document_version
                  FROM transitions
                  WHERE at >= ?1 AND at <= ?2 AND (at, 0, seq) < (?2, ?3, ?4) AND ",
            $chosen,
            " AND (?8 IS NULL OR ?8 = 0)
                  ORDER BY at DESC, seq DESC LIMIT ?7)
                 UNION ALL
                 SELECT * FROM (SELECT 1, seq, at, NULL, author, action, summary, document_version
                  FROM admin_audit
                  WHERE at >= ?1 AND at <= ?2 AND (at, 1, seq) < (?2, ?3, ?4)
                    AND ?5 IS NULL AND ?6 IS NULL
                    AND (?8 IS NULL OR ?8 = 1)
                  ORDER BY at DESC, seq DESC LIMIT ?7)
             ) AS page
             ORDER BY at DESC, source DESC, seq DESC LIMIT ?7"
        )
    };
}

const PAGES: EventPages = EventPages {
    of_all: page_of!("?5 IS NULL AND ?6 IS NULL"),
    of_provider: page_of!("provider = ?5 AND ?6 IS NULL"),
    of_connection: page_of!("connection = ?6 AND ?5 IS NULL"),
    of_both: page_of!("connection = ?6 AND provider = ?5"),
};

const NEWS: &str = "SELECT source, seq, at, body, author, action, summary, document_version FROM (
             SELECT * FROM (SELECT 0 AS source, seq, at, body AS body, '' AS author, '' AS action,
                     '' AS summary, NULL AS document_version
              FROM transitions WHERE seq > ?1 ORDER BY seq LIMIT ?3)
             UNION ALL
             SELECT * FROM (SELECT 1, seq, at, NULL, author, action, summary, document_version
              FROM admin_audit WHERE seq > ?2 ORDER BY seq LIMIT ?3)
         ) AS news
         ORDER BY source, seq";

event_store!(
    SqliteDurableStore,
    Sqlite,
    SqliteConnection,
    readers,
    PAGES,
    NEWS
);
