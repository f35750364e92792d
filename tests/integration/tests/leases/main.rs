//! Leases hold (`sessions-and-streams.md` §1 and §7), through real processes: control planes, data planes, Postgres, Redis
//! and a fake upstream.

mod check;
mod clients;
mod draining;
mod history;
mod lifecycle;
mod placing;
mod proof;
mod races;
mod schedule;
mod secrecy;
mod stage;
