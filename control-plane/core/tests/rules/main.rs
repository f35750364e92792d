//! The rules as tables: every vector of `failure-state.md` §8 that the first rules cover, and properties that
//! hold for any input.

#[cfg(test)]
mod breaker;
#[cfg(test)]
mod classify;
#[cfg(test)]
mod cooldown;
#[cfg(test)]
mod egress;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod hints;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod invariants;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod lockout;
#[cfg(test)]
mod model;
#[cfg(test)]
mod quotas;
#[cfg(test)]
mod refresh;
#[cfg(test)]
mod replays;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod world;
