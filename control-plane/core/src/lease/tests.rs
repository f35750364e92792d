//! Leases against a table that refuses what the indexes of a store refuse.

mod activity;
mod drain;
mod lifecycle;
mod placement;
mod presence;
mod properties;
mod table;
