//! Who is known, and who is there.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::subject::Subject;
use super::world::{World, registration};
use crate::store::{Actor, Registration, Runtime, Seen, Sweep};

pub(super) async fn f_018_f_019_f_021_runtimes_keep_their_ids(world: World<impl Subject>) {
    let acme = world.store.workspace_create("acme").await;
    let other = world.store.workspace_create("other").await;
    let first = world.register(registration(acme, "m", &["codex", "claude_code"])).await;
    let providers: Vec<_> = first.runtimes.iter().map(|it| it.provider.as_str()).collect();
    assert_eq!(providers, ["codex", "claude_code"]);
    assert!(first.runtimes.iter().all(|it| it.listed && it.online));
    let others = world.register(registration(other, "m", &["codex"])).await;
    assert_ne!(others.runtimes[0].id, first.runtimes[0].id);
    world.pass(1);
    let less = world.register(registration(acme, "m", &["claude_code"])).await;
    assert_eq!(less.runtimes[0].id, first.runtimes[1].id);
    let found = world.store.machine_find(acme, "m").await.unwrap();
    let seen: Vec<_> =
        found.iter().map(|it| (it.provider.as_str(), it.listed, it.online)).collect();
    assert_eq!(seen, [("claude_code", true, true), ("codex", false, false)]);
    let again = world.register(registration(acme, "m", &["codex", "claude_code"])).await;
    let ids = |runtimes: &[Runtime]| runtimes.iter().map(|it| it.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&again.runtimes), ids(&first.runtimes));
    assert!(again.agents.is_empty());
}

pub(super) async fn f_019_many_registrations_at_once_make_one_machine(world: World<impl Subject>) {
    let acme = world.store.workspace_create("acme").await;
    let actors = || vec![actor("e-1", "Bjorn"), actor("e-2", "Bjorn"), actor("e-3", "Astrid")];
    let one = |n: usize| {
        let mut providers = ["codex", "claude_code", "huskarl"];
        providers.rotate_left(n % 3);
        let registration =
            Registration { actors: Some(actors()), ..registration(acme, "m", &providers) };
        world.register(registration)
    };
    let all = join_all((0..40).map(one)).await;
    let runtimes: BTreeSet<_> =
        all.iter().flat_map(|it| &it.runtimes).map(|it| it.id.clone()).collect();
    assert_eq!(runtimes.len(), 3);
    let agents: BTreeSet<_> = all
        .iter()
        .flat_map(|it| &it.agents)
        .map(|it| (it.external_id.clone(), it.id, it.name.clone()))
        .collect();
    let names: Vec<_> = agents.iter().map(|(_, _, name)| name.as_str()).collect();
    assert_eq!(names, ["Bjorn", "Bjorn (Huskarl)", "Astrid"], "{agents:?}");
}

pub(super) async fn f_023_f_025_offline_and_online_again(world: World<impl Subject>) {
    let acme = world.store.workspace_create("acme").await;
    for daemon in ["silent", "beats"] {
        world.register(registration(acme, daemon, &["codex", "claude_code"])).await;
    }
    let seen = |daemon_id: &str| Seen {
        workspace_id: acme,
        daemon_id: daemon_id.to_owned(),
        at: world.clock.now(),
    };
    let online = async |daemon_id: &str| {
        let runtimes = world.store.machine_find(acme, daemon_id).await.unwrap();
        runtimes.iter().filter(|it| it.online).count()
    };
    world.pass(45);
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 0);
    world.pass(1);
    world.store.machines_seen(vec![seen("beats"), seen("unknown")]).await.unwrap();
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 2);
    assert_eq!((online("silent").await, online("beats").await), (0, 2));
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 0);
    let events = world.store.events(acme).await;
    assert_eq!(events.iter().filter(|(kind, _)| kind == "runtime.changed").count(), 2);
    world.store.machines_seen(vec![seen("silent")]).await.unwrap();
    assert_eq!(online("silent").await, 2);
    // What the last registration did not name stays away.
    world.register(registration(acme, "silent", &["codex"])).await;
    world.pass(1);
    world.store.machines_seen(vec![seen("silent")]).await.unwrap();
    assert_eq!(online("silent").await, 1);
}

pub(super) async fn f_023_a_sign_of_life_counts_although_the_clock_went_back(
    world: World<impl Subject>,
) {
    let acme = world.store.workspace_create("acme").await;
    world.register(registration(acme, "m", &["codex"])).await;
    world.pass(100);
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 1);
    world.pass(-3_600);
    let seen = Seen { workspace_id: acme, daemon_id: "m".to_owned(), at: world.clock.now() };
    world.store.machines_seen(vec![seen]).await.unwrap();
    assert!(world.store.machine_find(acme, "m").await.unwrap()[0].online);
}

fn actor(external_id: &str, name: &str) -> Actor {
    Actor { external_id: external_id.to_owned(), name: name.to_owned(), description: String::new() }
}

pub(super) async fn f_102_to_f_106_actors(world: World<impl Subject>) {
    let usual = world.usual(1).await;
    let register = async |providers: &[&str], actors: &[(&str, &str)]| {
        let actors = actors.iter().map(|(id, name)| actor(id, name)).collect();
        let registration = registration(usual.workspace, "m-2", providers);
        world.register(Registration { actors: Some(actors), ..registration }).await.agents
    };
    assert_eq!(register(&["codex"], &[("e-1", "Bjorn")]).await, [], "F-102");

    let made = register(&["huskarl"], &[("e-1", "Bjorn"), ("e-2", "Freya")]).await;
    let told: Vec<_> = made.iter().map(|it| (it.external_id.as_str(), it.name.as_str())).collect();
    assert_eq!(told, [("e-1", "Bjorn"), ("e-2", "Freya (Huskarl)")]);
    let (bjorn, freya) = (made[0].id, made[1].id);

    let renamed = register(&["huskarl"], &[("e-2", "Freya"), ("e-1", "Ragnar")]).await;
    assert_eq!((renamed[1].id, renamed[1].name.as_str()), (bjorn, "Ragnar"));
    assert_eq!((renamed[0].id, renamed[0].name.as_str()), (freya, "Freya (Huskarl)"));

    register(&["huskarl"], &[("e-2", "Freya")]).await;
    assert_eq!(world.store.agent(bjorn).await, ("Ragnar".to_owned(), true), "archived");
    assert!(!world.store.agent(freya).await.1);
    // While it was away somebody else took its name.
    let newer = register(&["huskarl"], &[("e-2", "Freya"), ("e-3", "Ragnar")]).await;
    assert_eq!(newer[1].name, "Ragnar");
    let back = register(&["huskarl"], &[("e-3", "Ragnar"), ("e-1", "Ragnar")]).await;
    assert_eq!((back[1].id, back[1].name.as_str()), (bjorn, "Ragnar (Huskarl)"));
    assert_eq!(world.store.agent(bjorn).await, ("Ragnar (Huskarl)".to_owned(), false));
    assert!(world.store.agent(freya).await.1);
    assert!(!world.store.agent(usual.agent).await.1, "people's agents are left alone");
    // A registration that says nothing about actors leaves them as they are.
    world.register(registration(usual.workspace, "m-2", &["huskarl"])).await;
    assert!(!world.store.agent(bjorn).await.1);
}

pub(super) async fn f_106_machines_that_register_one_name_at_once_get_different_ones(
    world: World<impl Subject>,
) {
    let acme = world.store.workspace_create("acme").await;
    let one = |n: usize| {
        let registration = registration(acme, &format!("m-{n}"), &["huskarl"]);
        world.register(Registration { actors: Some(vec![actor("e", "Bjorn")]), ..registration })
    };
    let all = join_all((0..12).map(one)).await;
    let names: BTreeSet<_> = all.iter().map(|it| it.agents[0].name.clone()).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    assert!(names.contains("Bjorn") && names.contains("Bjorn (Huskarl)"), "{names:?}");
}

pub(super) async fn f_025_after_a_clock_went_back_a_silent_machine_goes_offline(
    world: World<impl Subject>,
) {
    let acme = world.store.workspace_create("acme").await;
    world.register(registration(acme, "m", &["codex"])).await;
    world.pass(-3_600);
    let behind = Sweep { bring_back: false, ..world.sweep_now() };
    world.store.leases_sweep(behind).await.unwrap();
    assert!(world.store.machine_find(acme, "m").await.unwrap()[0].last_seen > world.clock.now());
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 0);
    assert_eq!(world.store.machine_find(acme, "m").await.unwrap()[0].last_seen, world.clock.now());
    world.pass(46);
    assert_eq!(world.store.leases_sweep(world.sweep_now()).await.unwrap().runtimes, 1);
}
