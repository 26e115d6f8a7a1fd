//! Hostile and ordinary HTML and Markdown.

use proptest::prelude::*;

use super::harmless::tags;
use super::*;

#[test]
fn what_an_editor_writes_stays_as_it_is() {
    let written = [
        "<h2>Plan</h2><p>One <strong>two</strong> <em>three</em> <code>f(x)</code><br>four</p>",
        "<ul><li><p>a</p><ul><li>b</li></ul></li></ul><ol start=\"3\"><li>c</li></ol>",
        "<pre><code class=\"language-rust\">let a = 1 &lt; 2;\n</code></pre>",
        "<blockquote><p>said</p></blockquote><hr>",
        "<table><tbody><tr><th colspan=\"2\">h</th></tr><tr><td>a</td><td>b</td></tr></tbody></table>",
        "<img src=\"https://example.com/a.png\" alt=\"a\" width=\"20\">",
    ];
    for html in written {
        assert_eq!(sanitize_html(html), html);
    }
}

#[test]
fn a_link_gets_a_rel_and_keeps_its_address() {
    let html =
        sanitize_html("<a href=\"https://example.com/?a=1&b=2\" target=_blank onclick=x()>a</a>");
    let rel = "rel=\"noopener noreferrer nofollow\"";
    assert_eq!(html, format!("<a href=\"https://example.com/?a=1&amp;b=2\" {rel}>a</a>"));
    assert!(sanitize_html("<a href='mailto:a@example.com'>a</a>").contains("mailto:a@example.com"));
}

#[test]
fn a_task_list_keeps_its_boxes_and_an_input_is_nothing_else() {
    let list = "<ul data-type=\"taskList\"><li data-type=\"taskItem\" data-checked=\"true\"><label>\
                <input type=\"checkbox\" checked><span></span></label><div><p>done</p></div></li></ul>";
    let clean = sanitize_html(list);
    assert!(clean.contains("data-checked=\"true\""), "{clean}");
    assert!(clean.contains("checked=\"\""), "{clean}");
    let clean = sanitize_html("<input type=password name=p value=v autofocus>");
    assert!(clean.contains("type=\"checkbox\"") && clean.contains("disabled"), "{clean}");
    assert!(!clean.contains("password") && !clean.contains("value"), "{clean}");
}

#[test]
fn script_and_its_text_go() {
    for html in [
        "a<script>alert(1)</script>b",
        "a<SCRIPT SRC=//evil.example/x.js></SCRIPT>b",
        "a<style>* { color: red }</style>b",
        "a<svg onload=alert(1)><script>alert(1)</script></svg>b",
        "a<iframe src=\"javascript:alert(1)\">x</iframe>b",
        "a<math><mtext><script>alert(1)</script></mtext></math>b",
        "a<template><img src=x onerror=alert(1)></template>b",
        "a<!-- <img src=x onerror=alert(1)> -->b",
        "a<object data=x>y</object>b",
    ] {
        assert_eq!(sanitize_html(html), "ab", "{html}");
    }
}

#[test]
fn what_tries_to_script_is_harmless() {
    for html in [
        "<svg onload=alert(1)>",
        "<img src=x onerror=alert(1)>",
        "<img src=\"javascript:alert(1)\"><img src=\"//evil.example/\">",
        "<img src=\"data:image/svg+xml;base64,AAAA\">",
        "<a href=\"jav&#x09;ascript:alert(1)\">a</a>",
        "<a href=\"jav\u{0}ascript:alert(1)\">a</a>",
        "<a href=\" \u{1}javascript:alert(1)\">a</a>",
        "<a href=\"&#1;javascript:alert(1)\">a</a>",
        "<a href=\"JaVaScRiPt:alert(1)\">a</a>",
        "<a href=\"data:text/html,<script>alert(1)</script>\">a</a>",
        "<a href=\"vbscript:x\">a</a><a href=\"//evil.example\">b</a><a href=\"/relative\">c</a>",
        "<a href=\"http://a.example/\" style=\"position:fixed\" id=x name=y class=z>a</a>",
        "<form action=x><input type=submit><button formaction=javascript:x>a</button></form>",
        "<base href=//evil.example><meta http-equiv=refresh content=0><link rel=stylesheet href=x>",
        "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\"></noscript>",
        "<math><mtext><table><mglyph><style><!--</style>\
         <img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\">",
        "<p title=\"><script>alert(1)</script>\">a</p>",
        "<<script>alert(1)//<</script>",
        "<img src=\"https://a.example/\" width=\"100%;onload=x\" alt='\"><script>x</script>'>",
        "<code class=\"language-x&quot; onclick=&quot;y\">a</code>",
        "<xmp><img src=x onerror=alert(1)></xmp><plaintext><script>alert(1)</script>",
    ] {
        assert_harmless(&sanitize_html(html));
        assert_harmless(&markdown_to_html(html));
        assert_harmless(&markdown_to_html(&html_to_markdown(html)));
    }
}

#[test]
fn a_link_without_a_known_scheme_keeps_its_text_only() {
    for address in [
        "javascript:alert(1)",
        "jav&#x09;ascript:x",
        "data:text/html,x",
        "//a.example/",
        "/a",
        "#a",
    ] {
        let clean = sanitize_html(&format!("<a href=\"{address}\">text</a>"));
        assert!(!clean.contains("href") && clean.contains("text"), "{address}: {clean}");
    }
}

#[test]
fn control_characters_go_in_whatever_form_they_come() {
    assert_eq!(sanitize_html("a\u{0}b\u{1b}[31mc&#27;d&#x85;e\r\nf\tg"), "ab[31mcd…e\nf\tg");
    assert_eq!(html_to_markdown("a\u{0}b"), "ab");
    assert_eq!(markdown_to_html("a\u{0}b"), "<p>ab</p>\n");
    assert_eq!(printable("a\rb\r\nc\u{7f}"), "a\nb\nc");
}

#[test]
fn a_line_is_one_line() {
    assert_eq!(plain_line("  a\n\tb\u{0}\u{202f}c  ", 255), "a b c");
    assert_eq!(plain_line("äöü", 2), "äö");
    assert_eq!(plain_line("a b", 2), "a");
    assert_eq!(plain_line("\n", 9), "");
}

#[test]
fn cutting_never_splits_a_character() {
    assert_eq!(cut("aé", 2), "a");
    assert_eq!(cut("aé", 3), "aé");
    assert_eq!(cut("aé", 99), "aé");
    assert_eq!(cut("é", 0), "");
}

#[test]
fn nesting_is_bounded_and_the_text_stays() {
    for tag in ["div", "blockquote", "b", "ul><li", "table><tr><td"] {
        let clean = sanitize_html(&format!("{}deep", format!("<{tag}>").repeat(500)));
        assert!(clean.contains("deep"), "{tag}: {clean}");
        let (mut depth, mut deepest) = (0, 0);
        for tag in tags(&clean) {
            depth = if tag[0].starts_with('/') { depth - 1 } else { depth + 1 };
            deepest = deepest.max(depth);
        }
        assert_eq!((depth, deepest), (0, NESTING_MAX as i32), "{tag}");
    }
}

#[test]
fn a_parser_has_few_tags_to_open_anew_in_each_paragraph() {
    let tag = |n: usize| format!("<B x={n}>");
    let most: String = (0..FORMATTED_MAX).map(tag).collect();
    let usual =
        "<pre><code class=\"language-rust\">x</code></pre><b>x</b><a href=x>x</a>".repeat(9);
    let (last, more) = (most.clone() + "x", format!("{most}<i\nx><font/x>{usual}<tt x='>'>"));
    assert_eq!(limit_formatting(&last, FORMATTED_MAX), last);
    let kept = usual.replace("<code", "&lt;code");
    let limited = format!("{most}&lt;i\nx>&lt;font/x>{kept}&lt;tt x='>'>");
    assert_eq!(limit_formatting(&more, FORMATTED_MAX), limited);
    // It is what the cleaner does first.
    assert!(sanitize_html(&more).contains("&lt;font/x&gt;"));
    assert_eq!(limit_formatting(&usual, 1), usual);
}

#[test]
fn clean_html_stays_as_it_is() {
    let deep = "<div>".repeat(NESTING_MAX - 2);
    for html in [
        "<p><button><p>a</p></button>",
        "<table><input type=hidden><tr><td>a</table>",
        "<a href=http://a.b><table><a href=http://c.d>x</table>",
        "<pre>\n\n\na</pre>",
        "a&nbsp;b \u{a0} \u{b0}",
        &format!("{deep}<table><tr><td>a</table>b"),
    ] {
        let clean = sanitize_html(html);
        assert_eq!(sanitize_html(&clean), clean, "{html}");
        assert_eq!(sanitize_whole(html), Some(clean), "{html}");
    }
    // What a page shows keeps its empty lines.
    assert_eq!(sanitize_html("<pre>\n\na</pre>"), "<pre>\n\na</pre>");
    // What becomes longer than there may be is text, and stays so.
    let long = "<a href=http://a.b>\u{a0}x</a>".repeat(4_000);
    assert_eq!(sanitize_html(&long), format!("x{}", "&nbsp;x".repeat(3_999)));
    assert_eq!(sanitize_html(&sanitize_html(&long)), sanitize_html(&long));
    assert_eq!(sanitize_whole(&long), None);
}

/// A small stack, since that is what runs out.
fn with_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(512 * 1024).spawn(test).unwrap();
    thread.join().unwrap();
}

#[test]
fn elements_in_each_other_without_end_overflow_no_stack() {
    with_small_stack(|| {
        for tag in ["<i><table>", "> ", "- ", "[", "*a "] {
            let text = tag.repeat(50_000);
            assert_harmless(&sanitize_html(&text));
            html_to_markdown(&text);
            assert_harmless(&markdown_to_html(&text));
        }
        // This one costs time by its depth; what comes after the bound on tags is text.
        let clean = sanitize_html(&"<div>".repeat(40_000));
        assert!(clean.contains("&lt;div&gt;"), "{}", cut(&clean, 2_000));
    });
}

#[test]
fn huge_input_stays_within_the_bound() {
    let texts = [
        "x".repeat(3 * HTML_BYTES_MAX),
        "é".repeat(HTML_BYTES_MAX),
        "<a href=http://a.b>x</a>".repeat(4_000),
        format!("<a title=\"{}\">", "x".repeat(HTML_BYTES_MAX)),
        format!(
            "<table><tr><th>{}</th></tr>{}",
            "x".repeat(90_000),
            "<tr><td>a</td></tr>".repeat(1_000)
        ),
        format!("{}{}", "<blockquote>".repeat(31), "x<br>".repeat(9_000)),
        format!("{}\n{}\n{}", "|a".repeat(1_000), "|-".repeat(1_000), "|x\n".repeat(3_000)),
    ];
    for text in texts {
        for out in [sanitize_html(&text), html_to_markdown(&text), markdown_to_html(&text)] {
            assert!(out.len() <= HTML_BYTES_MAX, "{} bytes of {}", out.len(), cut(&text, 40));
        }
    }
    let clean = sanitize_html(&"&<".repeat(60_000));
    assert!(clean.len() <= HTML_BYTES_MAX && clean.ends_with("&amp;&lt;"), "{}", clean.len());
}

#[test]
fn markdown_that_was_cut_says_so() {
    let html = markdown_to_html(&"word ".repeat(MARKDOWN_BYTES_MAX));
    assert!(html.ends_with("<p>[… the rest was cut]</p>"));
    assert!(!markdown_to_html(&"x".repeat(MARKDOWN_BYTES_MAX)).contains("cut"));
}

#[test]
fn f_043_html_becomes_markdown() {
    let pairs = [
        ("", ""),
        (
            "<p>One <strong>two</strong> <em>three</em></p><p>four</p>",
            "One **two** *three*\n\nfour",
        ),
        ("<h2>What I found</h2><p>x</p>", "## What I found\n\nx"),
        ("<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul>", "- a\n- b\n\n  - c"),
        ("<ol start=\"3\"><li>a</li><li>b</li></ol>", "3. a\n4. b"),
        (
            "<pre><code class=\"language-rust\">let a = 1 &lt; 2;\n</code></pre>",
            "```rust\nlet a = 1 < 2;\n```",
        ),
        ("<pre>a\n  * b\n# c &lt;</pre>", "```\na\n  * b\n# c <\n```"),
        (
            "<p>Delete <del>production</del> <s>all</s> <strike>of</strike> staging</p>",
            "Delete ~~production~~ ~~all~~ ~~of~~ staging",
        ),
        ("<del><p>one</p><p>two</p></del><s> </s>", "<del>\n\none\n\ntwo\n\n</del>"),
        ("<p>a <s><del>x</del></s></p>", "a <del>~~x~~</del>"),
        ("<del><h2>Old</h2></del>", "<del>\n\n## Old\n\n</del>"),
        ("<pre>\n\na</pre>", "```\n\na\n```"),
        ("10<sup>6</sup> H<sub>2</sub>O", "10<sup>6</sup> H<sub>2</sub>O"),
        ("<p>call <code>f(x)</code></p>", "call `f(x)`"),
        ("<blockquote><p>said</p></blockquote>", "> said"),
        ("<a href=\"https://example.com/a\">a</a>", "[a](https://example.com/a)"),
        ("<a href=\"https://example.com/a\">https://example.com/a</a>", "<https://example.com/a>"),
        ("<a href=\"javascript:x\">a</a>", "a"),
        ("a<script>b</script>", "a"),
        ("<p>5 * 3 = 15</p>", "5 \\* 3 = 15"),
        ("plain text", "plain text"),
    ];
    for (html, markdown) in pairs {
        assert_eq!(html_to_markdown(html), markdown, "{html}");
    }
}

#[test]
fn f_043_a_table_becomes_a_table_whether_or_not_it_has_a_head() {
    let head = "<table><thead><tr><th>a</th><th>b</th></tr></thead>\
                <tbody><tr><td>1</td><td>2|3<br>4</td></tr></tbody></table>";
    assert_eq!(html_to_markdown(head), "| a | b |\n| --- | --- |\n| 1 | 2\\|3 4 |");
    let none = "<p>x</p>\
                <table>\n<tr> <td><p>a</p></td> <td></td> </tr>\n<tr><td>1</td><td>2</td></tr></table>\
                <p>y</p>";
    assert_eq!(html_to_markdown(none), "x\n\n| a |  |\n| --- | --- |\n| 1 | 2 |\n\ny");
}

#[test]
fn f_043_a_task_list_says_what_is_done() {
    let list = "<ul><li><input type=\"checkbox\" checked>one</li><li><input type=\"checkbox\">two</li></ul>";
    assert_eq!(html_to_markdown(list), "- [x] one\n- [ ] two");
}

#[test]
fn markdown_becomes_html() {
    assert_eq!(
        markdown_to_html("# A\n\nb **c** `d`\n\n- e\n"),
        "<h1>A</h1>\n<p>b <strong>c</strong> <code>d</code></p>\n<ul>\n<li>e</li>\n</ul>\n"
    );
    assert_eq!(html_to_markdown(&markdown_to_html("- [x] e\n- [ ] f\n")), "- [x] e\n- [ ] f");
    assert!(
        markdown_to_html("```rust\na\n```").contains("<code class=\"language-rust\">a\n</code>")
    );
    assert!(markdown_to_html("|a|b|\n|-|-|\n|1|2<br>3|\n").contains("<td>2<br>\n3</td>"));
    assert!(markdown_to_html("~~a~~").contains("<del>a</del>"));
    assert_eq!(html_to_markdown(&markdown_to_html("~~gone~~ kept")), "~~gone~~ kept");
    assert!(markdown_to_html("[a](https://example.com)").contains("href=\"https://example.com\""));
}

#[test]
fn html_in_markdown_is_shown_and_not_obeyed() {
    assert!(markdown_to_html("A `x` and Vec<String>.").contains("Vec&lt;String&gt;"));
    assert!(markdown_to_html("<script>alert(1)</script>").contains("&lt;script&gt;"));
    assert!(markdown_to_html("a <b>c</b>").contains("&lt;b&gt;"));
}

#[test]
fn links_in_markdown_have_known_schemes_only() {
    for markdown in [
        "[a](javascript:alert(1))",
        "[a](<java\tscript:alert(1)>)",
        "[a](javascript&colon;alert(1))",
        "[a](JAVASCRIPT:alert(1))",
        "[a][b]\n\n[b]: javascript:alert(1)",
        "<javascript:alert(1)>",
        "![a](javascript:alert(1))",
        "![a](data:text/html;base64,PHNjcmlwdD4=)",
        "[a](vbscript:x) [a](/etc) [a](//evil.example)",
        "[a](https://a.example \"\\\" onclick=alert(1) x=\\\"\")",
    ] {
        let html = markdown_to_html(markdown);
        assert_harmless(&html);
        assert!(html.contains('a'), "{html}");
    }
}

/// Pieces that mean something to a parser, in any order.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(TAGS).prop_map(|tag| format!("<{tag}>")),
        3 => prop::sample::select(TAGS).prop_map(|tag| format!("</{tag}>")),
        1 => prop::sample::select(TAGS_WITH_TEXT).prop_map(|tag| format!("<{tag}>")),
        1 => prop::sample::select(TAGS_WITH_TEXT).prop_map(|tag| format!("</{tag}>")),
        1 => prop::sample::select(ATTRIBUTES)
            .prop_flat_map(|(tag, names)| ("[ -~]{0,12}", prop::sample::select(names)).prop_map(
                move |(value, name)| format!("<{tag} {name}=\"{value}\">")
            )),
        1 => Just("<a href=\"https://example.com/\">".to_owned()),
        3 => prop::sample::select(vec![
            "<!--", "-->", "<?", "?>", "<![CDATA[", "]]>", "&lt;", "&#0;", "&#27;", "&amp", "<", ">", "\"",
            "`", "|", "- ", "> ", "1. ", "\n", "\n\n", "```", "**", "[", "](", ")", "# ", "~~~",
            "\u{0}", "ü", "\t", "|-|", " ",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,8}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn nothing_panics_and_all_output_is_harmless(text in soup()) {
        let clean = sanitize_html(&text);
        assert_harmless(&clean);
        assert_harmless(&markdown_to_html(&text));
        assert_harmless(&markdown_to_html(&html_to_markdown(&text)));
        prop_assert_eq!(sanitize_html(&clean), clean);
    }

    #[test]
    fn text_without_markup_passes_both_ways(text in "[a-zA-Zäöü ,.]{0,200}") {
        prop_assert_eq!(sanitize_html(&text), text.clone());
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        prop_assert_eq!(words(&html_to_markdown(&text)), words(&text));
    }
}
