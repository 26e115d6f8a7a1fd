//! Agents that a client brings along (F-102 to F-107).

use serde_json::{Value, json};

use crate::world::{Machine, World};

/// A machine of Huskarl.
fn huskarl(world: &World) -> Machine {
    let mut machine = world.machine("kh-mac");
    machine.version = None;
    machine.client = Some("huskarld/0.1.0");
    machine.capabilities = Some("await,actors");
    machine
}

async fn register(machine: &Machine, providers: &[&str], actors: Value) -> Value {
    let body = json!({ "daemon_id": machine.daemon, "name": "kh-mac", "providers": providers,
        "actors": actors });
    machine.post("register", None, body).await.expect(201)
}

fn actor(id: &str, name: &str) -> Value {
    json!({ "external_id": id, "name": name, "description": "Sorts mail" })
}

/// `{id, name}` of the agent of this actor in the answer.
fn agent_of(answer: &Value, external_id: &str) -> (i64, String) {
    let agents = answer["agents"].as_array().unwrap_or_else(|| panic!("no agents: {answer}"));
    let found: Vec<_> = agents.iter().filter(|it| it["external_id"] == external_id).collect();
    assert_eq!(found.len(), 1, "{answer}");
    (found[0]["id"].as_i64().unwrap(), found[0]["name"].as_str().unwrap().to_owned())
}

on_both! {
    async fn f_102_actors_are_for_the_provider_huskarl_only(world) {
        let answer = register(&world.machine("m-1"), &["claude_code"], json!([actor("a", "Mail")])).await;
        assert!(answer["agents"].as_array().is_none_or(Vec::is_empty), "{answer}");
        assert_eq!(world.get("/agents").await, json!([]));
        // Of several providers it is the one of huskarl that has them.
        let both = register(&huskarl(&world), &["codex", "huskarl"], json!([actor("a", "Mail")])).await;
        let (id, _) = agent_of(&both, "a");
        assert_eq!(world.get(&format!("/agents/{id}")).await["provider"], "huskarl");
        world.stop().await;
    }

    async fn f_103_f_104_a_new_actor_is_an_agent_of_the_runtime_and_a_known_one_keeps_it(world) {
        let machine = huskarl(&world);
        let answer = register(&machine, &["huskarl"],
            json!([actor("01a14485", "Inbox Manager"), actor("b", "Calendar")])).await;
        let (id, name) = agent_of(&answer, "01a14485");
        assert_eq!(name, "Inbox Manager");
        let shown = world.get(&format!("/agents/{id}")).await;
        assert_eq!(
            json!([shown["provider"], shown["external_id"], shown["description"], shown["runtime_id"]]),
            json!(["huskarl", "01a14485", "Sorts mail", answer["runtimes"][0]["id"]])
        );
        let again = register(&machine, &["huskarl"],
            json!([actor("01a14485", "Post Master"), actor("b", "Calendar")])).await;
        assert_eq!(agent_of(&again, "01a14485"), (id, "Post Master".to_owned()));
        assert_eq!(agent_of(&again, "b"), agent_of(&answer, "b"));
        assert_eq!(world.get(&format!("/agents/{id}")).await["name"], "Post Master");
        assert_eq!(world.get("/agents").await.as_array().unwrap().len(), 2);
        // At once, too.
        let at_once = (0..8).map(|_| {
            let machine = machine.clone();
            tokio::spawn(async move {
                let actors = json!([actor("01a14485", "Post Master"), actor("c", "New")]);
                register(&machine, &["huskarl"], actors).await
            })
        });
        for answer in at_once.collect::<Vec<_>>() {
            assert_eq!(agent_of(&answer.await.unwrap(), "01a14485").0, id);
        }
        world.stop().await;
    }

    async fn f_105_an_actor_that_is_not_listed_is_archived_and_comes_back_as_the_same(world) {
        let machine = huskarl(&world);
        let own = world.agent("Freya").await;
        let answer =
            register(&machine, &["huskarl"], json!([actor("a", "Mail"), actor("b", "Calendar")])).await;
        let (a, b) = (agent_of(&answer, "a").0, agent_of(&answer, "b").0);
        let answer = register(&machine, &["huskarl"], json!([actor("b", "Calendar")])).await;
        assert_eq!(answer["agents"].as_array().unwrap().len(), 1, "{answer}");
        let archived = async |id: i64| world.get(&format!("/agents/{id}")).await["archived_at"].is_string();
        assert!(archived(a).await && !archived(b).await && !archived(own).await);
        let both = json!([actor("a", "Mail"), actor("b", "Calendar")]);
        let answer = register(&machine, &["huskarl"], both).await;
        assert_eq!(agent_of(&answer, "a").0, a);
        assert!(!archived(a).await);
        let none = register(&machine, &["huskarl"], json!([])).await;
        assert_eq!(none["agents"], json!([]), "{none}");
        assert!(archived(a).await && archived(b).await && !archived(own).await);
        // Another machine's actors are its own.
        let mut second = machine.clone();
        second.daemon = "another-mac".to_owned();
        let theirs = register(&second, &["huskarl"], json!([actor("a", "Letters")])).await;
        assert_ne!(agent_of(&theirs, "a").0, a);
        register(&machine, &["huskarl"], json!([actor("b", "Calendar")])).await;
        assert!(!archived(agent_of(&theirs, "a").0).await);
        world.stop().await;
    }

    async fn f_106_a_name_that_is_taken_gets_huskarl_behind_it(world) {
        let machine = huskarl(&world);
        world.agent("Inbox Manager").await;
        let actors = json!([actor("a", "Inbox Manager"), actor("b", "Free")]);
        let answer = register(&machine, &["huskarl"], actors.clone()).await;
        assert_eq!(agent_of(&answer, "a").1, "Inbox Manager (Huskarl)");
        assert_eq!(agent_of(&answer, "b").1, "Free");
        // Its own name is not taken from it the next time, nor from one that is renamed into it.
        let again = register(&machine, &["huskarl"], actors).await;
        assert_eq!(agent_of(&again, "a"), agent_of(&answer, "a"));
        assert_eq!(agent_of(&again, "b"), agent_of(&answer, "b"));
        let renamed = json!([actor("a", "Mine"), actor("b", "Inbox Manager")]);
        let answer = register(&machine, &["huskarl"], renamed).await;
        assert_eq!(agent_of(&answer, "a").1, "Mine");
        assert_eq!(agent_of(&answer, "b").1, "Inbox Manager (Huskarl)");
        world.stop().await;
    }

    async fn f_107_a_task_of_an_actor_says_which_and_has_no_repositories(world) {
        let machine = huskarl(&world);
        world.make("/repositories", json!({ "url": "https://github.com/acme/api.git" })).await;
        let actors = json!([actor("01a14485", "Mail"), actor("b", "C")]);
        let answer = register(&machine, &["huskarl"], actors).await;
        let (id, _) = agent_of(&answer, "01a14485");
        world.issue("Sort", id).await;
        let task = machine.claim().await;
        assert_eq!(task.envelope["agent"]["external_id"], "01a14485");
        assert_eq!(task.envelope["workspace"]["repositories"], json!([]));
        let line = task.envelope["harness"].to_string();
        let other = world.registered("m-1").await;
        let freya = world.agent("Freya").await;
        world.issue("Code", freya).await;
        let code = other.claim().await.envelope;
        assert!(code["agent"].get("external_id").is_none_or(Value::is_null), "{code}");
        assert_eq!(code["workspace"]["repositories"].as_array().unwrap().len(), 1);
        assert_ne!(code["harness"].to_string(), line);
        world.stop().await;
    }
}
