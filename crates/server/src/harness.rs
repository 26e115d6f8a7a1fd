//! What an agent is told of what becomes of its work: whole sentences for its prompt (F-038 to F-040).
//!
//! Pure. Sent to every client; one that does not render them ignores the field. Absent on purpose: the issue,
//! the thread and the agent's instructions, which are other fields of the envelope.

/// The variable that names the file an agent hands its artifacts back in.
pub const DELIVERY_VARIABLE: &str = "FELAGI_DELIVERY";

/// What the sentences depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HarnessFacts {
    /// The envelope lists a repository, which the machine checks out.
    pub has_checkout: bool,
    /// The envelope carries a token for its repositories (F-055).
    pub has_lent_token: bool,
}

/// The sentences, in the order of a prompt. Each stands for itself.
pub fn sentences(facts: HarnessFacts) -> Vec<String> {
    let mut sentences = vec![
        "Your final message is posted as a comment on this issue, so write there what you did, what you \
         found and what is still open; you need no client of the issue tracker for that."
            .to_owned(),
    ];
    if facts.has_checkout {
        sentences.push(format!(
            "To hand back a pull request, a branch or another artifact, write JSON to the file named by \
             the environment variable {DELIVERY_VARIABLE}: one object, an array of objects, or one object \
             a line, each with `type` (`pull_request`, `branch`, `link` or `file`) and what applies of `url` \
             (http or https, without credentials), `title`, `reference` and `state` (`open`, `closed`, \
             `merged` or `draft`), as in {}.",
            r#"{"type":"pull_request","url":"https://…","title":"…","state":"open"}"#
        ));
        sentences.push(
            "A commit that is not pushed does not leave this machine: push your branch, and name it as an \
             artifact of type `branch` with the branch's name as `reference` when you open no pull request."
                .to_owned(),
        );
    } else {
        sentences.push(
            "This run has no checkout of a repository, so there is nothing to push a branch to and no pull \
             request to open: your final message is the result."
                .to_owned(),
        );
        sentences.push(format!(
            "To hand back another artifact all the same, write JSON to the file named by the environment \
             variable {DELIVERY_VARIABLE}: one object, an array of objects, or one object a line, each with \
             `type` (`link` or `file`) and what applies of `url` (http or https, without credentials), \
             `title` and `reference`, as in {}.",
            r#"{"type":"link","url":"https://…","title":"…"}"#
        ));
    }
    if facts.has_checkout && facts.has_lent_token {
        sentences.push(
            "The environment variables GH_TOKEN and GITHUB_TOKEN hold a token for the repositories of this \
             run that expires within the hour: use it from there, and write it into no file, address or \
             message."
                .to_owned(),
        );
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(HarnessFacts, Vec<String>)> {
        let flags = [false, true].into_iter().flat_map(|one| [(one, false), (one, true)]);
        let facts = flags
            .map(|(has_checkout, has_lent_token)| HarnessFacts { has_checkout, has_lent_token });
        facts.map(|facts| (facts, sentences(facts))).collect()
    }

    #[test]
    fn f_038_each_is_a_whole_sentence_on_one_line() {
        for sentence in all().into_iter().flat_map(|(_, sentences)| sentences) {
            assert!(sentence.starts_with(|c: char| c.is_uppercase()), "{sentence}");
            assert!(sentence.ends_with('.'), "{sentence}");
            assert!(!sentence.contains(['\n', '\t']) && !sentence.contains("  "), "{sentence}");
        }
    }

    #[test]
    fn f_039_one_says_that_the_final_message_becomes_a_comment() {
        for (facts, sentences) in all() {
            let count = sentences
                .iter()
                .filter(|sentence| sentence.contains("posted as a comment"))
                .count();
            assert_eq!(count, 1, "{facts:?}");
        }
    }

    #[test]
    fn f_039_one_says_how_an_artifact_is_handed_back() {
        for (facts, sentences) in all() {
            let told: Vec<_> =
                sentences.iter().filter(|sentence| sentence.contains("FELAGI_DELIVERY")).collect();
            assert_eq!(told.len(), 1, "{facts:?}");
            for word in
                ["JSON", "array", "one object a line", "`type`", "`url`", "`title`", "`reference`"]
            {
                assert!(told[0].contains(word), "{word}: {}", told[0]);
            }
        }
    }

    /// The examples are what the server takes.
    #[test]
    fn f_039_the_example_is_a_valid_artifact() {
        for (_, sentences) in all() {
            let told = sentences.iter().find(|sentence| sentence.contains("as in {")).unwrap();
            let (_, example) = told.split_once("as in ").unwrap();
            let example = example.trim_end_matches('.').replace("https://…", "https://a.example/");
            let artifact: serde_json::Value = serde_json::from_str(&example).unwrap();
            let accepted = crate::delivery::accept(&serde_json::json!([artifact]));
            assert_eq!((accepted.deliveries.len(), accepted.dropped), (1, vec![]));
        }
    }

    #[test]
    fn f_040_a_run_without_a_checkout_is_told_that_there_is_nothing_to_push_to() {
        for (facts, sentences) in all() {
            let text = sentences.join(" ");
            assert_eq!(text.contains("no checkout"), !facts.has_checkout, "{facts:?}");
            assert_eq!(text.contains("push your branch"), facts.has_checkout, "{facts:?}");
            assert_eq!(text.contains("`pull_request`"), facts.has_checkout, "{facts:?}");
        }
    }

    #[test]
    fn a_lent_token_is_spoken_of_where_there_is_one() {
        for (facts, sentences) in all() {
            let told = sentences.iter().any(|sentence| sentence.contains("GH_TOKEN"));
            assert_eq!(told, facts.has_checkout && facts.has_lent_token, "{facts:?}");
        }
    }
}
