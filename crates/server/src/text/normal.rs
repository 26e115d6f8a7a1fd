//! HTML as the cleaner writes it: every element closed, `<` in text escaped, attribute values in `"`.
//!
//! Only for that form, which needs no parser: the scan is linear and without recursion, whatever the depth.

use std::borrow::Cow;

/// Elements that have no end tag.
const VOID: &[&str] = &["br", "hr", "img", "input"];

/// A piece of the form.
enum Piece<'a> {
    Text(&'a str),
    /// The whole tag.
    Open(&'a str),
    /// The whole tag and its name.
    Void(&'a str, &'a str),
    Close(&'a str, &'a str),
}

/// Without the tags of elements that are deeper than `depth_max`; their text stays. A line break that `pre` begins
/// with is doubled, since whoever reads it skips one.
pub(super) fn limit_nesting(html: &str, depth_max: usize) -> String {
    let mut out = String::with_capacity(html.len());
    let mut depth = 0_usize;
    for piece in pieces(html) {
        let (text, at) = match piece {
            Piece::Text(text) => (text, 0),
            Piece::Void(tag, _) => (tag, depth + 1),
            Piece::Open(tag) => {
                depth += 1;
                (tag, depth)
            }
            Piece::Close(tag, _) => {
                let closed = depth;
                depth = depth.saturating_sub(1);
                (tag, closed)
            }
        };
        if text.starts_with('\n') && out.ends_with("<pre>") {
            out.push('\n');
        }
        if at <= depth_max {
            out.push_str(text);
        }
    }
    out
}

/// The text alone, a line for each paragraph, list item or row.
pub(super) fn text_of(html: &str) -> String {
    let mut out = String::new();
    for piece in pieces(html) {
        match piece {
            Piece::Text(text) => out.push_str(&unescape(text)),
            Piece::Void(_, "br" | "hr")
            | Piece::Close(_, "blockquote" | "div" | "li" | "p" | "pre" | "tr")
            | Piece::Close(_, "h1" | "h2" | "h3" | "h4" | "h5" | "h6")
                if !out.ends_with('\n') =>
            {
                out.push('\n');
            }
            Piece::Close(_, "td" | "th") => out.push(' '),
            _ => {}
        }
    }
    out.trim().to_owned()
}

fn pieces(html: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = html;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (head, tail) = rest.split_at_checked(piece_bytes(rest))?;
        rest = tail;
        let Some(inner) = head.strip_prefix('<') else { return Some(Piece::Text(head)) };
        let closing = inner.strip_prefix('/');
        let inner = closing.unwrap_or(inner);
        let name = inner.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        Some(match closing {
            Some(_) => Piece::Close(head, name),
            None if VOID.contains(&name) => Piece::Void(head, name),
            None => Piece::Open(head),
        })
    })
}

/// Bytes of the piece that `html` begins with, at least one.
fn piece_bytes(html: &str) -> usize {
    if !html.starts_with('<') {
        return html.find('<').unwrap_or(html.len());
    }
    let mut quoted = false;
    let end = html.find(|c| {
        quoted ^= c == '"';
        c == '>' && !quoted
    });
    end.map_or(html.len(), |end| end + 1)
}

fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}");
    Cow::Owned(text.replace("&quot;", "\"").replace("&amp;", "&"))
}
