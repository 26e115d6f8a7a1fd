//! placeholder

pub mod clock;
pub mod endpoint;
pub mod paths;
