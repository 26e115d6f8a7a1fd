//! The table of settings: name in the file, variable, range, and where it goes. One row a setting.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Value;

use super::Config;
use crate::version::Version;

/// What variables of limits begin with: the protocol's documentation names four of them.
const THROTTLE_PREFIX: &str = "FELAGI_DAEMON_THROTTLE_";
/// What the other variables begin with.
const SERVER_PREFIX: &str = "OSTLER_SERVER_";
/// Where a client finds a server: no setting of one.
const CLIENT_ENV: &str = "OSTLER_SERVER_URL";
/// Proxies that may be named.
const PROXIES_MAX: usize = 64;
/// Bytes of a client's name.
const CLIENT_NAME_BYTES_MAX: usize = 64;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const DAY_SECONDS: u64 = 24 * 60 * 60;
const DAYS: RangeInclusive<u64> = 1..=36_500;
const A_MINUTE: RangeInclusive<u64> = 1..=100_000_000;

/// A setting.
pub(super) struct Key {
    /// In the file, with its section.
    pub(super) name: &'static str,
    /// The variable.
    pub(super) env: &'static str,
    kind: Kind,
}

enum Kind {
    Number(RangeInclusive<u64>, fn(&mut Config, u64)),
    Text(fn(&mut Config, &str) -> Result<(), String>),
    /// In the file an array, in a variable with commas between.
    List(fn(&mut Config, &[&str]) -> Result<(), String>),
}

const fn number(
    name: &'static str,
    env: &'static str,
    range: RangeInclusive<u64>,
    set: fn(&mut Config, u64),
) -> Key {
    Key { name, env, kind: Kind::Number(range, set) }
}

const fn text(
    name: &'static str,
    env: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
) -> Key {
    Key { name, env, kind: Kind::Text(set) }
}

/// All of them.
pub(super) const KEYS: &[Key] = &[
    text("listen", "OSTLER_SERVER_LISTEN", |it, text| {
        it.settings.listen = address(text)?;
        Ok(())
    }),
    text("metrics_listen", "OSTLER_SERVER_METRICS_LISTEN", |it, text| {
        it.settings.metrics_listen = Some(address(text)?);
        Ok(())
    }),
    text("database", "OSTLER_SERVER_DATABASE", |it, text| {
        text.clone_into(&mut it.settings.database);
        Ok(())
    }),
    text("tls_cert", "OSTLER_SERVER_TLS_CERT", |it, text| {
        it.tls_cert = Some(text.into());
        Ok(())
    }),
    text("tls_key", "OSTLER_SERVER_TLS_KEY", |it, text| {
        it.tls_key = Some(text.into());
        Ok(())
    }),
    Key {
        name: "behind_proxy",
        env: "OSTLER_SERVER_BEHIND_PROXY",
        kind: Kind::List(|it, list| {
            it.settings.proxies = proxies(list)?;
            Ok(())
        }),
    },
    text("min_daemon_version", "OSTLER_SERVER_MIN_DAEMON_VERSION", |it, text| {
        it.settings.minimums.daemon = version(text)?;
        Ok(())
    }),
    text("download_url", "OSTLER_SERVER_DOWNLOAD_URL", |it, text| {
        let is_web = text.starts_with("https://") || text.starts_with("http://");
        if !is_web || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("must be an address that begins with https://".to_owned());
        }
        text.clone_into(&mut it.settings.minimums.download_url);
        Ok(())
    }),
    number("leases.seconds", "OSTLER_SERVER_LEASE_SECONDS", 1..=DAY_SECONDS, |it, n| {
        it.settings.policy.lease = Duration::from_secs(n);
    }),
    number("leases.start_seconds", "OSTLER_SERVER_START_SECONDS", 1..=DAY_SECONDS, |it, n| {
        it.settings.policy.start_within = Duration::from_secs(n);
    }),
    number("leases.sweep_seconds", "OSTLER_SERVER_SWEEP_SECONDS", 1..=3_600, |it, n| {
        it.settings.sweep_every = Duration::from_secs(n);
    }),
    number("leases.offline_seconds", "OSTLER_SERVER_OFFLINE_SECONDS", 1..=DAY_SECONDS, |it, n| {
        it.settings.offline_after = Duration::from_secs(n);
    }),
    number("limits.register", "FELAGI_DAEMON_THROTTLE_REGISTER", A_MINUTE, |it, n| {
        it.settings.limits.register = small(n);
    }),
    number("limits.heartbeat", "FELAGI_DAEMON_THROTTLE_HEARTBEAT", A_MINUTE, |it, n| {
        it.settings.limits.heartbeat = small(n);
    }),
    number("limits.claim", "FELAGI_DAEMON_THROTTLE_CLAIM", A_MINUTE, |it, n| {
        it.settings.limits.claim = small(n);
    }),
    number("limits.tasks", "FELAGI_DAEMON_THROTTLE_TASKS", A_MINUTE, |it, n| {
        it.settings.limits.tasks = small(n);
    }),
    number("limits.api", "OSTLER_SERVER_THROTTLE_API", A_MINUTE, |it, n| {
        it.settings.limits.api = small(n);
    }),
    number("limits.unknown", "OSTLER_SERVER_THROTTLE_UNKNOWN", A_MINUTE, |it, n| {
        it.settings.limits.unknown = small(n);
    }),
    number("retention.messages_days", "OSTLER_SERVER_MESSAGES_DAYS", DAYS, |it, n| {
        it.settings.retention.messages_age = days(n);
    }),
    number(
        "retention.messages_bytes_max",
        "OSTLER_SERVER_MESSAGES_BYTES_MAX",
        MIB..=1_024 * TIB,
        |it, n| it.settings.retention.messages_bytes_max = n,
    ),
    number("retention.events_days", "OSTLER_SERVER_EVENTS_DAYS", DAYS, |it, n| {
        it.settings.retention.events_age = days(n);
    }),
    number("retention.events_max", "OSTLER_SERVER_EVENTS_MAX", 1_000..=1_000_000_000, |it, n| {
        it.settings.retention.events_max = n
    }),
    number(
        "retention.every_seconds",
        "OSTLER_SERVER_RETENTION_SECONDS",
        1..=DAY_SECONDS,
        |it, n| it.settings.retention.every = Duration::from_secs(n),
    ),
];

/// `clients.NAME.min_version`: takes the least version of a client with a name, which makes the name known.
/// `None` when it is another key.
pub(super) fn take_client(
    config: &mut Config,
    key: &str,
    value: &Value,
) -> Option<Result<(), String>> {
    let name = key.strip_prefix("clients.")?.strip_suffix(".min_version")?;
    let mut take = || {
        if name.is_empty() || name.len() > CLIENT_NAME_BYTES_MAX {
            return Err("names no client".to_owned());
        }
        let text = value.as_str().ok_or("must be a text, as \"0.1.0\"")?;
        config.settings.minimums.clients.insert(name.to_owned(), version(text)?);
        Ok(())
    };
    Some(take())
}

/// The setting of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether a variable can only be meant for a server.
pub(super) fn is_ours(name: &str) -> bool {
    name != CLIENT_ENV && (name.starts_with(THROTTLE_PREFIX) || name.starts_with(SERVER_PREFIX))
}

/// Whether some settings are in this section.
pub(super) fn is_section(name: &str) -> bool {
    name == "clients"
        || KEYS
            .iter()
            .any(|key| key.name.split_once('.').is_some_and(|(section, _)| section == name))
}

impl Key {
    /// Takes the file's value; what is wrong with it, to be read after the key.
    pub(super) fn take(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        match (&self.kind, value) {
            (Kind::Number(range, set), Value::Integer(number)) => {
                let number = u64::try_from(*number).ok().filter(|number| range.contains(number));
                set(config, number.ok_or_else(|| out_of(range))?);
                Ok(())
            }
            (Kind::Number(range, _), _) => Err(out_of(range)),
            (Kind::Text(set), Value::String(text)) => set(config, text),
            (Kind::Text(_), _) => Err("must be a text".to_owned()),
            (Kind::List(set), Value::Array(values)) => {
                let texts: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
                set(config, &texts.ok_or("must be a list of texts")?)
            }
            (Kind::List(_), _) => Err("must be a list of texts".to_owned()),
        }
    }

    /// Takes a variable's value.
    pub(super) fn take_text(&self, config: &mut Config, text: &str) -> Result<(), String> {
        match &self.kind {
            Kind::Number(range, set) => {
                let number = text.trim().parse().ok().filter(|number| range.contains(number));
                set(config, number.ok_or_else(|| out_of(range))?);
                Ok(())
            }
            Kind::Text(set) => set(config, text),
            Kind::List(set) => {
                let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
                set(config, &texts.collect::<Vec<_>>())
            }
        }
    }
}

fn out_of(range: &RangeInclusive<u64>) -> String {
    format!("must be a number from {} to {}", range.start(), range.end())
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn days(number: u64) -> Duration {
    Duration::from_secs(number.saturating_mul(DAY_SECONDS))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be ADDRESS:PORT, as 127.0.0.1:4180 or [::1]:4180".to_owned())
}

fn version(text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| "must be a version, as \"0.2.0\"".to_owned())
}

fn proxies(list: &[&str]) -> Result<Vec<IpAddr>, String> {
    if list.len() > PROXIES_MAX {
        return Err(format!("must name at most {PROXIES_MAX} proxies"));
    }
    let parse = |text: &&str| text.parse::<IpAddr>().map(|ip| ip.to_canonical());
    let parsed = list.iter().map(parse).collect::<Result<_, _>>();
    parsed.map_err(|_| "must be the proxies' IP addresses".to_owned())
}
