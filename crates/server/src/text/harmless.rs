//! What no HTML that goes to a page may hold, said a second time: for tests and fuzzing. Reads the text alone, in the
//! one form that the cleaner writes, so that it knows nothing of the parser that the cleaner uses.

use super::{ATTRIBUTES, TAGS};

/// Attributes that the cleaner sets itself.
const OWN_ATTRIBUTES: [&str; 3] = ["disabled", "rel", "type"];
/// How an address may begin.
const SCHEMES: [&str; 3] = ["http:", "https:", "mailto:"];

/// The tags of clean HTML, without `<` and `>`, split where there is a space outside of quotes.
pub(super) fn tags(html: &str) -> Vec<Vec<&str>> {
    let mut tags = Vec::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once('<') {
        let mut quoted = false;
        let end = after.find(|c| {
            quoted ^= c == '"';
            c == '>' && !quoted
        });
        // A tag without an end is no tag that anybody knows.
        let (tag, behind) = end.and_then(|end| after.split_at_checked(end)).unwrap_or(("<", ""));
        let mut quoted = false;
        let parts = tag.split(|c| {
            quoted ^= c == '"';
            c == ' ' && !quoted
        });
        tags.push(parts.collect());
        rest = behind;
    }
    tags
}

/// Panics when a page that shows this could run a script, or load what is not meant to be loaded.
pub(crate) fn assert_harmless(html: &str) {
    for tag in tags(html) {
        let (name, attributes) = tag.split_first().map_or(("", &[][..]), |(it, rest)| (*it, rest));
        let name = name.strip_prefix('/').unwrap_or(name);
        let known = TAGS.contains(&name) && !["script", "style", "iframe", "svg"].contains(&name);
        assert!(known, "{tag:?} in {html}");
        for attribute in attributes {
            let (key, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            assert!(value.is_some_and(|value| !value.contains('"')), "{tag:?} in {html}");
            let listed = ATTRIBUTES.iter().any(|(tag, keys)| *tag == name && keys.contains(&key));
            let known = listed || OWN_ATTRIBUTES.contains(&key);
            assert!(known && !key.starts_with("on") && key != "style", "{tag:?} in {html}");
            let fine = !matches!(key, "href" | "src") || value.is_some_and(has_plain_scheme);
            assert!(fine, "{tag:?} in {html}");
        }
    }
    assert!(!html.contains(|c: char| c.is_control() && c != '\n' && c != '\t'), "{html:?}");
}

/// As a browser reads it: it skips spaces before an address, and line breaks and tabs wherever they stand.
fn has_plain_scheme(address: &str) -> bool {
    let read = address.replace(['\n', '\t'], "").to_ascii_lowercase();
    SCHEMES.iter().any(|scheme| read.trim_start_matches(' ').starts_with(scheme))
}
