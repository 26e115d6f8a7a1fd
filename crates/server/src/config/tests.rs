//! Tests of where settings come from.

use std::time::Duration;

use super::*;

fn file(text: &str) -> Result<Config, ConfigError> {
    let mut config = Config::new("sqlite:/s/ostler.db".to_owned());
    config.take_file(text, Utf8Path::new("/c/server.toml")).map(|()| config)
}

fn env(vars: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let mut config = Config::new("sqlite:/s/ostler.db".to_owned());
    config.take_env(vars.iter().copied()).map(|()| config)
}

#[test]
fn a_file_is_taken_and_the_rest_keeps_its_default() {
    let config = file(
        "listen = '127.0.0.1:0'\nbehind_proxy = ['10.0.0.1', '::1']\n[leases]\nseconds = 7\n\
         [limits]\nclaim = 3\n[retention]\nevents_days = 1",
    );
    let settings = config.unwrap().finish().unwrap();
    assert_eq!(settings.listen.port(), 0);
    assert_eq!(settings.proxies.len(), 2);
    assert_eq!(settings.policy.lease, Duration::from_secs(7));
    assert_eq!((settings.limits.claim, settings.limits.register), (3, 120));
    assert_eq!(settings.retention.events_age, Duration::from_secs(86_400));
    assert_eq!(settings.retention.messages_age, Duration::from_secs(90 * 86_400));
}

#[test]
fn f_010_f_014_the_least_versions_are_settings_by_the_clients_name() {
    let config = file(
        "min_daemon_version = '0.4'\ndownload_url = 'https://example.com/d'\n\
         [clients.huskarld]\nmin_version = '1.2.3'\n[clients.other]\nmin_version = '2.0.0'",
    );
    let minimums = config.unwrap().settings.minimums;
    let known = |name: &str| minimums.clients.get(name).map(ToString::to_string);
    assert_eq!(minimums.daemon.to_string(), "0.4");
    assert_eq!(known("huskarld").as_deref(), Some("1.2.3"));
    assert_eq!(known("other").as_deref(), Some("2.0.0"));
    let error = file("[clients.other]\nmin_version = 'new'\n").unwrap_err().to_string();
    assert!(error.contains("clients.other.min_version must be a version"), "{error}");
    let error = file("[clients.other]\nmin_versions = '1'\n").unwrap_err().to_string();
    assert!(error.contains("unknown keys: clients.other.min_versions"), "{error}");
}

/// One row a setting: name, variable, default.
#[test]
fn every_setting_is_in_the_operators_guide() {
    let page = include_str!("../../../../docs/server.md");
    for key in keys::KEYS {
        let row = format!("| `{}` | `{}` |", key.name, key.env);
        assert!(page.contains(&row), "{row}");
    }
}

#[test]
fn unknown_keys_are_errors_that_say_what_was_meant() {
    let error =
        file("lisen = 'x'\nclaim = 1\n[limits]\nclaims = 2\n[colours]\nred = 1").unwrap_err();
    let shown = error.to_string();
    for key in ["lisen", "claim", "limits.claims", "colours.red"] {
        assert!(shown.contains(key), "{shown}");
    }
    let hint = error.hint();
    for meant in [
        "instead of lisen did you mean listen?",
        "instead of claim did you mean limits.claim?",
        "instead of limits.claims did you mean limits.claim?",
    ] {
        assert!(hint.contains(meant), "{hint}");
    }
    assert!(!hint.contains("colours"), "{hint}");
}

#[test]
fn values_outside_of_their_range_are_named_all_at_once() {
    let error = file(
        "listen = 'here'\nbehind_proxy = 'me'\n[limits]\nclaim = 0\ntasks = 'many'\n[leases]\nseconds = -1",
    );
    let shown = error.unwrap_err().to_string();
    for part in [
        "listen must be ADDRESS:PORT",
        "behind_proxy must be a list of texts",
        "limits.claim must be a number from 1 to",
        "limits.tasks must be a number",
        "leases.seconds must be a number from 1 to 86400",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn f_114_each_bucket_has_its_variable_and_a_misspelt_one_is_an_error() {
    let settings = env(&[
        ("FELAGI_DAEMON_THROTTLE_REGISTER", "1"),
        ("FELAGI_DAEMON_THROTTLE_HEARTBEAT", "2"),
        ("FELAGI_DAEMON_THROTTLE_CLAIM", "3"),
        ("FELAGI_DAEMON_THROTTLE_TASKS", "4"),
        ("PATH", "/bin"),
    ]);
    let limits = settings.unwrap().settings.limits;
    assert_eq!((limits.register, limits.heartbeat, limits.claim, limits.tasks), (1, 2, 3, 4));
    let error = env(&[("FELAGI_DAEMON_THROTTLE_CLAIMS", "3")]).unwrap_err();
    assert!(error.hint().contains("did you mean FELAGI_DAEMON_THROTTLE_CLAIM?"), "{error}");
    let error = env(&[("FELAGI_DAEMON_THROTTLE_CLAIM", "none")]).unwrap_err();
    assert!(error.to_string().contains("FELAGI_DAEMON_THROTTLE_CLAIM must be a number"), "{error}");
}

#[test]
fn a_misspelt_variable_of_the_server_is_an_error_and_the_clients_own_is_none() {
    let error = env(&[("OSTLER_SERVER_LISTN", "127.0.0.1:1"), ("OSTLER_SERVER_COLOUR", "red")]);
    let error = error.unwrap_err();
    assert!(error.to_string().contains("OSTLER_SERVER_COLOUR"), "{error}");
    assert!(
        error.hint().contains("instead of OSTLER_SERVER_LISTN did you mean OSTLER_SERVER_LISTEN?")
    );
    env(&[("OSTLER_SERVER_URL", "http://127.0.0.1:4180"), ("OSTLER_HOME", "/x")]).unwrap();
}

#[test]
fn below_clients_only_the_least_version_is_known_and_nothing_is_needed() {
    for (text, key) in [
        ("[clients.huskarld]\nmin_versoin = '1'", "clients.huskarld.min_versoin"),
        ("[clients.huskarld]", "clients.huskarld"),
        ("[clients]\nhuskarld = '1'", "clients.huskarld"),
    ] {
        let hint = file(text).unwrap_err().hint();
        let meant = format!("instead of {key} did you mean clients.huskarld.min_version?");
        assert!(hint.contains(&meant), "{text}: {hint}");
    }
    file("[clients]\n").unwrap();
}

#[test]
fn the_environment_wins_over_the_file() {
    let mut config = file("database = 'sqlite:/f.db'\n[limits]\nclaim = 5").unwrap();
    config.take_env([("OSTLER_SERVER_DATABASE", "sqlite:/e.db")].into_iter()).unwrap();
    assert_eq!(
        (config.settings.database.as_str(), config.settings.limits.claim),
        ("sqlite:/e.db", 5)
    );
}

#[test]
fn another_address_than_this_machines_needs_tls_or_a_named_proxy() {
    let listen = |text: &str| file(text).unwrap().finish();
    for exposed in ["0.0.0.0:4180", "[::]:1", "10.1.2.3:80", "[::ffff:10.0.0.1]:80"] {
        let error = listen(&format!("listen = '{exposed}'")).unwrap_err();
        assert!(matches!(error, ConfigError::Exposed { .. }), "{exposed}");
        assert!(error.hint().contains("--behind-proxy"));
    }
    for private in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        listen(&format!("listen = '{private}'")).unwrap();
    }
    listen("listen = '0.0.0.0:1'\ntls_cert = 'c'\ntls_key = 'k'").unwrap();
    listen("listen = '0.0.0.0:1'\nbehind_proxy = ['10.0.0.1']").unwrap();
    assert!(matches!(listen("tls_cert = 'c'").unwrap_err(), ConfigError::HalfTls { .. }));
}

#[test]
fn a_database_url_is_never_shown() {
    let config = file("database = 'postgres://u:secret@h/d'").unwrap();
    assert!(!format!("{config:?}").contains("secret"));
}
