//! What holds the workspace in shape, as functions that a test and the binary `tidy` call.
//!
//! Owns: the scan of sources for tests, requirements, bounds and file heads, and the rules for which crate
//! may know which. It reads lines, not syntax: a test that a macro generates is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;
use serde_json::Value;

/// The table of requirements and tests, from the root of the repository.
pub const REQUIREMENTS: &str = "docs/requirements.md";
/// What the third column says when no test names a requirement.
const NO_TEST: &str = "—";

/// Which crates each crate may depend on. Anybody may have testkit as a dev-dependency, and nobody else.
const ARROWS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("proto", &[]),
    ("journal", &["core"]),
    ("agents", &["core"]),
    ("supervise", &["core"]),
    ("host", &["core", "proto", "journal", "agents", "supervise"]),
    ("server", &["core", "proto"]),
    ("cli", &["core", "proto", "journal", "agents", "supervise", "host", "server"]),
    ("testkit", &["core", "proto", "host"]),
];

/// The root of the repository.
pub fn root() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_folder.ancestors().nth(2).expect("crates/testkit");
    root.to_owned()
}

/// A source file: its path from the root, and its text.
#[derive(Debug, Clone)]
pub struct Source {
    /// From the root of the repository.
    pub path: String,
    /// All of it.
    pub text: String,
}

/// All Rust sources of the repository, in the order of their paths.
pub fn sources() -> Vec<Source> {
    let root = root();
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file type");
            if kind.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(".rs") {
                let text = fs::read_to_string(&path).expect("a readable source");
                let path = path.strip_prefix(&root).expect("a path below the root");
                let path = path.to_string_lossy().into_owned();
                sources.push(Source { path, text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Files that do not open with `//!`.
pub fn without_head(sources: &[Source]) -> Vec<&str> {
    let headless = sources.iter().filter(|source| !source.text.starts_with("//!"));
    headless.map(|source| source.path.as_str()).collect()
}

/// A `const …_MAX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Its name.
    pub name: String,
    /// `path:line`.
    pub at: String,
    /// The first line of its doc comment block, empty when there is none.
    pub doc: String,
}

/// All bounds of the repository.
pub fn bounds(sources: &[Source]) -> Vec<Bound> {
    let declared =
        Regex::new(r"^\s*(pub(\([^)]*\))?\s+)?const\s+(\w+_MAX)\s*:").expect("a pattern");
    let mut bounds = Vec::new();
    for source in sources {
        let mut doc = String::new();
        for (n, line) in source.text.lines().enumerate() {
            let candidate = Some(line).filter(|line| line.contains("_MAX"));
            if let Some(found) = candidate.and_then(|line| declared.captures(line)) {
                let name = found.get(3).map_or("", |name| name.as_str()).to_owned();
                let at = format!("{}:{}", source.path, n + 1);
                bounds.push(Bound { name, at, doc: std::mem::take(&mut doc) });
            }
            match line.trim().strip_prefix("///") {
                Some(text) if doc.is_empty() => doc = text.trim().to_owned(),
                Some(_) => {}
                None if line.trim().starts_with("#[") => {}
                None => doc.clear(),
            }
        }
    }
    bounds
}

/// Requirement (`R-17`, `F-052`) to the tests that name it, each as `crate::function`.
pub type Named = BTreeMap<String, BTreeSet<String>>;

/// The requirements that tests name, by their function's name (`r_17_…`, `f_052_…`), or by `R-17` in a
/// comment above the function or in it. Tests of testkit itself show none: they speak of numbers as examples.
pub fn named(sources: &[Source]) -> Named {
    let attribute = Regex::new(r"^#\[(\w+::)*test\b").expect("a pattern");
    let function = Regex::new(r"^(\s*)(pub\s+)?(async\s+)?fn\s+(\w+)").expect("a pattern");
    let number = Regex::new(r"\b(R-\d{2}|F-\d{3})\b").expect("a pattern");
    let mut named = Named::new();
    for source in sources {
        if source.path.starts_with("crates/testkit/") {
            continue;
        }
        let crate_name = source.path.split('/').nth(1).unwrap_or_default();
        let mut test: Option<(String, usize)> = None;
        let mut is_test = false;
        let mut pending = BTreeSet::new();
        for line in source.text.lines() {
            let code = line.trim_start();
            let (code, comment) = code.find("//").map_or((code, ""), |at| code.split_at(at));
            let found = number.captures_iter(comment);
            pending.extend(found.filter_map(|n| Some(n.get(1)?.as_str().to_owned())));
            is_test |= code.starts_with("#[") && attribute.is_match(code);
            let declaration = Some(line).filter(|line| line.contains("fn "));
            if let Some(found) = declaration.and_then(|line| function.captures(line)) {
                let indent = found.get(1).map_or(0, |spaces| spaces.len());
                let name = found.get(4).map_or("", |name| name.as_str());
                // A suite that several stores run has its tests' functions in a list, without an attribute.
                let names = numbers_in_name(name);
                if std::mem::take(&mut is_test) || !names.is_empty() {
                    pending.extend(names);
                    test = Some((format!("{crate_name}::{name}"), indent));
                } else if test.as_ref().is_some_and(|(_, of_test)| indent <= *of_test) {
                    test = None;
                }
            } else if code.is_empty() || code.starts_with("#[") {
                continue; // What was found belongs to what comes next.
            }
            for number in std::mem::take(&mut pending) {
                let tests = test.iter().map(|(name, _)| name.clone());
                named.entry(number).or_default().extend(tests);
            }
        }
    }
    named.retain(|_, tests| !tests.is_empty());
    named
}

/// `r_20_r_21_frames…` names R-20 and R-21.
fn numbers_in_name(name: &str) -> Vec<String> {
    let words: Vec<&str> = name.split('_').collect();
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let pairs = words.windows(2).filter_map(|pair| match pair {
        ["r", digits] if digits.len() == 2 && is_number(digits) => Some(format!("R-{digits}")),
        ["f", digits] if digits.len() == 3 && is_number(digits) => Some(format!("F-{digits}")),
        _ => None,
    });
    pairs.collect()
}

/// The table as it should be: every row's third column made from `named`.
pub fn render_requirements(table: &str, named: &Named) -> String {
    let mut lines = String::new();
    for line in table.lines() {
        match row(line) {
            Some((number, what)) => {
                let tests: Vec<String> = named
                    .get(number)
                    .into_iter()
                    .flatten()
                    .map(|test| format!("`{test}`"))
                    .collect();
                let tests = if tests.is_empty() { NO_TEST.to_owned() } else { tests.join(", ") };
                lines.push_str(&format!("| {number} | {what} | {tests} |"));
            }
            None => lines.push_str(line),
        }
        lines.push('\n');
    }
    lines
}

/// Number and text of a row of the table.
fn row(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let number = cells.next().filter(|it| it.starts_with("R-") || it.starts_with("F-"))?;
    Some((number, cells.next()?))
}

/// The numbers in the table, in its order, without those that were dropped.
pub fn required(table: &str) -> Vec<String> {
    let kept = table.lines().filter_map(row).filter(|(_, what)| !what.starts_with("dropped:"));
    kept.map(|(number, _)| number.to_owned()).collect()
}

/// Every dependency between our crates that `ARROWS` does not allow, in words.
pub fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in list(metadata, "packages") {
        let Some(name) = ours(package) else {
            continue;
        };
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!("{name} is not in ARROWS (crates/testkit/src/tidy.rs)"));
            continue;
        };
        for dependency in list(package, "dependencies") {
            let Some(other) = ours(dependency) else {
                continue;
            };
            let dev = dependency.get("kind").and_then(Value::as_str) == Some("dev");
            if !(allowed.contains(&other) || dev && other == "testkit") {
                let kind = if dev { "dev-depends" } else { "depends" };
                wrong.push(format!("{name} {kind} on {other}"));
            }
        }
    }
    wrong
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// The folder of one of our packages; none for others.
fn ours(package: &Value) -> Option<&str> {
    package.get("name")?.as_str()?.strip_prefix("ostler-")
}

/// What `cargo metadata` says about the workspace.
pub fn metadata() -> Value {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("metadata as JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source(text: &str) -> [Source; 1] {
        let path = "crates/x/src/lib.rs".to_owned();
        [Source { path, text: text.to_owned() }]
    }

    #[test]
    fn finds_requirements_in_names_and_comments() {
        let text = "//! R-01 in the head names nothing\n\
            /// R-02 above a helper neither\nfn helper() {}\n\
            /// Shows R-10, R-11.\n#[tokio::test]\nasync fn r_20_r_21_frames() {\n    let a = 1; // R-12\n    // R-13\n    x();\n}\n\
            fn later() {\n    // R-14\n    x();\n}\n\
            #[test]\nfn r_8_is_no_number() {}\n";
        let found = named(&source(text));
        let numbers: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(numbers, ["R-10", "R-11", "R-12", "R-13", "R-20", "R-21"], "{found:?}");
        assert!(found.values().all(|tests| tests.iter().eq(["x::r_20_r_21_frames"])));
    }

    #[test]
    fn rewrites_the_table() {
        let table = "# head\n\n| R-01 | one | old |\n| R-02 | two | `x::gone` |\n| R-03 | dropped: no | — |\n";
        let tests = BTreeSet::from(["x::b".to_owned(), "x::a".to_owned()]);
        let named = Named::from([("R-01".to_owned(), tests)]);
        let expected = "# head\n\n| R-01 | one | `x::a`, `x::b` |\n| R-02 | two | — |\n| R-03 | dropped: no | — |\n";
        assert_eq!(render_requirements(table, &named), expected);
        assert_eq!(required(table), ["R-01", "R-02"]);
    }

    #[test]
    fn finds_bounds_and_their_docs() {
        let text = "/// How many.\n/// More.\n#[cfg(unix)]\npub(crate) const A_MAX: u8 = 1;\n\nconst B_MAX: u8 = 2;\n";
        let found: Vec<(String, String)> =
            bounds(&source(text)).into_iter().map(|b| (b.name, b.doc)).collect();
        assert_eq!(found, [("A_MAX".into(), "How many.".into()), ("B_MAX".into(), String::new())]);
    }

    #[test]
    fn finds_wrong_arrows() {
        let package =
            |name: &str, dependencies: Value| json!({"name": name, "dependencies": dependencies});
        let on = |name: &str, kind: Value| json!({"name": name, "kind": kind});
        let good = package(
            "ostler-journal",
            json!([on("ostler-core", json!(null)), on("ostler-testkit", json!("dev"))]),
        );
        let bad = package(
            "ostler-core",
            json!([on("ostler-proto", json!("dev")), on("ostler-testkit", json!(null))]),
        );
        let new = package("ostler-new", json!([]));
        let wrong = wrong_arrows(&json!({"packages": [good, bad, new]}));
        assert_eq!(wrong.len(), 3, "{wrong:?}");
        assert_eq!(wrong[0], "core dev-depends on proto");
        assert_eq!(wrong[1], "core depends on testkit");
    }
}
