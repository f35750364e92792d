//! Leases against a table that refuses what the indexes of a store refuse.

mod lifecycle;
mod placement;
mod table;
