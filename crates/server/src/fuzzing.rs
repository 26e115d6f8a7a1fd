//! Entry points for fuzzing: plain functions over arbitrary bytes. They panic when a promise is broken: nothing
//! inside panics, two readers read the same, what goes to a page scripts nothing, what becomes a path stays below
//! its folder.

use std::path::{Component, Path};

use axum::http::HeaderValue;
use bytes::Bytes;
use ostler_core::clock::Timestamp;
use ostler_proto::lease::{
    Await, Claim, Complete, Fail, Heartbeat, Line, Messages, Register, Resume, Session,
    WAIT_SECONDS_MAX,
};
use serde_json::{Value, json};

use crate::delivery::{self, Accepted, DELIVERIES_MAX, Delivery, Kind};
use crate::http::{Fault, disarmed, parse_json};
use crate::machine::envelope::thread_of;
use crate::machine::{Action, ENDPOINTS};
use crate::people::attachments::{disposition, sane_name};
use crate::skill;
use crate::store::CommentFacts;
use crate::text::{self, HTML_BYTES_MAX, assert_harmless};
use crate::thread::ThreadBounds;

/// Output of a run: what the fast reader takes the careful one takes too, with the same in it.
pub fn fuzz_messages(body: &[u8]) {
    let body = disarmed(Bytes::copy_from_slice(body));
    let careful = careful(&body);
    let Some(fast) = Messages::read(&body) else { return };
    let careful = careful.map(|it| it.lines).map_err(|fault| fault.body.message);
    let fast: Vec<Line> = fast.lines.into_iter().map(written_anew).collect();
    assert!(careful.as_ref() == Ok(&fast), "the readers differ: {fast:?} {careful:?}");
}

/// As the endpoint does it.
fn careful(body: &[u8]) -> Result<Messages, Fault> {
    let endpoint = ENDPOINTS.iter().find(|row| row.action == Action::Messages);
    Ok(Messages::parse(&parse_json(body, endpoint.and_then(|row| row.opaque))?)?)
}

/// With its payload as the careful reader writes it, which keeps no spaces.
fn written_anew(mut line: Line) -> Line {
    line.payload = line.payload.map(|text| match serde_json::from_str::<Value>(&text) {
        Ok(payload) => payload.to_string(),
        Err(error) => error.to_string(),
    });
    line
}

/// Every other request of a machine.
pub fn fuzz_requests(body: &[u8]) {
    let body = &*disarmed(Bytes::copy_from_slice(body));
    let text = std::str::from_utf8(body).unwrap_or_default();
    for opaque in [None, Some("result")] {
        let Ok(value) = parse_json(body, opaque) else { continue };
        let _ = (Heartbeat::parse(&value), Session::parse(&value), Fail::parse(&value));
        let _ = (Complete::parse(&value, text), Resume::parse(&value));
        if let Ok(sent) = Register::parse(&value) {
            assert!(!sent.daemon_id.is_empty() && !sent.daemon_id.contains(char::is_control));
            let capabilities = serde_json::from_str::<Value>(&sent.capabilities);
            assert!(capabilities.is_ok_and(|it| it.is_object()), "capabilities are no object");
        }
        if let Ok(sent) = Claim::parse(&value) {
            assert!(sent.wait_seconds <= WAIT_SECONDS_MAX);
        }
        if let Ok(sent) = Await::parse(&value) {
            assert!(["approval", "input"].contains(&sent.waiting_for.as_str()));
        }
    }
}

/// HTML that somebody sends: what is kept scripts nothing and stays as it is, and so does what agents make of it.
pub fn fuzz_html(html: &[u8]) {
    let html = String::from_utf8_lossy(html);
    let clean = text::sanitize_html(&html);
    assert_clean(&clean);
    if let Some(whole) = text::sanitize_whole(&html) {
        assert_clean(&whole);
    }
    let markdown = text::html_to_markdown(&html);
    assert!(markdown.len() <= HTML_BYTES_MAX);
    assert_harmless(&text::markdown_to_html(&markdown));
    let _ = text::is_blank(&clean);
}

fn assert_clean(html: &str) {
    assert_harmless(html);
    assert!(html.len() <= HTML_BYTES_MAX);
    let again = text::sanitize_html(html);
    assert!(again == html, "cleaned again it is another:\n{html}\n{again}");
}

/// Markdown that an agent writes.
pub fn fuzz_markdown(markdown: &[u8]) {
    let html = text::markdown_to_html(&String::from_utf8_lossy(markdown));
    assert_clean(&html);
}

/// The comments of an issue, a NUL between each, the first character of each says how often it repeats what follows:
/// the newest are given to an agent, within the bounds.
pub fn fuzz_thread(script: &[u8]) {
    let bodies = script.split(|byte| *byte == 0).map(|comment| {
        let (times, html) = comment.split_first().unwrap_or((&0, &[]));
        String::from_utf8_lossy(html).repeat(usize::from(*times))
    });
    let posted_at = Timestamp::from_micros(0);
    let comments: Vec<_> = bodies
        .map(|body| CommentFacts { author: String::new(), is_agent: false, posted_at, body })
        .collect();
    let lengths: Vec<_> =
        comments.iter().map(|it| text::html_to_markdown(&it.body).chars().count()).collect();
    let all = comments.len();
    let (kept, omitted) = thread_of(comments);
    let kept_lengths: Vec<_> = kept.iter().map(|it| it.body.chars().count()).collect();
    assert_eq!(kept.len() + omitted, all);
    assert!(lengths.ends_with(&kept_lengths), "not the newest are given");
    let ThreadBounds { comments_max, chars_max } = ThreadBounds::default();
    let fits = |count: usize, chars: usize| count <= comments_max && chars <= chars_max;
    let (count, chars) = (kept.len(), kept_lengths.iter().sum::<usize>());
    assert!(fits(count, chars) || count == 1, "{count} comments of {chars} characters");
    let next = omitted.checked_sub(1).and_then(|at| lengths.get(at));
    assert!(next.is_none_or(|more| !fits(count + 1, chars + more)), "more would fit");
}

/// What a completed run hands back: what is kept leads to web pages and stays below its folder, and is kept the same
/// when it is handed back again.
pub fn fuzz_artifacts(artifacts: &[u8]) {
    let Ok(artifacts) = parse_json(artifacts, None) else { return };
    let Accepted { deliveries, .. } = delivery::accept(&artifacts);
    assert!(deliveries.len() <= DELIVERIES_MAX);
    deliveries.iter().for_each(assert_deliverable);
    let written: Vec<_> = deliveries
        .iter()
        .map(|it| {
            json!({ "type": it.kind.word(), "url": it.url, "reference": it.reference, "title": it.title,
                "state": it.state.map(delivery::DeliveryState::word) })
        })
        .collect();
    let again = delivery::accept(&Value::Array(written));
    assert_eq!(again, Accepted { deliveries, dropped: Vec::new() }, "handed back again");
}

fn assert_deliverable(delivery: &Delivery) {
    if let Some(url) = &delivery.url {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
        let plain = authority.is_some_and(|it| !it.is_empty() && !it.contains('@'));
        assert!(plain && url.bytes().all(|byte| byte.is_ascii_graphic()), "{url:?}");
    }
    if let Some(reference) = &delivery.reference {
        assert!(!reference.contains(char::is_control), "{reference:?}");
        match delivery.kind {
            Kind::File => assert_below(reference),
            Kind::Branch => assert!(!reference.starts_with('-') && !reference.contains("..")),
            Kind::PullRequest | Kind::Link => {}
        }
    }
    if let Some(title) = &delivery.title {
        assert!(!title.is_empty() && !title.contains(char::is_control), "{title:?}");
    }
}

/// The path leads below the folder that it is joined to, on every system.
fn assert_below(path: &str) {
    assert!(!path.starts_with('~'), "a shell's: {path:?}");
    assert_plain(path);
}

/// The path leads nowhere else and has the same parts on every system.
fn assert_plain(path: &str) {
    assert!(!path.is_empty() && !path.contains(['\\', ':', '\0']), "{path:?}");
    let mut parts = Path::new(path).components();
    assert!(parts.all(|part| matches!(part, Component::Normal(_))), "{path:?}");
    // Systems that drop dots and spaces at the end of a name see the same parts.
    let bare = |part: &str| part.trim_end_matches(['.', ' ']).len();
    assert!(path.split('/').all(|part| bare(part) == part.len() && bare(part) > 0), "{path:?}");
}

/// A skill, a line each: its name, then the paths of its files. And each line as the name of a file that is attached.
pub fn fuzz_skill(lines: &[u8]) {
    let lines = String::from_utf8_lossy(lines);
    let mut lines = lines.split('\n');
    let name = lines.next().unwrap_or_default();
    let paths: Vec<&str> = lines.collect();
    let files: Vec<_> = paths.iter().map(|path| (*path, "")).collect();
    if skill::check(name, "", &files).is_ok() {
        assert_below(name);
        assert!(!name.contains('/'));
        paths.iter().copied().for_each(assert_below);
        assert_apart(&paths, str::to_lowercase);
        assert_apart(&paths, str::to_uppercase);
    }
    paths.iter().copied().for_each(assert_attachable);
}

/// No two files are in one place, nor one within another, for who folds case like this.
fn assert_apart(paths: &[&str], fold: impl Fn(&str) -> String) {
    let mut folded: Vec<_> = paths.iter().map(|path| fold(path) + "/").collect();
    folded.sort_unstable();
    // In this order a folder stands right before what is below it.
    let apart = |pair: &[String]| {
        pair.first().zip(pair.last()).is_none_or(|(a, b)| !b.starts_with(a.as_str()))
    };
    assert!(folded.windows(2).all(apart), "two files in one place: {folded:?}");
}

fn assert_attachable(sent: &str) {
    let name = sane_name(sent);
    assert_plain(&name);
    assert!(!name.contains('/') && sane_name(&name) == name, "{name:?}");
    assert!(HeaderValue::from_str(&disposition(&name)).is_ok(), "{name:?}");
}
