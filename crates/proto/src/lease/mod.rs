//! The lease wire: what a machine and the fleet server say to each other over HTTP.
//!
//! Requests are read with [`Fields`], which names every field that is wrong; answers are serde types spelled
//! as on the wire. Headers, limits and the protocol's version are here too. Source: `fleet.md`, version 7.

mod answer;
mod fields;
mod request;

pub use answer::{
    Actor, Agent, Appended, Comment, Committer, DecisionMade, Envelope, ErrorBody, Issue,
    Registered, Repository, Resumed, Runtime, Skill, SkillFile, Status, StreamStatus, Waiting,
    Workspace, WorkspaceBrief,
};
pub use fields::{Faults, Fields};
pub use request::{
    ActorSent, Await, Claim, Complete, Fail, Heartbeat, Line, Messages, Register, Resume, Session,
    Usage,
};

/// The protocol's version, in every answer.
pub const PROTOCOL_VERSION: u32 = 7;
/// Which protocol a server speaks.
pub const PROTOCOL_HEADER: &str = "x-felagi-protocol-version";
/// A client's version.
pub const VERSION_HEADER: &str = "x-felagi-client-version";
/// `name/version` of a client that is not the reference daemon.
pub const CLIENT_HEADER: &str = "x-felagi-client";
/// What a client understands: words with commas between.
pub const CAPABILITIES_HEADER: &str = "x-felagi-client-capabilities";
/// The lease token, on every call about a task but `resume`.
pub const LEASE_HEADER: &str = "x-felagi-lease";

/// Lines in a messages request.
pub const LINES_MAX: usize = 200;
/// Bytes of a line's content; what is longer is cut with a mark.
pub const CONTENT_BYTES_MAX: usize = 64 * 1024;
/// What a cut line ends with.
pub const CUT_MARK: &str = "\n… (cut)";
/// Bytes of a messages request.
pub const MESSAGES_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of any other request.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Seconds a claim may wait for work.
pub const WAIT_SECONDS_MAX: u64 = 60;
