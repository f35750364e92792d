//! A fleet of two control planes and two data planes with real stores, real SDK clients and fake providers.

mod admission;
mod affinity;
mod bad_input;
mod duplicates;
mod egress;
mod failover;
mod gate;
mod leases;
mod lines;
mod loss;
mod monitoring;
mod mutual_tls;
mod operator;
mod permits;
mod plans;
mod quota_share;
mod quotas;
mod relay;
mod rotation;
mod rules;
mod sdk;
mod settings;
mod tokens;
mod traces;
mod usage;
mod waiting;
