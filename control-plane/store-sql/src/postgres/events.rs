//! Events in Postgres: the texts of the statements.

use sqlx::{PgConnection, Postgres};

use super::PgDurableStore;
use crate::rows::events::{EventPages, event_store};

/// A page of events. Each branch reads no more than the page along its index, of which there is one for each way to choose
/// transitions; a branch that is not asked for is not begun.
macro_rules! page_of {
    ($chosen:literal) => {
        concat!(
            "SELECT source, seq, at, body, author, action, summary, document_version FROM (
                 (SELECT 0::integer AS source, seq, at, body::text AS body, ''::text AS author, ''::text AS action,
                         ''::text AS summary, NULL::bigint AS document_version
                  FROM transitions
                  WHERE at >= $1 AND at <= $2 AND (at, 0::integer, seq) < ($2, $3, $4) AND ",
            $chosen,
            " AND ($8::integer IS NULL OR $8 = 0)
                  ORDER BY at DESC, seq DESC LIMIT $7)
                 UNION ALL
                 (SELECT 1::integer, seq, at, NULL::text, author, action, summary, document_version
                  FROM admin_audit
                  WHERE at >= $1 AND at <= $2 AND (at, 1::integer, seq) < ($2, $3, $4)
                    AND $5::text IS NULL AND $6::text IS NULL
                    AND ($8::integer IS NULL OR $8 = 1)
                  ORDER BY at DESC, seq DESC LIMIT $7)
             ) AS page
             ORDER BY at DESC, source DESC, seq DESC LIMIT $7"
        )
    };
}

const PAGES: EventPages = EventPages {
    of_all: page_of!("$5::text IS NULL AND $6::text IS NULL"),
    of_provider: page_of!("provider = $5 AND $6::text IS NULL"),
    of_connection: page_of!("connection = $6 AND $5::text IS NULL"),
    of_both: page_of!("connection = $6 AND provider = $5"),
};

const NEWS: &str = "SELECT source, seq, at, body, author, action, summary, document_version FROM (
             (SELECT 0::integer AS source, seq, at, body::text AS body, ''::text AS author, ''::text AS action,
                     ''::text AS summary, NULL::bigint AS document_version
              FROM transitions WHERE seq > $1 ORDER BY seq LIMIT $3)
             UNION ALL
             (SELECT 1::integer, seq, at, NULL::text, author, action, summary, document_version
              FROM admin_audit WHERE seq > $2 ORDER BY seq LIMIT $3)
         ) AS news
         ORDER BY source, seq";

event_store!(PgDurableStore, Postgres, PgConnection, pool, PAGES, NEWS);
