//! What people administrate: workspaces, members, tokens, agents, skills, projects, issues. One file a noun.
//!
//! Each function is one transaction's work or one read. They check what the database could not (that things
//! belong to one workspace); who may call them is decided before.

pub(crate) mod agents;
pub(crate) mod issues;
pub(crate) mod tokens;
pub(crate) mod workspaces;
