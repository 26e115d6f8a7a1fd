//! What `Debug` shows of records: nothing that is a credential, and nothing that people or agents wrote.

use ostler_core::lease::{Call, LeaseHash};

use super::world;
use crate::Initialised;
use crate::store::plan::NewLease;
use crate::store::{Completion, Line, Payload, SessionReport, Stepped};

const SECRET: &str = "hunter2";

fn secret() -> String {
    SECRET.to_owned()
}

#[tokio::test]
async fn debug_shows_no_credential_and_no_body() {
    let dir = tempfile::tempdir().unwrap();
    let world = world::sqlite(dir.path()).await;
    let usual = world.usual(1).await;
    world.queue(usual.workspace, usual.issue, usual.agent).await;
    let claimed = world.claim(usual.machine.claim()).await.expect("a task");
    let shown = format!("{claimed:?}");
    assert!(shown.contains(&claimed.task.id) && !shown.contains(&claimed.lease_token), "{shown}");
    assert!(!shown.contains(&claimed.facts.title), "{shown}");
    let line = Line {
        seq: 1,
        kind: "tool_use".to_owned(),
        content: Some(secret()),
        tool: Some(secret()),
        payload: Some(secret()),
    };
    let completion = Completion {
        result: secret(),
        comment: Some(secret()),
        session: SessionReport::default(),
        usage: None,
        deliveries: Vec::new(),
    };
    let stepped = world.say(&world::run(&claimed), (Call::Start, Payload::None)).await.unwrap();
    let stepped = Stepped { lease_token: Some(secret()), ..stepped };
    let lease = NewLease { hash: LeaseHash([0; 32]), nonce: secret(), token: secret() };
    let made =
        Initialised { workspace: "acme".to_owned(), api_token: secret(), daemon_token: secret() };
    let lines = Payload::Lines(vec![line]);
    let completion = Payload::Completion(Box::new(completion));
    let shown = format!("{lines:?} {completion:?} {stepped:?} {lease:?} {made:?}");
    assert!(!shown.contains(SECRET), "{shown}");
    assert!(shown.contains("tool_use") && shown.contains("acme"), "{shown}");
}
