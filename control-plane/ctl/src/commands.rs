//! One file for each command.

pub(crate) mod apply;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod quota;
pub(crate) mod reset;
pub(crate) mod settings;
pub(crate) mod status;
