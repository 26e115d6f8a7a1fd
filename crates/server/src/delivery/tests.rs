//! Artifacts, well-formed and hostile.

use serde_json::json;

use super::*;

/// The only delivery of a list of one.
fn one(artifact: Value) -> Delivery {
    let mut accepted = accept(&json!([artifact]));
    assert_eq!(accepted.dropped, []);
    accepted.deliveries.remove(0)
}

/// Why a list of one is left out.
fn dropped(artifact: Value) -> Reason {
    let accepted = accept(&json!([artifact]));
    assert_eq!(accepted.deliveries, []);
    assert_eq!(accepted.dropped.len(), 1);
    accepted.dropped[0].1
}

fn link(url: &str) -> Value {
    json!({ "type": "link", "url": url })
}

#[test]
fn f_081_the_artifacts_of_the_protocol_become_deliveries() {
    let accepted = accept(&json!([
        { "type": "pull_request", "url": "https://github.com/acme/api/pull/482", "title": "Fix the redirect",
          "state": "open" },
        { "type": "branch", "reference": "felagi/ACM-231-redirect" },
        { "type": "file", "reference": "out/report.pdf", "title": " The\nreport ", "more": 1 },
    ]));
    assert_eq!(accepted.dropped, []);
    assert!(has_pull_request(&accepted.deliveries));
    assert_eq!(
        accepted.deliveries,
        [
            Delivery {
                kind: Kind::PullRequest,
                url: Some("https://github.com/acme/api/pull/482".to_owned()),
                reference: None,
                title: Some("Fix the redirect".to_owned()),
                state: Some(DeliveryState::Open),
                key: "https://github.com/acme/api/pull/482".to_owned(),
            },
            Delivery {
                kind: Kind::Branch,
                url: None,
                reference: Some("felagi/ACM-231-redirect".to_owned()),
                title: None,
                state: None,
                key: "branch:felagi/ACM-231-redirect".to_owned(),
            },
            Delivery {
                kind: Kind::File,
                url: None,
                reference: Some("out/report.pdf".to_owned()),
                title: Some("The report".to_owned()),
                state: None,
                key: "file:out/report.pdf".to_owned(),
            },
        ]
    );
}

#[test]
fn f_081_nothing_is_nothing() {
    assert_eq!(accept(&Value::Null), Accepted::default());
    assert_eq!(accept(&json!([])), Accepted::default());
    for odd in
        [json!({ "type": "link", "url": "https://a.example/" }), json!("x"), json!(7), json!(true)]
    {
        let accepted = accept(&odd);
        assert_eq!((accepted.deliveries, accepted.dropped), (vec![], vec![(0, Reason::NotAList)]));
    }
}

#[test]
fn f_082_of_more_than_twenty_the_first_twenty_are_kept() {
    let links = |count: usize| {
        Value::Array((0..count).map(|n| link(&format!("https://a.example/{n}"))).collect())
    };
    assert_eq!(accept(&links(20)).dropped, []);
    let accepted = accept(&links(21));
    assert_eq!(accepted.deliveries, accept(&links(20)).deliveries);
    assert_eq!(accepted.dropped, [(20, Reason::TooMany)]);
    let accepted = accept(&links(100_000));
    assert_eq!(
        (accepted.deliveries.len(), accepted.dropped.len()),
        (20, 181),
        "the log is not flooded"
    );
    assert_eq!(accepted.dropped.last(), Some(&(200, Reason::TooMany)));
}

#[test]
fn f_082_malformed_ones_and_repetitions_take_no_place() {
    let mut list = vec![json!("no object"); 30];
    list.extend((0..15).map(|n| link(&format!("https://a.example/{n}"))));
    list.extend((0..20).map(|n| link(&format!("https://a.example/{n}/"))));
    let accepted = accept(&Value::Array(list));
    assert_eq!(accepted.deliveries.len(), 20);
    assert!(accepted.dropped.iter().all(|(_, reason)| *reason == Reason::NotAnObject));
}

#[test]
fn f_083_a_malformed_artifact_is_left_out_and_the_rest_stays() {
    let accepted = accept(&json!([
        link("https://a.example/1"),
        null,
        [],
        "https://a.example/2",
        { "url": "https://a.example/3" },
        { "type": 3 },
        { "type": "deploy", "url": "https://a.example/4" },
        { "type": "LINK", "url": "https://a.example/4" },
        { "type": "link", "url": 5 },
        { "type": "link", "url": "https://a.example/6", "title": { "a": 1 } },
        { "type": "link", "url": "https://a.example/7", "state": "won" },
        { "type": "link", "url": "https://a.example/7", "state": false },
        link("https://a.example/8"),
    ]));
    let kept: Vec<_> =
        accepted.deliveries.iter().filter_map(|delivery| delivery.url.as_deref()).collect();
    assert_eq!(kept, ["https://a.example/1", "https://a.example/8"]);
    use Reason::{NotAnObject, NotText, State, Type};
    let reasons: Vec<_> = accepted.dropped.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(
        reasons,
        [
            NotAnObject,
            NotAnObject,
            NotAnObject,
            Type,
            Type,
            Type,
            Type,
            NotText,
            NotText,
            State,
            NotText
        ]
    );
    assert_eq!(accepted.dropped[0].0, 1);
}

#[test]
fn f_083_each_kind_needs_what_it_is_about() {
    assert_eq!(dropped(json!({ "type": "pull_request", "reference": "482" })), Reason::NoUrl);
    assert_eq!(
        dropped(json!({ "type": "pull_request", "url": null, "reference": "482" })),
        Reason::NoUrl
    );
    assert_eq!(dropped(json!({ "type": "link", "url": "  ", "title": "a" })), Reason::NoUrl);
    assert_eq!(dropped(json!({ "type": "branch" })), Reason::NoReference);
    assert_eq!(
        dropped(json!({ "type": "branch", "url": "https://a.example/" })),
        Reason::NoReference
    );
    assert_eq!(dropped(json!({ "type": "file", "title": "a" })), Reason::NoReference);
    assert_eq!(one(json!({ "type": "file", "url": "https://a.example/a.pdf" })).reference, None);
    let branch =
        one(json!({ "type": "branch", "reference": "a", "url": "https://a.example/tree/a" }));
    assert_eq!(branch.key, "branch:a https://a.example/tree/a");
}

#[test]
fn f_083_fields_have_bounds() {
    let url = |chars: usize| link(&format!("https://a.example/{}", "x".repeat(chars - 18)));
    assert_eq!(one(url(2_048)).url.unwrap().len(), 2_048);
    assert_eq!(dropped(url(2_049)), Reason::TooLong);
    assert_eq!(dropped(link(&format!("https://a.example/{}", "ü".repeat(700)))), Reason::TooLong);
    let url = "https://a.example/";
    let title = |chars: usize| json!({ "type": "link", "url": url, "title": "ü".repeat(chars) });
    assert_eq!(one(title(255)).title.unwrap().chars().count(), 255);
    assert_eq!(dropped(title(256)), Reason::TooLong);
    let branch = |chars: usize| json!({ "type": "branch", "reference": "x".repeat(chars) });
    assert_eq!(one(branch(255)).reference.unwrap().len(), 255);
    assert_eq!(dropped(branch(256)), Reason::TooLong);
}

#[test]
fn f_083_every_state_has_its_word() {
    for state in DeliveryState::ALL {
        let link = json!({ "type": "link", "url": "https://a.example/", "state": state.word() });
        assert_eq!(one(link).state, Some(state));
    }
    for kind in Kind::ALL {
        assert_eq!(Kind::from_word(kind.word()), Some(kind));
    }
}

#[test]
fn f_084_a_link_that_is_not_plain_http_is_never_kept() {
    for url in [
        "javascript:alert(1)",
        "JavaScript://a.example/%0aalert(1)",
        "java\tscript://a.example/",
        "data:text/html,x",
        "ftp://a.example/",
        "file:///etc/passwd",
        "//a.example/",
        "/a",
        "a.example/a",
        "https:a.example",
        "https:/a.example",
        "https:\\\\a.example",
        "https://a.example\\@b.example/",
        "https://",
        "https:///a.example/",
        "https://?a",
        "https://a b.example/",
        "https://a.example/a b",
        "https://a.example/\n",
        "https://a.example/\u{0}x",
        "https://a.example:99999/",
        "https://[::1/",
        "vbscript:x",
        "blob:https://a.example/x",
        "view-source:https://a.example/",
        "\u{1}https://a.example/",
    ] {
        // A line break at the end goes with the space around it.
        if url.trim_end() == url {
            assert_eq!(dropped(link(url)), Reason::Url, "{url:?}");
        }
    }
    assert_eq!(one(link(" https://a.example/\n")).url.as_deref(), Some("https://a.example/"));
    assert_eq!(one(link("HTTPS://A.Example")).url.as_deref(), Some("https://a.example/"));
    let quoted = one(link("https://a.example/\"><script>alert(1)</script>")).url.unwrap();
    assert!(!quoted.contains(['"', '<', '>']), "{quoted}");
}

#[test]
fn f_084_a_link_with_a_credential_is_never_kept() {
    for url in [
        "https://kari:hunter2@a.example/",
        "https://hunter2@a.example/",
        "https://:hunter2@a.example/",
        "https://@a.example/",
        "https://a.example:x@hunter2/",
        "https://a.example/?token=hunter2",
        "https://a.example/a?b=1&Access_Token=hunter2",
        "https://a.example/a?acc%65ss_token=hunter2",
        "https://a.example/#access_token=hunter2&b=1",
    ] {
        let reason = dropped(link(url));
        assert_eq!(reason, Reason::Credential, "{url}");
        assert!(!format!("{reason} {reason:?}").contains("hunter2"));
    }
    assert!(
        one(link("https://a.example/@kari/status?user=@b")).url.is_some(),
        "an @ in the path is none"
    );
}

#[test]
fn f_085_the_same_address_in_another_dress_is_one_delivery() {
    let key = |url: &str| one(link(url)).key;
    let expected = key("https://github.com/acme/api/pull/482");
    for url in [
        "https://github.com/acme/api/pull/482/",
        "https://github.com/acme/api/pull/482//",
        "https://GitHub.com/Acme/API/Pull/482",
        "HTTPS://GITHUB.COM/ACME/API/PULL/482/",
        "https://github.com:443/acme/api/pull/482",
        "https://github.com/acme/api/pull/482#discussion",
        "https://github.com/acme/api/pull/482?",
        "https://github.com/acme/./api/x/../pull/482",
    ] {
        assert_eq!(key(url), expected, "{url}");
    }
    for url in [
        "https://github.com/acme/api/pull/483",
        "https://github.com/other/api/pull/482",
        "https://github.com:8443/acme/api/pull/482",
        "https://github.com/acme/api/pull/482?tab=files",
        "https://github.example/acme/api/pull/482",
    ] {
        assert_ne!(key(url), expected, "{url}");
    }
    assert_eq!(key("https://a.example"), key("https://A.example/"));
    assert_ne!(key("https://a.example/?v=a"), key("https://a.example/?v=A"));
}

#[test]
fn f_085_of_two_with_one_key_the_later_wins() {
    let accepted = accept(&json!([
        { "type": "pull_request", "url": "https://a.example/pull/1", "state": "draft", "title": "one" },
        link("https://a.example/other"),
        { "type": "pull_request", "url": "https://A.example/Pull/1/", "state": "open" },
    ]));
    assert_eq!(accepted.dropped, []);
    assert_eq!(accepted.deliveries.len(), 2);
    assert_eq!(accepted.deliveries[0].state, Some(DeliveryState::Open));
    assert_eq!(accepted.deliveries[0].title, None);
    assert_eq!(accepted.deliveries[0].url.as_deref(), Some("https://a.example/Pull/1/"));
}

#[test]
fn f_085_a_branch_keeps_its_capitals_since_git_does() {
    let key = |reference: &str| one(json!({ "type": "branch", "reference": reference })).key;
    assert_ne!(key("Fix"), key("fix"));
    let file = one(json!({ "type": "file", "reference": "fix" })).key;
    assert_ne!(key("fix"), file);
}

#[test]
fn a_reference_is_a_name_or_a_path_downwards() {
    for reference in
        ["-f", "--upload-pack=id", "a..b", "a b", "a:b", "a^", "a\\b", "a\u{0}b", "a\nb"]
    {
        let branch = json!({ "type": "branch", "reference": reference });
        assert_eq!(dropped(branch), Reason::Reference, "{reference:?}");
    }
    for reference in ["/etc/passwd", "../a", "a/../../b", "C:\\a", "a\\b", "~/a", "a\u{0}"] {
        let file = json!({ "type": "file", "reference": reference });
        assert_eq!(dropped(file), Reason::Reference, "{reference:?}");
    }
    let pull_request =
        json!({ "type": "pull_request", "url": "https://a.example/", "reference": "acme/api#482" });
    assert_eq!(one(pull_request).reference.as_deref(), Some("acme/api#482"));
}

#[test]
fn f_086_a_pull_request_moves_an_issue_from_before_review_only() {
    assert_eq!(REVIEW_FROM, ["backlog", "todo", "in_progress"]);
    assert!(!has_pull_request(&accept(&json!([link("https://a.example/pull/1")])).deliveries));
    assert!(!has_pull_request(
        &accept(&json!([{ "type": "pull_request", "url": "ftp://a.example/" }])).deliveries
    ));
}

#[test]
fn f_086_a_pull_request_that_is_named_as_a_link_too_stays_one() {
    let url = "https://github.com/acme/api/pull/482";
    let pull = json!({ "type": "pull_request", "url": url, "title": "Fix", "state": "open" });
    for list in [json!([pull, link(url)]), json!([link(url), pull])] {
        let accepted = accept(&list);
        assert!(has_pull_request(&accepted.deliveries), "{list}");
        let kept: Vec<_> = accepted.deliveries.iter().map(|it| it.title.as_deref()).collect();
        assert_eq!(kept, [Some("Fix")], "{list}");
    }
    let merged = json!({ "type": "pull_request", "url": url, "state": "merged" });
    let kept = accept(&json!([pull, merged])).deliveries;
    assert_eq!(kept.iter().map(|it| it.state).collect::<Vec<_>>(), [Some(DeliveryState::Merged)]);
}

#[test]
fn f_085_two_branches_with_the_address_of_one_repository_are_two() {
    let branch = |name: &str| json!({ "type": "branch", "reference": name, "url": "https://github.com/acme/api" });
    assert_eq!(accept(&json!([branch("a"), branch("b"), branch("a")])).deliveries.len(), 2);
}
