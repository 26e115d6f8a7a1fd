//! stub
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    PullRequest,
    Branch,
}
impl Kind {
    pub const fn word(self) -> &'static str {
        match self {
            Self::PullRequest => "pull_request",
            Self::Branch => "branch",
        }
    }
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
}
impl State {
    pub const fn word(self) -> &'static str {
        "open"
    }
}
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub kind: Kind,
    pub url: Option<String>,
    pub reference: Option<String>,
    pub title: Option<String>,
    pub state: Option<State>,
    pub key: String,
}
#[derive(Debug, Default)]
pub struct Accepted {
    pub deliveries: Vec<Delivery>,
    pub dropped: Vec<(usize, String)>,
}
pub fn accept(_: &serde_json::Value) -> Accepted {
    Accepted::default()
}
