//! One file for each command.

pub(crate) mod apply;
pub(crate) mod ban;
pub(crate) mod context;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod lease;
pub(crate) mod permit;
pub(crate) mod quota;
pub(crate) mod reset;
pub(crate) mod settings;
pub(crate) mod status;
pub(crate) mod watch;
