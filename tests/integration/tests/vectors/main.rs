//! Vectors of `failure-state.md` §8 through real processes: two control planes, two data planes, Postgres, Redis and a
//! fake upstream. Each test has a fleet of its own.

mod breaker;
mod connection;
mod credential;
mod episode;
mod lockout;
mod races;
mod rules;
mod setting;
mod stage;
