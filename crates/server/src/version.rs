//! What a client says of itself: its name, its version, what it can do (F-009 to F-017).
//!
//! Pure. Absent on purpose: the protocol's own version, and who the client is allowed to be.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name of a client that does not name itself.
pub const DAEMON_NAME: &str = "felagi-daemon";
/// Where a client that is too old is sent, unless the settings say otherwise.
const DOWNLOAD_URL: &str = "https://github.com/ostler/ostler/releases";
/// Bytes of a version. A longer one is none.
const VERSION_BYTES_MAX: usize = 64;
/// Numbers of a version. One with more is none.
const VERSION_PARTS_MAX: usize = 8;
/// Bytes of a client's name. A longer one is unknown.
const NAME_BYTES_MAX: usize = 64;
/// Capabilities that are read; those that follow are not declared.
const CAPABILITIES_MAX: usize = 32;
/// Bytes of a capability. A longer one is not declared.
const CAPABILITY_BYTES_MAX: usize = 64;

/// Capabilities that came with or after `thread`: who declares one reads repositories as objects (F-048).
const READS_OBJECTS: &[&str] = &["thread", "await", "actors", "long_poll", "start_deadline"];

/// A version: numbers, and whether something unfinished stands behind them.
#[derive(Debug, Clone)]
pub struct Version {
    parts: Vec<u64>,
    /// After a `-`. Below the version itself; two of these are not told apart.
    is_unfinished: bool,
    /// As it was written, of harmless characters only.
    text: String,
}

impl Version {
    /// `1.2.3`, with fewer or more numbers, a `-suffix` and a `+suffix`. Anything else is none.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let letters = |b: u8| b.is_ascii_alphanumeric() || b"-+.".contains(&b);
        if text.len() > VERSION_BYTES_MAX || !text.bytes().all(letters) {
            return None;
        }
        let without_build = text.split('+').next()?;
        let (numbers, is_unfinished) = match without_build.split_once('-') {
            Some((numbers, _)) => (numbers, true),
            None => (without_build, false),
        };
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        };
        let mut parts = numbers.split('.').map(number).collect::<Option<Vec<u64>>>()?;
        if parts.len() > VERSION_PARTS_MAX {
            return None;
        }
        // Missing numbers are 0: `1` and `1.0` are one version.
        while parts.last() == Some(&0) {
            parts.pop();
        }
        Some(Self { parts, is_unfinished, text: text.to_owned() })
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let unfinished = other.is_unfinished.cmp(&self.is_unfinished);
        self.parts.cmp(&other.parts).then(unfinished)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Which clients are served. The default is what the settings say when they say nothing.
#[derive(Debug, Clone)]
pub struct Minimums {
    /// Of a client that does not name itself.
    pub daemon: Version,
    /// By name. A name that is not here is unknown.
    pub clients: BTreeMap<String, Version>,
    /// Where to get a newer one.
    pub download_url: String,
}

impl Default for Minimums {
    fn default() -> Self {
        let version = |parts: &[u64], text: &str| Version {
            parts: parts.to_vec(),
            is_unfinished: false,
            text: text.to_owned(),
        };
        Self {
            daemon: version(&[0, 2], "0.2.0"),
            clients: BTreeMap::from([("huskarld".to_owned(), version(&[0, 1], "0.1.0"))]),
            download_url: DOWNLOAD_URL.to_owned(),
        }
    }
}

/// A client that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its name, [`DAEMON_NAME`] when it did not say one.
    pub name: String,
    /// Its version.
    pub version: Version,
}

/// Why a client is answered 426, and what it needs to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrade {
    /// For a person.
    pub message: String,
    /// The least version that is served.
    pub minimum_version: String,
    /// Where to get it.
    pub download_url: String,
}

/// Judges the headers `X-Felagi-Client` (`name/version`) and `X-Felagi-Client-Version`. Who names itself is
/// measured by its own minimum, whatever else it sends.
pub fn judge(
    client: Option<&str>,
    version: Option<&str>,
    minimums: &Minimums,
) -> Result<Client, Upgrade> {
    let (name, version, minimum) = match client {
        Some(client) => {
            let (name, version) = client.split_once('/').unwrap_or((client, ""));
            let name = name.trim();
            let minimum = match minimums.clients.get(name) {
                Some(minimum) => minimum,
                None if name == DAEMON_NAME => &minimums.daemon,
                None => return Err(refused(unknown(name), &minimums.daemon, minimums)),
            };
            (name, version, minimum)
        }
        None => (DAEMON_NAME, version.unwrap_or_default(), &minimums.daemon),
    };
    let shown = if name == DAEMON_NAME { "Daemon" } else { name };
    match Version::parse(version) {
        Some(version) if version >= *minimum => Ok(Client { name: name.to_owned(), version }),
        Some(version) => {
            let message =
                format!("{shown} {version} is no longer supported. Minimum is {minimum}.");
            Err(refused(message, minimum, minimums))
        }
        None if version.trim().is_empty() => {
            let header =
                if client.is_some() { "X-Felagi-Client" } else { "X-Felagi-Client-Version" };
            let message = format!(
                "The client sent no version in {header}. The minimum for {shown} is {minimum}."
            );
            Err(refused(message, minimum, minimums))
        }
        None => {
            let message = format!(
                "The client's version is not understood. The minimum for {shown} is {minimum}."
            );
            Err(refused(message, minimum, minimums))
        }
    }
}

fn unknown(name: &str) -> String {
    let harmless = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(harmless) {
        format!("The client {name} is not known to this server.")
    } else {
        "The client is not known to this server.".to_owned()
    }
}

fn refused(message: String, minimum: &Version, minimums: &Minimums) -> Upgrade {
    Upgrade {
        message,
        minimum_version: minimum.to_string(),
        download_url: minimums.download_url.clone(),
    }
}

/// What a client declares in `X-Felagi-Client-Capabilities`. Unknown words are kept: later ones know them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities(BTreeSet<String>);

impl Capabilities {
    /// Words between commas. None is what the earliest clients declare (F-017).
    pub fn parse(header: Option<&str>) -> Self {
        let fits = |word: &&str| {
            (1..=CAPABILITY_BYTES_MAX).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_graphic())
        };
        let words = header.unwrap_or_default().split(',').map(str::trim).filter(fits);
        Self(words.take(CAPABILITIES_MAX).map(str::to_owned).collect())
    }

    /// Whether it was declared.
    pub fn has(&self, word: &str) -> bool {
        self.0.contains(word)
    }

    /// All of them, in the order of the alphabet.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether repositories go to it as objects and not as plain addresses (F-048).
    pub fn reads_repository_objects(&self) -> bool {
        READS_OBJECTS.iter().any(|word| self.has(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    fn served(client: Option<&str>, version: Option<&str>) -> Result<String, Upgrade> {
        judge(client, version, &Minimums::default()).map(|client| client.name)
    }

    fn refusal(client: Option<&str>, version: Option<&str>) -> Upgrade {
        served(client, version).expect_err("a refusal")
    }

    #[test]
    fn f_011_versions_are_compared_number_by_number() {
        let ordered = [
            "0",
            "0.0.9",
            "0.1",
            "0.2.0-rc.1",
            "0.2.0",
            "0.2.1",
            "0.10.0",
            "1",
            "1.0.0.1",
            "2.0",
            "10",
        ];
        for (at, one) in ordered.iter().enumerate() {
            for (below, two) in ordered.iter().enumerate() {
                assert_eq!(version(one).cmp(&version(two)), at.cmp(&below), "{one} {two}");
            }
        }
        for (one, two) in
            [("1", "1.0.0"), ("0.2", "0.2.0+build.7"), ("01.2", "1.2"), ("0.0", "0"), (" 1 ", "1")]
        {
            assert_eq!(version(one), version(two), "{one} {two}");
        }
        assert!(version("0.2.0-rc.1+x") < version("0.2.0"));
        assert!(version("0.2.0+a-b") == version("0.2.0"));
    }

    #[test]
    fn f_011_what_is_no_version_is_none() {
        let long = "1".repeat(65);
        for text in [
            "",
            " ",
            ".",
            "1.",
            ".1",
            "1..2",
            "v1.2",
            "a",
            "1.a",
            "1,2",
            "-1",
            "-rc",
            "+1",
            "1 2",
            "1.2\n3",
            "1.ü",
            "٣",
            "18446744073709551616",
            "1.2.3.4.5.6.7.8.9",
            &long,
            "<1>",
            "1/2",
        ] {
            assert!(Version::parse(text).is_none(), "{text}");
        }
        assert!(Version::parse("18446744073709551615").is_some());
    }

    #[test]
    fn f_009_a_client_that_says_nothing_is_refused() {
        for version in [None, Some(""), Some("  ")] {
            let upgrade = refusal(None, version);
            assert_eq!(upgrade.minimum_version, "0.2.0");
            assert!(upgrade.message.contains("X-Felagi-Client-Version"), "{}", upgrade.message);
        }
        for garbage in ["latest", "0.9.0.", "<script>", "\u{0}"] {
            let upgrade = refusal(None, Some(garbage));
            assert!(!upgrade.message.contains(garbage), "{}", upgrade.message);
            assert!(upgrade.message.contains("0.2.0"));
        }
    }

    #[test]
    fn f_010_a_version_below_the_minimum_is_told_both_and_where_to_go() {
        let upgrade = refusal(None, Some("0.1.0"));
        assert_eq!(upgrade.message, "Daemon 0.1.0 is no longer supported. Minimum is 0.2.0.");
        assert_eq!(upgrade.minimum_version, "0.2.0");
        assert_eq!(upgrade.download_url, DOWNLOAD_URL);
    }

    #[test]
    fn f_011_the_minimum_itself_and_everything_newer_is_served() {
        for version in ["0.2.0", "0.2", "0.2.1", "0.3.0", "0.10.0", "1", "0.3.0-beta"] {
            assert_eq!(served(None, Some(version)).as_deref(), Ok(DAEMON_NAME), "{version}");
        }
        for version in ["0", "0.1.99", "0.1", "0.2.0-rc.1"] {
            refusal(None, Some(version));
        }
    }

    #[test]
    fn f_014_a_named_client_is_measured_by_its_own_minimum() {
        assert_eq!(served(Some("huskarld/0.1.0"), None).as_deref(), Ok("huskarld"));
        assert_eq!(served(Some("huskarld/0.1.0"), Some("0.0.1")).as_deref(), Ok("huskarld"));
        assert_eq!(served(Some(" huskarld / 0.1.5 "), None).as_deref(), Ok("huskarld"));
        let upgrade = refusal(Some("huskarld/0.0.9"), Some("9.0"));
        assert_eq!(upgrade.message, "huskarld 0.0.9 is no longer supported. Minimum is 0.1.0.");
        assert_eq!(upgrade.minimum_version, "0.1.0");
        for client in ["huskarld", "huskarld/", "huskarld/x", "huskarld/0.1.0/2"] {
            assert_eq!(refusal(Some(client), Some("9.0")).minimum_version, "0.1.0", "{client}");
        }
    }

    #[test]
    fn f_015_an_unknown_name_is_refused_and_an_odd_one_not_repeated() {
        let upgrade = refusal(Some("other/9.0"), Some("9.0"));
        assert_eq!(upgrade.message, "The client other is not known to this server.");
        assert_eq!(
            (upgrade.minimum_version.as_str(), upgrade.download_url.as_str()),
            ("0.2.0", DOWNLOAD_URL)
        );
        let long = "x".repeat(65);
        for name in ["", "/", "/1.0", "<b>/1", "a b/1", "ü/1", &long, "Huskarld\r\nX: y/0.1.0"] {
            let message = refusal(Some(name), Some("9.0")).message;
            assert_eq!(message, "The client is not known to this server.", "{name:?}");
        }
        refusal(Some("HUSKARLD/9.0"), None);
    }

    #[test]
    fn f_016_more_names_can_be_made_known() {
        let mut minimums = Minimums::default();
        minimums.clients.insert("other".to_owned(), version("2.0"));
        assert!(judge(Some("other/2.1"), None, &minimums).is_ok());
        assert!(judge(Some("other/1.9"), None, &minimums).is_err());
        assert!(judge(Some("huskarld/0.1.0"), None, &minimums).is_ok());
    }

    #[test]
    fn the_daemon_may_say_its_own_name() {
        assert_eq!(served(Some("felagi-daemon/0.2.0"), None).as_deref(), Ok(DAEMON_NAME));
        assert_eq!(refusal(Some("felagi-daemon/0.1.0"), None).minimum_version, "0.2.0");
    }

    #[test]
    fn f_017_a_client_may_declare_nothing() {
        for header in [None, Some(""), Some(" , ,")] {
            let capabilities = Capabilities::parse(header);
            assert_eq!(capabilities, Capabilities::default());
            assert!(!capabilities.has("thread") && !capabilities.reads_repository_objects());
        }
    }

    #[test]
    fn capabilities_are_trimmed_bounded_and_kept_when_unknown() {
        let capabilities = Capabilities::parse(Some("streaming, resume ,thread,x-new,,thread"));
        assert_eq!(
            capabilities.words().collect::<Vec<_>>(),
            ["resume", "streaming", "thread", "x-new"]
        );
        assert!(
            capabilities.has("thread") && !capabilities.has("thr") && !capabilities.has("Thread")
        );
        let many: Vec<String> = (0..1_000).map(|n| format!("c{n}")).collect();
        assert_eq!(Capabilities::parse(Some(&many.join(","))).words().count(), CAPABILITIES_MAX);
        let odd = format!("{},a b,\u{7f},ü", "x".repeat(65));
        assert_eq!(Capabilities::parse(Some(&odd)).words().count(), 0);
    }

    #[test]
    fn f_048_repositories_are_objects_for_who_declares_thread_or_later() {
        let reads = |header| Capabilities::parse(Some(header)).reads_repository_objects();
        assert!(!reads("streaming,resume,cancel"), "a known client that reads strings only");
        assert!(reads("streaming,resume,cancel,thread"));
        assert!(reads("await,actors"));
        assert!(reads("long_poll"));
        assert!(!reads("unknown"));
    }
}
