//! HTML to Markdown, for agents (F-043), and Markdown to HTML, for what agents write.

use std::borrow::Cow;
use std::sync::LazyLock;

use htmd::element_handler::{HandlerResult, Handlers};
use htmd::options::{BulletListMarker, LinkStyle, Options};
use htmd::{Element, HtmlToMarkdown};
use pulldown_cmark::{Event, Parser};

use super::{
    HTML_BYTES_MAX, MARKDOWN_BYTES_MAX, NESTING_MAX, cut, normal, printable, sanitize_html,
};

/// Depth of the tree that the converter, which is recursive, is given. A parser may add some to what the
/// cleaner left; what is deeper yet becomes plain text.
const TREE_DEPTH_MAX: usize = 2 * NESTING_MAX;
/// Pieces of Markdown that are made into HTML. What comes after is left out: a table of many columns would
/// otherwise fill the memory with empty cells.
const EVENTS_MAX: usize = 100_000;

/// What stands at the end of Markdown that was cut.
const CUT_MARK: &str = "<p>[… the rest was cut]</p>";

static CONVERTER: LazyLock<HtmlToMarkdown> = LazyLock::new(|| {
    let options = Options {
        bullet_list_marker: BulletListMarker::Dash,
        ul_bullet_spacing: 1,
        ol_number_spacing: 1,
        link_style: LinkStyle::InlinedPreferAutolinks,
        ..Options::default()
    };
    // The library's own table pads every cell to the longest of its column: a table of one long cell and many
    // short ones becomes gigabytes.
    HtmlToMarkdown::builder()
        .options(options)
        .add_handler(vec!["del", "s", "strike"], struck)
        .add_handler(vec!["sub", "sup"], raised)
        .add_handler(vec!["input"], checkbox)
        .add_handler(vec!["td", "th"], cell)
        .add_handler(vec!["tr"], row)
        .add_handler(vec!["thead", "tbody", "tfoot"], rows)
        .add_handler(vec!["table"], table)
        .build()
});

/// The HTML as Markdown. It is cleaned first: what a page would not show, an agent does not see.
pub fn html_to_markdown(html: &str) -> String {
    let clean = sanitize_html(html);
    let plain = || normal::text_of(&clean);
    let Ok(tree) = CONVERTER.html_to_tree(&with_code(&clean)) else { return plain() };
    let mut level = vec![tree.clone()];
    for _ in 0..TREE_DEPTH_MAX {
        let below = level.iter().flat_map(|node| node.children.borrow().clone());
        level = below.collect();
    }
    if !level.is_empty() {
        return plain();
    }
    let markdown = CONVERTER.tree_to_markdown(&tree);
    // Quotes in quotes repeat their marks on each line.
    if markdown.len() > HTML_BYTES_MAX { plain() } else { markdown.trim().to_owned() }
}

/// Markdown as clean HTML. HTML in it is shown as it was written, not obeyed: `Vec<String>` stays readable.
pub fn markdown_to_html(markdown: &str) -> String {
    let kept = printable(cut(markdown, MARKDOWN_BYTES_MAX));
    let mark = if markdown.len() > MARKDOWN_BYTES_MAX { CUT_MARK } else { "" };
    let options = pulldown_cmark::Options::ENABLE_TABLES
        | pulldown_cmark::Options::ENABLE_STRIKETHROUGH
        | pulldown_cmark::Options::ENABLE_TASKLISTS;
    let mut depth = 0_usize;
    let events = Parser::new_ext(&kept, options).take(EVENTS_MAX).filter(|event| match event {
        Event::Start(_) => {
            depth += 1;
            depth <= NESTING_MAX
        }
        Event::End(_) => {
            depth = depth.saturating_sub(1);
            depth < NESTING_MAX
        }
        _ => true,
    });
    let mut html = String::new();
    pulldown_cmark::html::push_html(&mut html, events.map(literal));
    html.push_str(mark);
    sanitize_html(&html)
}

/// HTML within Markdown as text, except for line breaks, without which no cell of a table has two lines.
fn literal(event: Event<'_>) -> Event<'_> {
    match event {
        Event::InlineHtml(html) if matches!(&*html, "<br>" | "<br/>" | "<br />") => {
            Event::HardBreak
        }
        Event::Html(html) | Event::InlineHtml(html) => Event::Text(html),
        event => event,
    }
}

/// Text in `pre` as a block of code, which is the one way in Markdown to keep its lines.
fn with_code(clean: &str) -> Cow<'_, str> {
    let (open, close) = ("<pre>", "</pre>");
    let mut parts = clean.split(open);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let block = part.split_once(close).filter(|(inner, _)| !inner.contains("<code"));
        match block {
            Some((inner, rest)) => {
                // The parser leaves out a line break that `pre` begins with, but not one of `code`.
                let inner = inner.strip_prefix('\n').unwrap_or(inner);
                out.extend([open, "<code>", inner, "</code>", close, rest]);
            }
            None => out.extend([open, part]),
        }
    }
    if out.len() == clean.len() { Cow::Borrowed(clean) } else { Cow::Owned(out) }
}

/// What was struck out does not hold any more: without its marks it would be an order like the rest.
fn struck(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let content = handlers.walk_children(element.node).content;
    let inner = content.trim();
    Some(if inner.is_empty() {
        content.into()
    } else if content.contains('\n') {
        // Marks reach no further than a paragraph; the element does, and is Markdown too.
        format!("\n\n<del>\n\n{inner}\n\n</del>\n\n").into()
    } else if inner.contains('~') {
        content.replacen(inner, &format!("<del>{inner}</del>"), 1).into()
    } else {
        content.replacen(inner, &format!("~~{inner}~~"), 1).into()
    })
}

/// `10<sup>6</sup>` as it is, which is Markdown too: as `106` it would be another number.
fn raised(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let content = handlers.walk_children(element.node).content;
    let tag = element.tag;
    Some(
        if content.trim().is_empty() { content } else { format!("<{tag}>{content}</{tag}>") }
            .into(),
    )
}

fn checkbox(_: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let checked = element.attrs.iter().any(|attribute| &*attribute.name.local == "checked");
    Some(if checked { "[x] " } else { "[ ] " }.into())
}

fn cell(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let content = handlers.walk_children(element.node).content.replace('|', "\\|");
    let content = content.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(format!(" {content} |").into())
}

fn row(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let cells = handlers.walk_children(element.node).content;
    Some(format!("\n| {}\n", cells.trim()).into())
}

fn rows(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    Some(handlers.walk_children(element.node))
}

/// The first row is the head, whether the HTML said so or not: Markdown knows no other table.
fn table(handlers: &dyn Handlers, element: Element<'_>) -> Option<HandlerResult> {
    let content = handlers.walk_children(element.node).content;
    let (rows, others): (Vec<_>, Vec<_>) = content.lines().partition(|line| line.starts_with("| "));
    let mut lines: Vec<String> = others.iter().map(|line| line.trim().to_owned()).collect();
    lines.retain(|line| !line.is_empty());
    if !lines.is_empty() {
        lines.push(String::new());
    }
    for (n, row) in rows.into_iter().enumerate() {
        lines.push(row.to_owned());
        if n == 0 {
            let columns = row.matches(" |").count();
            lines.push(format!("|{}", " --- |".repeat(columns)));
        }
    }
    Some(format!("\n\n{}\n\n", lines.join("\n")).into())
}
