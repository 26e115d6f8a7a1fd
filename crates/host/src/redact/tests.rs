//! Tests of redaction.

use proptest::prelude::*;
use serde_json::{Value, json as value};

use super::*;

#[test]
fn r_81_lines_with_a_marker_are_hidden_whole_in_any_case() {
    for marked in [
        "Authorization: Bearer abc",
        "< authorization:x",
        "export API_KEY=sk-1",
        "ApiKey=1",
        "url?password=hunter2&x=1",
        "token=",
        "CLIENT_SECRET=\u{1F511}",
        "say \"GITHUB_TOKEN=x\"",
    ] {
        assert_eq!(line(marked), "[REDACTED]", "{marked}");
    }
    for plain in [
        "",
        "token = x",
        "tokens=5",
        "authorization",
        "authorization :",
        "a token: see below",
        "=:=:",
        "s\u{212a}ecret",
    ] {
        assert_eq!(line(plain), plain);
    }
}

#[test]
fn strings_under_sensitive_keys_are_hidden_and_nothing_else() {
    for (before, after) in [
        (r#"{"api_key":"sk"}"#, r#"{"api_key":"[REDACTED]"}"#),
        (
            r#"{ "X-Authorization" : "a", "b":"c" }"#,
            r#"{ "X-Authorization" : "[REDACTED]", "b":"c" }"#,
        ),
        (r#"{"accessToken":"a\"b\\","n":1}"#, r#"{"accessToken":"[REDACTED]","n":1}"#),
        (r#"{"password":""}"#, r#"{"password":"[REDACTED]"}"#),
        (r#"{"api\u005fKEY":"x"}"#, r#"{"api\u005fKEY":"[REDACTED]"}"#),
        ("{\"secret\":\n  \"x\"}", "{\"secret\":\n  \"[REDACTED]\"}"),
        (
            r#"{"secrets":["a",{"k":"v","n":[1,"w"]}],"x":"y"}"#,
            r#"{"secrets":["[REDACTED]",{"k":"[REDACTED]","n":[1,"[REDACTED]"]}],"x":"y"}"#,
        ),
        (r#"INFO body={"apikey":"x"} done"#, r#"INFO body={"apikey":"[REDACTED]"} done"#),
        (r#"{"k\\":"a","token\\":"x"}"#, r#"{"k\\":"a","token\\":"[REDACTED]"}"#),
    ] {
        assert_eq!(json(before), after);
        assert_eq!(json(after), after, "a second time changes nothing");
    }
    for plain in [
        r#"{"token":5,"secret":null,"password":true,"x":"token"}"#,
        r#"{"input_tokens":"many","max_tokens":["a"]}"#,
        r#"{"x":"token","y":"z"}"#,
        r#"{"token":[1,{"a":2}],"b":"c"}"#,
        r#"{"tok":"en:"}"#,
    ] {
        assert!(matches!(json(plain), Cow::Borrowed(same) if same == plain), "{plain}");
    }
    assert_eq!(json(r#"{"secret_tokens":"x"}"#), r#"{"secret_tokens":"[REDACTED]"}"#);
}

#[test]
fn json_inside_of_json_strings_is_seen_at_every_level() {
    let mut document = value!({"a": "b", "api_key": "s\"e\\c\nret\\", "in": {"token": ["\\", 1]}});
    let mut hidden =
        value!({"a": "b", "api_key": "[REDACTED]", "in": {"token": ["[REDACTED]", 1]}});
    for level in 0..6 {
        assert_eq!(json(&document.to_string()), hidden.to_string(), "level {level}");
        let wrap = |inner: &Value| {
            let pretty = serde_json::to_string_pretty(inner).unwrap();
            value!({"type": "text", "text": pretty, "after": ["x"]})
        };
        (document, hidden) = (wrap(&document), wrap(&hidden));
    }
}

#[test]
fn a_text_cut_anywhere_shows_nothing_of_the_secret() {
    let whole = r#"{"a":{"text":"{\"api_key\":\"s3cr3t\",\"b\":1}"},"token":["s3cr3t"]}"#;
    for cut in 0..=whole.len() {
        let shown = json(&whole[..cut]).into_owned();
        assert!(!shown.contains('3'), "{shown}");
    }
    let (shown, ends_inside) = json::redact(r#"x":1,"token":"abc"#);
    assert_eq!((shown.as_ref(), ends_inside), (r#"x":1,"token":"[REDACTED]"#, true));
    assert!(json::redact(r#"{"token":"#).1);
    assert!(!json::redact(r#"{"token":"abc""#).1);
    assert!(!json::redact(r#"{"token":5"#).1);
    // The string around it ends first.
    assert_eq!(
        json(r#"{"t":"\"token\":\"abc","b":"c"}"#),
        r#"{"t":"\"token\":\"[REDACTED]","b":"c"}"#
    );
}

#[test]
fn several_lines_are_redacted_each_by_itself_and_json_across_them() {
    let before = "one\nTOKEN=x\n{\"secrets\":{\n \"a\":\"b\"}}\nlast";
    assert_eq!(text(before), "one\n[REDACTED]\n{\"secrets\":{\n \"a\":\"[REDACTED]\"}}\nlast");
    assert!(matches!(text("a\nb: c\n"), Cow::Borrowed(_)));
}

#[test]
fn r_81_a_prompt_in_a_line_is_replaced_raw_and_as_json() {
    let prompt = "Please fix \"it\" in café\nand say so";
    let input = Input::new(prompt);
    let json = Value::from(prompt).to_string();
    assert_eq!(input.hide(&format!("{{\"p\":{json}}}")), "{\"p\":\"[task input redacted]\"}");
    let ascii = json.replace('é', "\\u00e9");
    assert_eq!(input.hide(&ascii), "\"[task input redacted]\"");
    let one_line = Input::new("  do the thing with 😀 now\n");
    assert_eq!(
        one_line.hide("> do the thing with 😀 now! do the thing with 😀 now"),
        "> [task input redacted]! [task input redacted]"
    );
    assert_eq!(one_line.hide("do the thing with \\ud83d\\ude00 now"), "[task input redacted]");
    assert!(matches!(one_line.hide("do the other thing"), Cow::Borrowed(_)));
    assert!(!format!("{input:?}").contains("fix"));
}

#[test]
fn r_81_a_short_prompt_is_replaced_only_where_it_is_everything() {
    let input = Input::new("fix it");
    assert_eq!(input.hide("fix it"), "[task input redacted]");
    assert_eq!(input.hide("  fix it\r"), "[task input redacted]");
    assert_eq!(
        input.hide(r#"{"p":"fix it","q":"fix it!"}"#),
        r#"{"p":"[task input redacted]","q":"fix it!"}"#
    );
    assert_eq!(input.hide("I will fix it now"), "I will fix it now");
    assert_eq!(Input::new("café").hide("[\"caf\\u00e9\"]"), "[\"[task input redacted]\"]");
    assert_eq!(Input::new("  ").hide(""), "");
    assert_eq!(Input::new(&"x".repeat(5000)).hide("xxxx"), "xxxx");
}

/// What [`json`] does, on a parsed document.
fn reference(value: &mut Value, hidden: bool) {
    match value {
        Value::String(text) if hidden => REDACTED.clone_into(text),
        Value::Array(items) => items.iter_mut().for_each(|item| reference(item, hidden)),
        Value::Object(fields) => {
            for (key, field) in fields {
                let key = key.to_ascii_lowercase();
                let key = key.strip_suffix("_tokens").unwrap_or(&key);
                let words = ["authorization", "password", "secret", "token", "api_key", "apikey"];
                reference(field, hidden || words.iter().any(|word| key.contains(word)));
            }
        }
        _ => {}
    }
}

fn document() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "[a-z\"\\\\:]{0,4}",
        Just("x_Token".to_owned()),
        Just("API_KEY\\".to_owned()),
        Just("pass\"word".to_owned()),
        Just("input_tokens".to_owned()),
        Just("\"secret".to_owned()),
    ];
    // No quotes beside colons in values: what looks like JSON in a string is treated like JSON.
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(Value::from),
        "[a-z\\\\\n é]{0,6}".prop_map(Value::from),
        "[a-z\"\\\\]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_document_is_redacted_as_if_it_had_been_parsed(document in document(), pretty: bool) {
        let write = |value: &Value| match pretty {
            true => serde_json::to_string_pretty(value).unwrap(),
            false => value.to_string(),
        };
        let mut expected = document.clone();
        reference(&mut expected, false);
        let written = write(&document);
        prop_assert_eq!(json(&written), write(&expected));
    }

    #[test]
    fn nothing_panics_and_twice_is_once(text_in in "([\"\\\\:\\[\\]{}a ,=\n]|token|api_key|é){0,40}") {
        let once = json(&text_in).into_owned();
        prop_assert_eq!(&json(&once), &once);
        let once = text(&text_in).into_owned();
        prop_assert_eq!(&text(&once), &once);
        prop_assert!(line(&text_in).len() <= text_in.len() + REDACTED.len() * text_in.len());
    }

    #[test]
    fn text_without_colon_and_equals_is_passed_through(text_in in "[^:=]{0,200}") {
        prop_assert!(matches!(line(&text_in), Cow::Borrowed(same) if same == text_in));
    }
}
