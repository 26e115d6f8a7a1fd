//! HTML and Markdown of issues and comments: what a page may show, and what an agent is given to read.
//!
//! Owns: the list of what HTML may hold ([`sanitize_html`]), and the two conversions. Everything here takes
//! whatever anybody sends: the input is bounded, the nesting is bounded before anything recursive sees it,
//! and nothing panics. Absent on purpose: who may write what where, and refusals of what is too long.

mod harmless;
mod markdown;
mod normal;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use ammonia::{Builder, UrlRelative};

pub(crate) use harmless::assert_harmless;
pub use markdown::{html_to_markdown, markdown_to_html};

/// Bytes of a description or comment in Markdown. A command refuses a longer one; an agent's is cut with a mark.
pub const MARKDOWN_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a description or comment in HTML, as it comes and when it is clean: escapes and the `rel` of links
/// make it longer. Endpoints refuse a longer one; elsewhere it is cut, and what becomes longer is given as text
/// without tags.
pub const HTML_BYTES_MAX: usize = 2 * MARKDOWN_BYTES_MAX;
/// Tags in HTML. What comes after as many is shown as it was written: a parser looks through all open
/// elements at each, so that a page of nothing but `<div>` would take it minutes.
const TAGS_MAX: usize = 8_192;
/// Tags of formatting with attributes in HTML, a code block's language counted once. More are shown as they were
/// written: a parser opens what is not closed of them anew in each paragraph, all that differ.
const FORMATTED_MAX: usize = 64;
/// Depth of elements in HTML that was cleaned. The text of deeper ones stays, their tags go.
const NESTING_MAX: usize = 32;
/// How often HTML is cleaned until it stays as it is. What takes more becomes text without tags.
const ROUNDS_MAX: usize = 8;
/// Digits of a number in an attribute (`start`, `colspan`, `width`). A longer one is left out.
const DIGITS_MAX: usize = 4;
/// Bytes of a code block's language. A longer one is left out.
const LANGUAGE_BYTES_MAX: usize = 64;

/// Elements that stay. All others go, and their text stays.
const TAGS: &[&str] = &[
    "a",
    "b",
    "blockquote",
    "br",
    "caption",
    "code",
    "del",
    "div",
    "em",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "i",
    "img",
    "input",
    "kbd",
    "label",
    "li",
    "mark",
    "ol",
    "p",
    "pre",
    "s",
    "span",
    "strike",
    "strong",
    "sub",
    "sup",
    "table",
    "tbody",
    "td",
    "tfoot",
    "th",
    "thead",
    "tr",
    "u",
    "ul",
];
/// Elements that go together with their text, since it is not meant to be read.
const TAGS_WITH_TEXT: &[&str] = &[
    "applet", "embed", "frameset", "iframe", "math", "noembed", "noframes", "noscript", "object",
    "script", "select", "style", "svg", "template", "title", "xmp",
];
/// Elements that a parser opens anew, but `a`, of which no two are open.
const FORMATTING: &[&str] =
    &["b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];
/// Attributes that stay, by element; values are looked at in [`attribute`].
const ATTRIBUTES: &[(&str, &[&str])] = &[
    ("a", &["href", "title"]),
    ("code", &["class"]),
    ("img", &["alt", "height", "src", "title", "width"]),
    ("input", &["checked"]),
    ("li", &["data-checked", "data-type"]),
    ("ol", &["start"]),
    ("td", &["align", "colspan", "rowspan"]),
    ("th", &["align", "colspan", "rowspan"]),
    ("ul", &["data-type"]),
];

static CLEANER: LazyLock<Builder<'static>> = LazyLock::new(|| {
    let attributes = ATTRIBUTES.iter().map(|(tag, names)| (*tag, names.iter().copied().collect()));
    // An `input` is nothing but the box of a task list that a page shows.
    let checkbox = HashMap::from([("type", "checkbox"), ("disabled", "")]);
    let mut cleaner = Builder::empty();
    cleaner
        .tags(TAGS.iter().copied().collect())
        .clean_content_tags(TAGS_WITH_TEXT.iter().copied().collect())
        .tag_attributes(attributes.collect())
        .generic_attributes(HashSet::new())
        .set_tag_attribute_values(HashMap::from([("input", checkbox)]))
        .url_schemes(HashSet::from(["http", "https", "mailto"]))
        .url_relative(UrlRelative::Deny)
        .link_rel(Some("noopener noreferrer nofollow"))
        .strip_comments(true)
        .attribute_filter(attribute);
    cleaner
});

/// HTML that a page may show as it stands: formatting, lists, task lists, tables, code, links and pictures,
/// no script, no style, no foreign addresses but `http`, `https` and `mailto`. Clean HTML stays as it is.
pub fn sanitize_html(html: &str) -> String {
    settled(cut(html, HTML_BYTES_MAX)).unwrap_or_else(|odd| as_text(&odd))
}

/// The same for what a person sends, who is told when it is too long: `None` then, and nothing is cut.
pub fn sanitize_whole(html: &str) -> Option<String> {
    let fits = |html: &str| html.len() <= HTML_BYTES_MAX;
    if !fits(html) {
        return None;
    }
    settled(html).or_else(|odd| fits(&odd).then(|| as_text(&odd)).ok_or(())).ok()
}

/// Whether clean HTML shows anything.
pub fn is_blank(clean: &str) -> bool {
    // An image whose address went has nothing left to show.
    let mut images = clean.split("<img ").skip(1).filter_map(|rest| rest.split('>').next());
    let shows = images.any(|image| image.contains("src=\""))
        || ["<hr", "<input"].iter().any(|tag| clean.contains(tag));
    !shows && normal::text_of(clean).trim().is_empty()
}

/// Clean HTML that stays as it is when it is cleaned again, so that whoever parses it sees the elements that were
/// judged. Otherwise what came out at last: it is too long, or becomes another each time.
fn settled(html: &str) -> Result<String, String> {
    let mut html = Cow::Borrowed(html);
    for _ in 0..ROUNDS_MAX {
        let clean = clean(&html);
        if clean.len() > HTML_BYTES_MAX {
            return Err(clean);
        }
        if clean == html {
            return Ok(clean);
        }
        html = Cow::Owned(clean);
    }
    Err(html.into_owned())
}

fn clean(html: &str) -> String {
    let html = printable(html);
    let html = limit_formatting(&html, FORMATTED_MAX);
    let clean = CLEANER.clean(&limit_tags(&html, TAGS_MAX)).to_string();
    // References such as `&#1;` became characters on the way.
    normal::limit_nesting(&printable(&clean), NESTING_MAX)
}

/// What clean HTML says, without tags.
fn as_text(clean: &str) -> String {
    escape(&normal::text_of(clean), HTML_BYTES_MAX)
}

/// As much of the text as fits as HTML.
fn escape(text: &str, bytes_max: usize) -> String {
    let mut html = String::new();
    for c in text.chars() {
        let mut plain = [0; 4];
        let escaped = match c {
            '&' => "&amp;",
            '<' => "&lt;",
            '>' => "&gt;",
            '\u{a0}' => "&nbsp;",
            c => c.encode_utf8(&mut plain),
        };
        if html.len() + escaped.len() > bytes_max {
            break;
        }
        html.push_str(escaped);
    }
    html
}

/// With every `<` after so many tags escaped.
fn limit_tags(html: &str, tags_max: usize) -> Cow<'_, str> {
    let opening = |at: &usize| html.as_bytes().get(at + 1).is_some_and(u8::is_ascii_alphabetic);
    let mut tags = html.match_indices('<').map(|(at, _)| at).filter(opening);
    match tags.nth(tags_max).and_then(|at| html.split_at_checked(at)) {
        Some((head, tail)) => Cow::Owned(format!("{head}{}", tail.replace('<', "&lt;"))),
        None => Cow::Borrowed(html),
    }
}

/// With the `<` of further tags of formatting with attributes escaped.
fn limit_formatting(html: &str, formatted_max: usize) -> Cow<'_, str> {
    let (mut languages, mut formatted) = (HashSet::new(), 0);
    let mut is_surplus = |at: &usize| {
        let tag = html.get(at + 1..).unwrap_or_default();
        let language = language(tag);
        if !is_formatted(tag) || language.is_some_and(|it| languages.contains(it)) {
            return false;
        }
        let is_surplus = formatted == formatted_max;
        if !is_surplus {
            formatted += 1;
            languages.extend(language);
        }
        is_surplus
    };
    let (mut limited, mut copied) = (String::new(), 0);
    for at in html.match_indices('<').map(|(at, _)| at).filter(|at| is_surplus(at)) {
        limited.push_str(html.get(copied..at).unwrap_or_default());
        limited.push_str("&lt;");
        copied = at + 1;
    }
    if copied == 0 {
        return Cow::Borrowed(html);
    }
    limited.push_str(html.get(copied..).unwrap_or_default());
    Cow::Owned(limited)
}

fn is_formatted(tag: &str) -> bool {
    let name_bytes = tag.bytes().take_while(u8::is_ascii_alphanumeric).count();
    tag.split_at_checked(name_bytes).is_some_and(|(name, rest)| {
        !rest.starts_with('>') && FORMATTING.iter().any(|it| it.eq_ignore_ascii_case(name))
    })
}

/// The class of a code block, in the form that needs no parser.
fn language(tag: &str) -> Option<&str> {
    let (class, _) = tag.strip_prefix("code class=\"")?.split_once("\">")?;
    is_language(class).then_some(class)
}

/// One line of text for titles and names: no control characters, single spaces, and an end at `chars_max`.
pub fn plain_line(text: &str, chars_max: usize) -> String {
    let spaced = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let line = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(chars_max).collect::<String>().trim_end().to_owned()
}

/// Text without control characters other than line breaks and tabs. A database may refuse NUL, and a terminal
/// obeys the others.
pub fn printable(text: &str) -> Cow<'_, str> {
    let unwanted = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(unwanted) {
        return Cow::Borrowed(text);
    }
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    Cow::Owned(text.replace(unwanted, ""))
}

/// Characters without a shape, and marks that turn text: a name with them looks like another (`gpj.exe` could read
/// `exe.jpg`), and some file systems skip them.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    )
}

/// As much of the text as fits, never half a character.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}

/// What becomes of an attribute's value; `None` leaves the attribute out.
fn attribute<'u>(tag: &str, name: &str, value: &'u str) -> Option<Cow<'u, str>> {
    let number = || value.len() <= DIGITS_MAX && value.bytes().all(|b| b.is_ascii_digit());
    let keeps = match (tag, name) {
        ("img", "src") => has_web_scheme(value),
        ("code", "class") => is_language(value),
        ("ul", "data-type") => value == "taskList",
        ("li", "data-type") => value == "taskItem",
        ("li", "data-checked") => matches!(value, "true" | "false"),
        (_, "align") => matches!(value, "left" | "right" | "center"),
        (_, "colspan" | "height" | "rowspan" | "start" | "width") => !value.is_empty() && number(),
        _ => true,
    };
    keeps.then_some(Cow::Borrowed(value))
}

fn has_web_scheme(value: &str) -> bool {
    let scheme = value.trim_start().split_once(':').map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn is_language(class: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"+-_#.".contains(&b);
    class.len() <= LANGUAGE_BYTES_MAX
        && class
            .strip_prefix("language-")
            .is_some_and(|name| !name.is_empty() && name.bytes().all(letters))
}
