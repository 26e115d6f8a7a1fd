//! Machines and their runtimes: register, heartbeat, offline (F-018 to F-025, F-034).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Machine, Patience, World};

fn ids(registered: &Value) -> Vec<(String, String)> {
    let runtimes = registered["runtimes"].as_array().unwrap();
    let mut ids: Vec<_> = runtimes
        .iter()
        .map(|it| {
            (it["provider"].as_str().unwrap().to_owned(), it["id"].as_str().unwrap().to_owned())
        })
        .collect();
    ids.sort();
    ids
}

/// Waits until the runtimes of the machine are shown so.
async fn until_shown(world: &World, machine: &Machine, status: &str) {
    let patience = Patience::new();
    loop {
        let runtimes = world.get("/runtimes").await;
        let mut own =
            runtimes.as_array().unwrap().iter().filter(|it| it["daemon_id"] == *machine.daemon);
        if own.all(|it| it["status"] == status) {
            return;
        }
        patience.wait(status).await;
    }
}

on_both! {
    async fn f_018_register_answers_201_with_the_workspace_and_a_runtime_for_each_provider(world) {
        let answer = world.machine("m-1").register(&["claude_code", "codex"]).await;
        assert_eq!(answer["workspace"]["slug"], "acme", "{answer}");
        let runtimes = answer["runtimes"].as_array().unwrap();
        let providers: BTreeSet<_> =
            runtimes.iter().map(|it| it["provider"].as_str().unwrap()).collect();
        assert_eq!((runtimes.len(), providers), (2, BTreeSet::from(["claude_code", "codex"])));
        for runtime in runtimes {
            assert_eq!(runtime["status"], "online", "{runtime}");
            let id = runtime["id"].as_str().unwrap();
            assert!(id.len() == 26 && id.starts_with("01") && *id == id.to_lowercase(), "{id}");
        }
        world.stop().await;
    }

    async fn f_019_f_020_registering_again_gives_the_same_runtimes_also_at_once_and_by_a_new_token(world) {
        let machine = world.machine("5f2c0000-0000-4000-8000-000000000001");
        // Also the first time is many at once.
        let at_once = (0..16).map(|_| {
            let machine = machine.clone();
            tokio::spawn(async move { machine.register(&["claude_code", "codex"]).await })
        });
        let mut seen = BTreeSet::new();
        for answer in at_once.collect::<Vec<_>>() {
            seen.insert(ids(&answer.await.unwrap()));
        }
        let mut renewed = machine.clone();
        renewed.token = world.new_token(Some(90)).await.1;
        for _ in 0..3 {
            seen.insert(ids(&renewed.register(&["codex", "claude_code"]).await));
        }
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(world.get("/runtimes").await.as_array().unwrap().len(), 2);
        // A provider that is sent twice is one.
        let twice = machine.register(&["codex", "codex"]).await;
        assert_eq!(twice["runtimes"].as_array().unwrap().len(), 1, "{twice}");
        assert_eq!(world.get("/runtimes").await.as_array().unwrap().len(), 2);
        world.stop().await;
    }

    async fn f_021_the_same_id_in_another_workspace_is_another_machine(world) {
        let machine = world.registered("m-1").await;
        let (people, token) = world.other("other").await;
        let stranger = Machine { token, ..machine.clone() };
        assert_eq!(stranger.beat().await.status, 410);
        assert_eq!(stranger.ask().await.status, 410);
        let own = ids(&machine.register(&["claude_code"]).await);
        let answer = stranger.register(&["claude_code"]).await;
        assert_eq!(answer["workspace"]["slug"], "other");
        assert_ne!(ids(&answer), own);
        let agent = world.agent("Freya").await;
        world.issue("Ours", agent).await;
        assert_eq!(stranger.ask().await.status, 204);
        let (_, theirs) = world.api_as(&people, "GET", "/runtimes", None).await;
        assert_eq!(theirs["data"].as_array().unwrap().len(), 1, "{theirs}");
        machine.claim().await;
        world.stop().await;
    }

    async fn f_022_name_version_and_capabilities_of_the_last_registration_are_shown(world) {
        let machine = world.registered("m-1").await;
        let body = json!({ "daemon_id": "m-1", "name": "kh-macbook", "version": "0.4.1",
            "providers": ["claude_code"], "capabilities": { "os": "darwin", "arch": "arm64" } });
        let id = machine.post("register", None, body).await.expect(201)["runtimes"][0]["id"].take();
        let shown = world.get(&format!("/runtimes/{}", id.as_str().unwrap())).await;
        assert_eq!(
            (&shown["name"], &shown["version"], &shown["daemon_id"], &shown["provider"]),
            (&json!("kh-macbook"), &json!("0.4.1"), &json!("m-1"), &json!("claude_code"))
        );
        assert_eq!(shown["capabilities"], json!({ "os": "darwin", "arch": "arm64" }));
        world.stop().await;
    }

    async fn f_023_f_025_f_034_a_silent_machine_is_offline_gets_nothing_and_is_back_with_a_heartbeat(world) {
        let silent = world.machine("silent");
        let runtime = silent.register(&["claude_code"]).await["runtimes"][0]["id"].clone();
        silent.register(&["claude_code", "codex"]).await;
        let other = world.machine("other");
        other.register(&["gemini"]).await;
        let agent = world.agent_with(json!({ "name": "Freya", "provider": "claude_code",
            "runtime_id": runtime })).await;
        let others = world.agent_with(json!({ "name": "Odin", "provider": "gemini" })).await;
        let issue = world.issue("Wait", agent).await;
        assert_eq!(world.get(&format!("/agents/{agent}")).await["status"], "online");

        // One is heard of after 40 seconds, the other is not; 46 are too many.
        world.advance(Duration::from_secs(40));
        assert_eq!(other.beat().await.expect(200)["status"], "ok");
        world.advance(Duration::from_secs(6));
        until_shown(&world, &silent, "offline").await;
        until_shown(&world, &other, "online").await;
        assert_eq!(world.get(&format!("/agents/{agent}")).await["status"], "offline");
        assert_eq!(world.get(&format!("/agents/{others}")).await["status"], "online");

        // To poll is no sign of life: nothing is given.
        let asked = silent.ask().await;
        assert_eq!((asked.status, asked.bytes), (204, 0));
        until_shown(&world, &silent, "offline").await;
        silent.beat().await.expect(200);
        until_shown(&world, &silent, "online").await;
        assert_eq!(world.get(&format!("/agents/{agent}")).await["status"], "online");
        assert_eq!(silent.claim().await.envelope["issue"]["identifier"], *issue);
        world.stop().await;
    }

    async fn f_024_a_heartbeat_of_a_machine_that_is_not_registered_is_410(world) {
        let machine = world.machine("nobody");
        assert_eq!(machine.beat().await.status, 410);
        assert_eq!(machine.ask().await.status, 410);
        assert_eq!(world.get("/runtimes").await, json!([]));
        machine.register(&["claude_code"]).await;
        assert_eq!(machine.beat().await.expect(200)["status"], "ok");
        world.stop().await;
    }
}
