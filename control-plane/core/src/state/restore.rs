//! Placeholder, see the plan.
