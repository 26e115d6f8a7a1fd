//! What the scripted model says: the scenario and the choice of a turn.
//!
//! The choice is stateless: the turn number is the number of tool results since the last user text,
//! so that retries, resumed sessions and parallel clients each see the right turn. Only `times`
//! keeps a count, held by the endpoint.

use std::collections::HashMap;

use regex_lite::Regex;
use serde::Deserialize;
use serde_json::Value;

/// A whole script. Every key is optional; an unknown key is an error, so that a typing mistake shows.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Tried in order; the first whose pattern is found in the last user text decides.
    pub rules: Vec<Rule>,
    /// Used when no rule matches.
    pub turns: Vec<Turn>,
    /// The answer to requests that offer no tools (titles and other side work).
    pub side: Option<Turn>,
}

/// Turns for requests whose last user text matches.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// A regular expression, searched in the last user text.
    #[serde(rename = "match")]
    pub pattern: String,
    /// What is said then.
    pub turns: Vec<Turn>,
}

/// One answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Turn {
    /// Words to say.
    pub text: String,
    /// A command for whichever shell tool the request offers.
    pub shell: Option<String>,
    /// A tool to call.
    pub tool: Option<Tool>,
    /// What the answer claims to have cost.
    pub usage: Usage,
    /// Wait before the headers.
    pub delay_ms: u64,
    /// Wait after each event.
    pub chunk_ms: u64,
    /// Send two events, then stall that long.
    pub hang_s: u64,
    /// Answer with this HTTP status and an error body instead.
    pub status: Option<u16>,
    /// The `retry-after` header of the error.
    pub retry_after: Option<u64>,
    /// The message of the error.
    pub message: Option<String>,
    /// With `status`: fail that often, then go on to the next turn.
    pub times: Option<u32>,
    /// Break the answer.
    pub malformed: Option<Malformed>,
}

/// The tool of a turn.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tool {
    /// The tool's exact name …
    pub name: String,
    /// … or: the first offered tool whose name ends so.
    pub ends: Option<String>,
    /// Its arguments.
    pub input: Value,
}

/// Token counts.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Usage {
    /// Fresh input.
    pub input: u64,
    /// Output.
    pub output: u64,
    /// Input read from the cache.
    pub cache_read: u64,
    /// Input written to the cache.
    pub cache_write: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { input: 11, output: 7, cache_read: 0, cache_write: 0 }
    }
}

/// How an answer is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Malformed {
    /// The stream is cut after two events.
    Truncate,
    /// The stream is cut after two events and a line that is no JSON.
    Garbage,
    /// Status 200 and a web page, as a captive portal sends.
    Html,
}

impl Scenario {
    /// Reads a scenario from a JSON value; panics when it is none.
    #[track_caller]
    pub fn from_json(json: Value) -> Self {
        serde_json::from_value(json).expect("a scenario in the documented form")
    }

    /// These turns for every request.
    pub fn turns(turns: impl IntoIterator<Item = Turn>) -> Self {
        Self { turns: turns.into_iter().collect(), ..Self::default() }
    }

    /// One answer for every request.
    pub fn text(text: &str) -> Self {
        Self::turns([Turn::text(text)])
    }

    /// Every request fails with this status.
    pub fn status(status: u16, message: &str) -> Self {
        Self::turns([Turn {
            status: Some(status),
            message: Some(message.to_owned()),
            ..Turn::default()
        }])
    }
}

impl Turn {
    /// Words.
    pub fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }

    /// A shell command.
    pub fn shell(command: &str) -> Self {
        Self { shell: Some(command.to_owned()), ..Self::default() }
    }

    /// The same turn with other token counts.
    pub fn usage(self, usage: Usage) -> Self {
        Self { usage, ..self }
    }
}

/// Where a turn was found: the rule (`side`, `default` or the rule's index) and the turn's index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) rule: String,
    pub(super) turn: usize,
}

/// A scenario at work: its patterns compiled, and how often each `times` turn has failed.
#[derive(Debug)]
pub(super) struct Script {
    scenario: Scenario,
    patterns: Vec<Regex>,
    spent: HashMap<Place, u32>,
}

impl Script {
    pub(super) fn new(mut scenario: Scenario) -> Self {
        if scenario.turns.is_empty() {
            scenario.turns = vec![
                Turn::shell("echo scripted > fake_model_was_here.txt"),
                Turn::text("All done."),
            ];
        }
        let compile = |rule: &Rule| Regex::new(&rule.pattern).expect("a regular expression");
        let patterns = scenario.rules.iter().map(compile).collect();
        Self { scenario, patterns, spent: HashMap::new() }
    }

    /// The turn that answers a request with `results` tool results since `user`.
    pub(super) fn pick(&mut self, user: &str, results: usize, offers_tools: bool) -> (Place, Turn) {
        let at = |rule: &str, turn| Place { rule: rule.to_owned(), turn };
        if let Some(side) = self.scenario.side.as_ref().filter(|_| !offers_tools) {
            return (at("side", 0), side.clone());
        }
        let found = self.patterns.iter().position(|pattern| pattern.is_match(user));
        let matched = found.and_then(|n| Some((n.to_string(), &self.scenario.rules.get(n)?.turns)));
        let (rule, turns) = matched.unwrap_or(("default".to_owned(), &self.scenario.turns));
        let mut left = results;
        for (turn_number, turn) in turns.iter().enumerate() {
            // A `times` turn answers until it is spent and is never counted as a turn.
            match turn.times {
                Some(times) if left == 0 => {
                    let spent = self.spent.entry(at(&rule, turn_number)).or_default();
                    *spent += 1;
                    if *spent <= times {
                        return (at(&rule, turn_number), turn.clone());
                    }
                }
                Some(_) => {}
                None if left == 0 => return (at(&rule, turn_number), turn.clone()),
                None => left -= 1,
            }
        }
        let last = turns.last().cloned().unwrap_or_default();
        (at(&rule, turns.len().saturating_sub(1)), last)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn script(json: Value) -> Script {
        Script::new(Scenario::from_json(json))
    }

    #[test]
    fn the_turn_is_the_number_of_results_and_the_last_one_stays() {
        let mut script = script(json!({"turns": [{"text": "a"}, {"text": "b"}]}));
        for (results, text) in [(0, "a"), (1, "b"), (0, "a"), (7, "b")] {
            assert_eq!(script.pick("hi", results, true).1.text, text);
        }
    }

    #[test]
    fn a_times_turn_fails_that_often_and_is_not_counted() {
        let mut script = script(json!({"turns": [
            {"status": 429, "times": 2}, {"text": "a"}, {"status": 500, "times": 1}, {"text": "b"}]}));
        let mut texts = |results| script.pick("hi", results, true).1.text;
        assert_eq!([texts(0), texts(0), texts(0), texts(0)], ["", "", "a", "a"]);
        assert_eq!([texts(1), texts(1)], ["", "b"]);
    }

    #[test]
    fn rules_go_before_turns_and_side_before_rules() {
        let mut script = script(json!({
            "rules": [{"match": "SEC.ND", "turns": [{"text": "rule"}]}],
            "turns": [{"text": "default"}], "side": {"text": "side"}}));
        assert_eq!(script.pick("the SECOND one", 0, true).0, Place { rule: "0".into(), turn: 0 });
        assert_eq!(script.pick("first", 0, true).1.text, "default");
        assert_eq!(script.pick("SECOND", 0, false).1.text, "side");
    }

    #[test]
    fn an_unknown_key_is_an_error() {
        let scenario = serde_json::from_value::<Scenario>(json!({"turns": [{"txt": "a"}]}));
        assert!(scenario.is_err(), "{scenario:?}");
    }
}
