//! Leases hold (`sessions-and-streams.md` §1 and §7), through real processes: control planes, data planes, Postgres, Redis
//! and a fake upstream.

mod asleep;
mod check;
mod clients;
mod cooling;
mod draining;
mod history;
mod lifecycle;
mod losses;
mod placing;
mod proof;
mod races;
mod room;
mod schedule;
mod secrecy;
mod stage;
